"""The history as values to show to one caller: its own jobs by name, others' without. Nothing here changes anything."""

from collections.abc import Callable, Iterable
from itertools import islice, takewhile

from msgspec import structs

from rollmux.mux.transitions import Phase
from rollmux.protocol.history import (
    ANOTHERS,
    BillView,
    Change,
    HeldView,
    HistoryView,
    JobBill,
    News,
    PoolView,
    SpanView,
    UseView,
    WaitView,
)
from rollmux.service.controller import Controller
from rollmux.service.history.books import HOUR_S, Account
from rollmux.service.history.spans import BUSY, LOST, SWITCH, Open, Span
from rollmux.service.steps import Steps

# The most phases in one answer: they are made into bytes in one go, in some milliseconds.
MOST_SHOWN = 4_000
# More jobs than are remembered.
ALL_ENDED = 10**9

Names = Callable[[str], str]


def history_view(
    controller: Controller, now: float, tenant: str | None, since_s: float, most: int = MOST_SHOWN
) -> Steps[HistoryView]:
    """Phases under way at any time in the last `since_s` seconds."""
    history, name = controller.history, controller.names(tenant)
    whose = _owners(controller, tenant)
    seq, first = controller.machine.state.ledger.seq, now - since_s
    used = pools(controller, now)
    open_now = list(history.spans.open.values())
    lately = list(islice(takewhile(lambda span: span.ended >= first, reversed(history.spans.over)), most + 1))
    shown = lately[:most][::-1]
    whole_from_s = shown[0].ended if shown and len(shown) < len(lately) else history.whole_from_s
    yield
    under_way, over = [], []
    for each in open_now:
        under_way.append(_under_way(each, whose(each)))
        yield
    for span in shown:
        over.append(_over(span, whose(span)))
        yield
    waits = yield from _waits(controller, now, name)
    return HistoryView(now, seq, first, whole_from_s, (*over, *under_way), waits, used)


def bill_view(controller: Controller, now: float, tenant: str | None, most_ended: int = ALL_ENDED) -> Steps[BillView]:
    """The bills of this tenant's jobs (None: of all)."""
    books, open_now = controller.history.books, controller.history.spans.open
    seq, price = controller.machine.state.ledger.seq, (books.usd_at(now), books.usd_per_hour, books.forgotten_usd)
    under_way: dict[str, list[Open]] = {}
    for span in open_now.values():
        under_way.setdefault(span.job, []).append(span)
    yield
    ended, bills, others_usd, others_alone_usd = controller.ended(tenant), [], 0.0, 0.0
    left_out = set(ended[: max(0, len(ended) - most_ended)])
    yield
    for account in list(books.accounts.values()):
        if account.job in left_out:
            others_usd += account.usd
            others_alone_usd += account.alone_usd
        elif controller.is_of(account.job, tenant):
            still = [span for span in under_way.get(account.job, ()) if span.epoch in open_now]
            bills.append(job_bill(controller, account, now, still))
        yield
    return BillView(now, seq, books.since, *price, tuple(bills), len(ended), others_usd, others_alone_usd)


def job_bill(controller: Controller, account: Account, now: float, under_way: Iterable[Open]) -> JobBill:
    """What one job has come to, with its phases under way."""
    state, live = controller.machine.state, controller.jobs.get(account.job)
    if account.job in state.jobs:
        account = _as_of_now(controller, account)
    return JobBill(
        account.job,
        live.tenant if live is not None else "",
        account.state,
        account.how,
        account.submitted,
        account.ended,
        account.done,
        account.iterations,
        account.usd_at(now),
        account.usd_per_hour,
        account.alone_usd,
        account.alone_usd_per_hour,
        _held(controller, account, now, under_way),
        account.slowdown,
        account.slo,
    )


def pools(controller: Controller, now: float) -> tuple[PoolView, ...]:
    """Where the node-seconds of each pool went."""
    history = controller.history
    found = []
    for pool in controller.machine.state.cluster.pools:
        book = history.books.pools[pool.name]
        used = dict(book.used_s)
        for span in history.spans.open.values():
            if span.pool == pool.name:
                used[span.does] += len(span.nodes) * (now - span.counted_to)
        since_s = now - book.counted_to
        there_s, pinned_s = book.there_s + book.nodes * since_s, book.pinned_s + book.pinned * since_s
        kind = pool.node_type
        idle_s = max(0.0, pinned_s - sum(used.values()))
        found.append(
            PoolView(
                pool.name,
                book.nodes,
                kind.gpus,
                kind.usd_per_hour,
                used[BUSY],
                used[SWITCH],
                used[LOST],
                idle_s,
                there_s - pinned_s,
            )
        )
    return tuple(found)


def news_for(news: News, name: Names) -> News:
    """What a caller may hear of these news: of others' jobs only which nodes they hold, and when."""
    changes = [_told(change, name) for change in news.changes]
    return News(news.seq, news.at, tuple(change for change in changes if change is not None))


def _told(change: Change, name: Names) -> Change | None:
    if not change.job or name(change.job) == change.job:
        return change
    if not change.epoch:
        return None
    hidden = {"job": ANOTHERS, "iteration": -1, "attempt": 0, "reason": "", "waited_s": 0.0}
    return structs.replace(change, **hidden)


def _as_of_now(controller: Controller, account: Account) -> Account:
    """The account of a job that lives, as of now."""
    copy = structs.replace(account)
    copy.follow(controller.machine.state.jobs[account.job], controller.machine.state.cluster)
    return copy


def _held(controller: Controller, account: Account, now: float, under_way: Iterable[Open]) -> tuple[HeldView, ...]:
    node_s = dict(account.node_s)
    for span in under_way:
        if span.nodes:
            node_s[span.pool] = node_s.get(span.pool, 0.0) + len(span.nodes) * (now - span.counted_to)
    pools = {pool.name: pool for pool in controller.machine.state.cluster.pools}
    return tuple(
        HeldView(name, seconds / HOUR_S, seconds / HOUR_S * pools[name].node_type.gpus)
        for name, seconds in node_s.items()
    )


def _owners(controller: Controller, tenant: str | None) -> Callable[[Span | Open], str]:
    """By which name of its job this tenant (None: sees all) hears of a phase. The name may be an older job's, too."""
    name, since = controller.names(tenant), controller.since
    return lambda span: ANOTHERS if tenant is not None and span.began < since(span.job) else name(span.job)


def _over(span: Span, job: str) -> SpanView:
    uses = tuple(UseView(*use) for use in span.uses)
    return _seen(span, job, uses, ended=span.ended, how=span.how, fenced=span.fenced)


def _under_way(span: Open, job: str) -> SpanView:
    uses = *(UseView(*use) for use in span.given_back), *(UseView(node, at, None) for node, at in span.nodes.items())
    return _seen(span, job, uses, ended=None, how="", fenced=span.does == LOST)


def _seen(
    span: Span | Open, job: str, uses: tuple[UseView, ...], *, ended: float | None, how: str, fenced: bool
) -> SpanView:
    """A phase as a view. It does not tell how far another tenant's job is, nor how long it has waited."""
    mine = job == span.job
    return SpanView(
        span.epoch,
        job,
        span.group,
        span.kind,
        span.iteration if mine else -1,
        span.attempt if mine else 0,
        uses,
        span.waited_s if mine else 0.0,
        span.began,
        span.started,
        ended,
        span.load,
        span.resumed,
        how,
        fenced,
    )


def _waits(controller: Controller, now: float, name: Names) -> Steps[tuple[WaitView, ...]]:
    state, found = controller.machine.state, []
    for (job_id, kind), since in list(controller.history.spans.waits.items()):
        record = state.jobs.get(job_id)
        if record is None or name(job_id) != job_id:
            continue
        for lane in state.lanes(record):
            if lane.kind.value == kind and (lane.state is Phase.WAITING or lane.wanted):
                turn = controller.processes.waiting(now, lane, name)
                found.append(WaitView(job_id, kind, lane.iteration, since, turn.reason, turn.holders, turn.expected_s))
                yield
    return tuple(found)
