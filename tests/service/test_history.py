"""What is kept of the past, against books that are kept in another way: looked up anew between any two events.

The runs are those of the simulated world, with all its faults.
"""

import json
from collections import defaultdict
from dataclasses import dataclass, field, replace
from math import isclose
from typing import TypeVar

import pytest

from rollmux.mux import events as ev
from rollmux.mux.cluster_machine import ClusterMachine
from rollmux.mux.cluster_state import ClusterState
from rollmux.mux.hardware import Cluster
from rollmux.mux.image import image
from rollmux.mux.job import PhaseKind
from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.mux.seat import Lane
from rollmux.mux.transitions import Phase
from rollmux.protocol.history import ANOTHERS, SpanView
from rollmux.service.controller import Controller
from rollmux.service.history import History, seen
from rollmux.service.history import history as histories
from rollmux.service.history import spans as kept
from rollmux.service.journal import Image
from rollmux.service.recovery import recover
from rollmux.service.steps import Steps
from tests.service.memory_journal import MemoryJournal
from tests.service.seeds import live_through
from tests.service.test_recovery import CLUSTER, JOB, RULES, again, running, write
from tests.service.world import World

T = TypeVar("T")
HOUR_S = 3600.0
SEEDS = (1, 2, 4, 6, 19, 28, 49, 185)  # 6 and 49 have moves decided between iterations, 185 rollouts that grow


def at_once(steps: Steps[T]) -> T:
    """What comes of all steps in a row."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return found


@dataclass
class Integrals:
    """Every figure as the sum over all moments of what there was to be seen."""

    usd: float = 0.0
    there_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    pinned_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    held_s: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))
    used_s: dict[tuple[str, str], float] = field(default_factory=lambda: defaultdict(float))

    def pass_by(self, state: ClusterState, for_s: float) -> None:
        pools = {pool.name: pool for pool in state.cluster.pools}
        for record in state.book.nodes.values():
            self.there_s[record.pool] += for_s
            if record.group_id is not None:
                self.pinned_s[record.pool] += for_s
                self.usd += for_s / HOUR_S * pools[record.pool].node_type.usd_per_hour
        for weave in state.weaves.values():
            for lane in weave.leases.values():
                if lane.state is not Phase.PARKED:
                    for node in lane.held:
                        pool = state.book.nodes[node].pool
                        self.held_s[lane.seat.job.id, pool] += for_s
                        what = "lost" if lane.state is Phase.FENCED else "busy" if _works(lane) else "switch"
                        self.used_s[what, pool] += for_s


def _works(lane: "object") -> bool:
    return lane.state is not Phase.OFFLOADING and lane.started_at is not None  # type: ignore[attr-defined]


@dataclass
class Played:
    """A run, played once more with both kinds of books."""

    world: World
    controller: Controller
    integrals: Integrals
    now: float
    unseen: list[str]  # phases that waited, and of which the history did not say so


@pytest.fixture(scope="module", params=SEEDS)
def played(request: pytest.FixtureRequest) -> Played:
    world = live_through(request.param)
    machine = ClusterMachine(world.begun_in, world.policy(), world.rules)
    controller = Controller(machine, [(each.tenant, world.submissions[each.job_id]) for each in world.journal.owned()])
    integrals, now, unseen = Integrals(), 0.0, list[str]()
    for record in world.played:
        integrals.pass_by(machine.state, record.at - now)
        now = record.at
        controller.tell(now, record.event)
        known = controller.history.spans.waits
        unseen += [str(lane) for lane in _waiting(machine.state) if (lane.seat.job.id, lane.kind.value) not in known]
    integrals.pass_by(machine.state, 7.0)
    return Played(world, controller, integrals, now + 7.0, unseen)


def _waiting(state: ClusterState) -> list[Lane]:
    lanes = [lane for record in state.jobs.values() for lane in state.lanes(record)]
    return [lane for lane in lanes if lane.state is Phase.WAITING or lane.wanted]


def test_the_jobs_bills_add_up_to_what_the_nodes_cost_while_jobs_were_pinned_to_them(played: Played) -> None:
    bill = at_once(seen.bill_view(played.controller, played.now, None))
    assert isclose(sum(job.usd for job in bill.jobs) + bill.forgotten_usd, bill.usd, rel_tol=1e-9)
    assert isclose(bill.usd, played.integrals.usd, rel_tol=1e-9)
    assert bill.usd > 0


def test_each_phase_that_waits_is_known_to_wait(played: Played) -> None:
    assert played.unseen == []


def test_node_hours_are_those_under_leases(played: Played) -> None:
    bill = at_once(seen.bill_view(played.controller, played.now, None))
    held = {(job.job, each.pool): each.node_hours * HOUR_S for job in bill.jobs for each in job.held}
    assert held == pytest.approx(played.integrals.held_s)


def test_a_pools_time_is_all_accounted_for(played: Played) -> None:
    for pool in seen.pools(played.controller, played.now):
        used = {what: played.integrals.used_s[what, pool.pool] for what in ("busy", "switch", "lost")}
        assert {"busy": pool.busy_s, "switch": pool.switch_s, "lost": pool.lost_s} == pytest.approx(used)
        assert pool.idle_s == pytest.approx(played.integrals.pinned_s[pool.pool] - sum(used.values()), abs=1e-6)
        free_s = played.integrals.there_s[pool.pool] - played.integrals.pinned_s[pool.pool]
        assert pool.free_s == pytest.approx(free_s, abs=1e-6)


def test_what_spans_hold_is_what_jobs_are_billed_for_and_no_node_is_held_twice(played: Played) -> None:
    view = at_once(seen.history_view(played.controller, played.now, None, 1e6))
    held: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for span in view.spans:
        assert span.began_s <= (span.started_s or span.began_s) <= (span.ended_s or played.now)
        for use in span.uses:
            ended_s = played.now if use.ended_s is None else use.ended_s
            assert span.began_s <= use.began_s <= ended_s <= (span.ended_s or played.now)
            held[use.node].append((use.began_s, ended_s))
    for uses in held.values():
        for (_, ended_s), (began_s, _) in zip(sorted(uses), sorted(uses)[1:], strict=False):
            assert ended_s <= began_s
    total_s = sum(ended_s - began_s for uses in held.values() for began_s, ended_s in uses)
    assert total_s == pytest.approx(sum(played.integrals.held_s.values()))


def test_an_iteration_that_counts_has_one_finished_span_of_each_kind(played: Played) -> None:
    spans: list[SpanView] = list(at_once(seen.history_view(played.controller, played.now, None, 1e6)).spans)
    for bill in at_once(seen.bill_view(played.controller, played.now, None)).jobs:
        synced = [s for s in spans if (s.job, s.kind, s.how) == (bill.job, "sync", "finished")]
        assert [span.iteration for span in synced] == list(range(bill.iterations_done))


def test_following_the_news_leads_to_the_same_phases_and_nodes(played: Played) -> None:
    history = played.controller.history
    held: dict[int, set[str]] = {}
    nodes: dict[str, str] = {}
    assert history.news_after == 0
    for news in history.news:
        for change in news.changes:
            match change.what:
                case "granted" | "offloading":
                    assert change.epoch not in held
                    held[change.epoch] = set(change.nodes)
                case "nodes":
                    held[change.epoch] = set(change.nodes)
                case "ended":
                    del held[change.epoch]
                case "node":
                    nodes[change.nodes[0]] = change.state
                case "gone":
                    del nodes[change.nodes[0]]
    assert held == {epoch: set(span.nodes) for epoch, span in history.spans.open.items()}
    state = played.controller.machine.state
    assert nodes == {name: record.state.value for name, record in state.book.nodes.items()}


def test_a_restart_goes_on_with_the_same_books_and_phases(played: Played) -> None:
    """The simulation itself compares each restart with a replay; here that the text of an image keeps all."""
    history, state = played.controller.history, played.controller.machine.state
    saved = json.loads(json.dumps(history.saved(), allow_nan=False))
    assert History(state, saved).saved() == history.saved()


def test_books_that_an_image_has_not_begin_where_it_was_made() -> None:
    journal = MemoryJournal()
    before = running(journal)
    state = before.image()
    del state["history"]
    journal.keep(Image(before.machine.state.ledger.seq, 4.0, state))
    after, now = again(journal)
    assert image(after.machine) == image(before.machine)
    bill = at_once(seen.bill_view(after, now + HOUR_S, None))
    assert bill.since_s == 4.0
    assert bill.usd == pytest.approx(bill.usd_per_hour) == pytest.approx(sum(job.usd for job in bill.jobs))
    (span,) = at_once(seen.history_view(after, now + 10.0, None, 60.0)).spans
    assert (span.job, span.kind, span.began_s, span.ended_s) == ("A", "rollout", 4.0, None)


def test_other_rules_keep_the_books() -> None:
    journal = MemoryJournal()
    before = running(journal)
    after, _ = recover(journal, CLUSTER, again(journal)[0].machine.state.policy, type(RULES)(ended_limit=5))
    assert after.history.saved() == before.history.saved()


def one_iteration(controller: Controller, at: float) -> None:
    """A's first, whose rollout was asked for and granted at 4 s."""
    controller.tell(at, ev.PhaseStarted("A", 1))
    controller.tell(at + 20.0, ev.PhaseFinished("A", 1))
    for kind in (PhaseKind.TRAIN, PhaseKind.SYNC):
        controller.tell(at + 20.0, ev.PhaseRequested("A", 1, kind, 0))
        epoch = controller.machine.state.ledger.epoch
        controller.tell(at + 20.0, ev.PhaseStarted("A", epoch))
        controller.tell(at + 20.0 + 20.0 * (kind is PhaseKind.TRAIN), ev.PhaseFinished("A", epoch))
        at += 20.0


def test_a_bill_sets_what_a_job_cost_beside_its_price_alone() -> None:
    journal = MemoryJournal()
    controller = running(journal)
    one_iteration(controller, 5.0)
    (bill,) = at_once(seen.bill_view(controller, 1.0 + HOUR_S, "team")).jobs
    alone = 8 * (1.85 + 5.28)
    assert (bill.iterations_done, bill.iterations, bill.state, bill.tenant) == (1, 2, "running", "team")
    assert bill.usd == pytest.approx(alone)
    assert bill.alone_usd == pytest.approx(alone * 40.0 / HOUR_S)
    assert bill.usd_per_hour == bill.alone_usd_per_hour == pytest.approx(alone)
    assert {held.pool: held.gpu_hours * HOUR_S / 8 for held in bill.held} == pytest.approx(
        {"rollout": 21.0, "train": 20.0}
    )
    controller.tell(50.0, ev.JobFinished("A", 1))
    write(journal, controller)
    (ended,) = at_once(seen.bill_view(again(journal)[0], HOUR_S, "team")).jobs
    assert (ended.state, ended.how, ended.ended_s, ended.iterations_done) == ("ended", "finished", 50.0, 1)
    assert ended.usd == pytest.approx(alone * 49.0 / HOUR_S)
    assert ended.usd_per_hour == 0.0


def test_where_machines_cost_nothing_jobs_cost_nothing() -> None:
    free = [replace(pool, node_type=replace(pool.node_type, usd_per_gpu_hour=0.0)) for pool in CLUSTER.pools]
    controller, _ = recover(MemoryJournal(), Cluster(*free), RollmuxPolicy(), RULES)
    controller.submit(1.0, "team", JOB)
    assert controller.machine.state.jobs["A"].placement is not None
    (bill,) = at_once(seen.bill_view(controller, 9.0, None)).jobs
    assert (bill.usd, bill.usd_per_hour, bill.alone_usd_per_hour) == (0.0, 0.0, 0.0)


def test_what_jobs_have_come_to_that_are_not_shown_is_in_the_sums_beside_those_that_are() -> None:
    controller = running(MemoryJournal())
    one_iteration(controller, 5.0)
    for at, name in ((60.0, "B"), (70.0, "C")):
        controller.submit(at, "team", replace(JOB, job=replace(JOB.job, id=name)))
        controller.tell(at + 1.0, ev.JobStarted(name, 1))
        controller.tell(at + 5.0, ev.JobFinished(name, 1))
    controller.tell(80.0, ev.JobFinished("A", 1))
    controller.submit(90.0, "team", replace(JOB, job=replace(JOB.job, id="D")))
    whole = at_once(seen.bill_view(controller, 100.0, "team"))
    assert ([bill.job for bill in whole.jobs], whole.ended, whole.others_usd) == (["A", "B", "C", "D"], 3, 0.0)
    for most, shown in ((0, "D"), (1, "AD"), (2, "ACD"), (3, "ABCD")):
        bill = at_once(seen.bill_view(controller, 100.0, "team", most))
        assert ("".join(each.job for each in bill.jobs), bill.ended) == (shown, 3)
        assert sum(each.usd for each in bill.jobs) + bill.others_usd == pytest.approx(bill.usd)
        alone = sum(each.alone_usd for each in bill.jobs) + bill.others_alone_usd
        assert alone == pytest.approx(sum(each.alone_usd for each in whole.jobs))
    others = at_once(seen.bill_view(controller, 100.0, "others", 0))
    assert (others.jobs, others.ended, others.others_usd) == ((), 0, 0.0)


def test_others_hear_when_nodes_are_held_but_not_by_whom() -> None:
    controller = running(MemoryJournal())
    view = at_once(seen.history_view(controller, 10.0, "others", 60.0))
    assert [(span.job, span.iteration, span.uses[0].node) for span in view.spans] == [(ANOTHERS, -1, "rollout-0")]
    assert at_once(seen.bill_view(controller, 10.0, "others")).jobs == ()
    name = controller.names("others")
    told = [change for news in controller.history.news for change in seen.news_for(news, name).changes]
    assert {change.job for change in told} == {"", ANOTHERS}
    assert '"A"' not in json.dumps([view.waits, [change.reason for change in told]])
    mine = controller.names("team")
    assert {change.job for news in controller.history.news for change in seen.news_for(news, mine).changes} == {"", "A"}


def test_of_many_phases_the_latest_are_kept_and_shown_and_it_is_said_from_when_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept, "MOST_SPANS", 5)
    monkeypatch.setattr(histories, "MOST_SPANS", 5)
    monkeypatch.setattr(histories, "MOST_NEWS", 4)
    controller = running(MemoryJournal())
    controller.history.__init__(controller.machine.state)  # type: ignore[misc]
    now = 5.0
    for _ in range(9):
        epoch = controller.machine.state.ledger.epoch
        controller.tell(now, ev.PhaseFailed("A", epoch, "again"))
        controller.tell(now, ev.PhaseRequested("A", 1, PhaseKind.ROLLOUT, 0))
        now += 1.0
    view = at_once(seen.history_view(controller, now, None, 100.0))
    assert [span.ended_s for span in view.spans] == [9.0, 10.0, 11.0, 12.0, 13.0, None]
    assert view.whole_from_s == 9.0
    fewer = at_once(seen.history_view(controller, now, None, 100.0, most=2))
    assert [span.ended_s for span in fewer.spans] == [12.0, 13.0, None]
    assert fewer.whole_from_s == 12.0
    lately = at_once(seen.history_view(controller, now, None, 1.5))
    assert [span.ended_s for span in lately.spans] == [13.0, None]
    assert len(controller.history.news) == 4
    assert controller.history.news_after == controller.history.news[0].seq - 1


def test_jobs_that_are_forgotten_are_still_paid_for() -> None:
    journal = MemoryJournal()
    controller, _ = recover(journal, CLUSTER, again(journal)[0].machine.state.policy, type(RULES)(ended_limit=1))
    for place, name in enumerate("ABC"):
        job = type(JOB.job)(name, JOB.job.rollout, JOB.job.train, JOB.job.slo)
        controller.submit(10.0 * place, "team", type(JOB)(job, ("python",)))
        controller.cancel(10.0 * place + 5.0, name)
    bill = at_once(seen.bill_view(controller, 100.0, None))
    assert [job.job for job in bill.jobs] == ["C"]
    assert bill.forgotten_usd == pytest.approx(2 * bill.jobs[0].usd)
    assert bill.usd == pytest.approx(3 * bill.jobs[0].usd)
