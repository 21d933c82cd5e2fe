"""Every call that the controller answers, in one table: the server, its description and the tests of rights read it."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from rollmux import __version__
from rollmux.errors import IllegalEvent
from rollmux.mux import events as ev
from rollmux.protocol import history as past
from rollmux.protocol import messages as msg
from rollmux.protocol import views as view
from rollmux.protocol.job_file import Submission, read_job
from rollmux.service import views
from rollmux.service.history import seen
from rollmux.service.host import Host, HungUp, Unavailable
from rollmux.service.journal import JournalAway, SqliteJournal
from rollmux.service.stream import Follower
from rollmux.service.tokens import PRIVATE_FILES, Caller, Role, write_private

MOST_LINES = 10_000
T = TypeVar("T")


def number(query: Mapping[str, str], name: str, usual: int, most: int, least: int) -> int:
    """The number that the query gives by this name, within bounds; the usual one if it gives none."""
    text = query.get(name, "")
    return max(least, min(int(text), most)) if text.isdecimal() and len(text) < 10 else usual


@dataclass(frozen=True, slots=True)
class Call:
    """One call as a handler gets it: its caller is known and entitled, its body is of the type that is wanted."""

    host: Host
    caller: Caller
    path: Mapping[str, str]
    query: Mapping[str, str]
    body: Any
    most_ended: int  # the most jobs in its answer that have ended
    left: Callable[[], Coroutine[Any, Any, None]]  # returns once the caller is gone

    @property
    def job(self) -> str:
        return self.path["job"]

    def number(self, name: str, usual: int, most: int) -> int:
        return number(self.query, name, usual, most, least=1)


Handler = Callable[[Call], Awaitable[Any]]

EVERYBODY: frozenset[Role] = frozenset()
ALL = frozenset(Role)
OWNERS = frozenset({Role.ADMIN, Role.TENANT})
ADMINS = frozenset({Role.ADMIN})


@dataclass(frozen=True, slots=True)
class Route:
    """One call: who may make it, what it brings, what it gives, and what it is for."""

    method: str
    path: str
    who: frozenset[Role]
    takes: type | None
    gives: type
    says: str
    answer: Handler
    changes: bool = False  # worth a line in the audit log
    of_all: bool = False  # its answer is about all jobs: with more jobs it takes longer
    ended: int = 0  # the most jobs in its answer that have ended, unless the query gives another number
    asks: tuple[tuple[str, str], ...] = ()  # whole numbers that its query may hold, and what they mean
    streams: bool = False  # it gives many, one after the other as they come: the handler returns a Follower

    def most_ended(self, query: Mapping[str, str]) -> int:
        """How many jobs that have ended are to be in its answer, at most."""
        return number(query, "ended", self.ended, seen.ALL_ENDED, 0) if self.ended else 0

    @property
    def parks(self) -> bool:
        """Whether its call may be parked: the body says for how long."""
        return self.takes is not None and hasattr(self.takes, "wait_s")


async def submit(call: Call) -> msg.Done:
    submission = _submission(call)
    await call.host.errands.make_way(submission.job.id)
    await call.host.call(lambda now: call.host.controller.submit(now, _tenant(call), submission))
    return msg.Done()


async def quote(call: Call) -> view.Quote:
    submission, owner = _submission(call), _tenant(call)
    return await call.host.look(lambda now: views.quote(call.host.controller, now, submission, owner, call.caller.sees))


async def attach(call: Call) -> msg.Attached:
    rule = call.host.controller.processes.attach
    return await _parked(
        call, call.body.wait_s, lambda now: rule(now, call.job, call.body), lambda found: found.attempt > 0
    )


async def ask(call: Call) -> msg.Turn:
    rule = call.host.controller.processes.ask
    return await _parked(
        call,
        call.body.wait_s,
        lambda now: rule(now, call.job, call.body),
        lambda found: found.done or found.lease is not None,
    )


async def report(call: Call) -> msg.Heard:
    return await call.host.call(lambda now: call.host.controller.processes.report(now, call.job, call.body))


async def listen(call: Call) -> msg.Orders:
    looks = count()
    wait_s = min(call.body.wait_s, call.host.controller.machine.state.rules.timing.lease_s / msg.SIGNS)

    def rule(now: float) -> msg.Orders:
        return call.host.controller.processes.listen(now, call.job, call.body, again=next(looks) > 0)

    return await _parked(call, wait_s, rule, lambda found: found.version != call.body.seen or bool(found.stop))


async def _parked(call: Call, wait_s: float, rule: Callable[[float], T], settled: Callable[[T], bool]) -> T:
    """Parks the call of a process, which may hang up before the answer comes."""
    host = call.host
    try:
        return await host.park(call.job, wait_s, rule, settled, call.left)
    except HungUp:
        if not host.is_awaited(call.job):
            host.controller.processes.hung_up(host.now, call.job, call.body)
        raise


async def leave(call: Call) -> msg.Done:
    return await call.host.call(lambda now: call.host.controller.processes.leave(now, call.job, call.body))


async def profile(call: Call) -> msg.Done:
    return await call.host.call(lambda now: call.host.controller.processes.profile(now, call.job, call.body))


async def cancel(call: Call) -> msg.Done:
    return await call.host.call(lambda now: call.host.controller.cancel(now, call.job))


async def drain(call: Call) -> msg.Done:
    await call.host.call(lambda now: call.host.controller.tell(now, ev.NodeCordoned(call.path["node"])))
    return msg.Done()


async def undrain(call: Call) -> msg.Done:
    await call.host.call(lambda now: call.host.controller.tell(now, ev.NodeUncordoned(call.path["node"])))
    return msg.Done()


async def backup(call: Call) -> view.Backup:
    """Copies the folder's journal and tokens, also where the controller can write no more."""
    journal, seq = call.host.journal, call.host.durable
    if not isinstance(journal, SqliteJournal):
        raise IllegalEvent("its journal is on a server: dump the schema with pg_dump -n, and copy the folder")
    folder = journal.path.parent.absolute() / "backup"
    if (folder / "lock").exists():
        raise IllegalEvent(f"a controller was started in {folder}: move that elsewhere")
    try:
        await asyncio.to_thread(_copy, journal, folder)
    except (OSError, JournalAway) as error:
        raise Unavailable(f"there is no backup: {error}") from error
    return view.Backup(str(folder), seq)


def _copy(journal: SqliteJournal, folder: Path) -> None:
    """Copies all that a restart needs. Each file is synced, which takes its time on a slow disk."""
    folder.mkdir(mode=0o700, exist_ok=True)
    journal.copy(folder / journal.path.name)
    for name in PRIVATE_FILES:
        if (file := journal.path.parent / name).exists():
            write_private(folder / name, file.read_bytes())


async def cluster(call: Call) -> view.ClusterView:
    host, sees, most = call.host, call.caller.sees, call.most_ended
    return await host.look_through(lambda now: views.cluster_view(host.controller, now, sees, host.broken, most))


async def history(call: Call) -> past.HistoryView:
    controller, since_s = call.host.controller, call.number("since_s", 3600, 100_000)
    most = call.number("most", seen.MOST_SHOWN, seen.MOST_SHOWN)
    return await call.host.look_through(lambda now: seen.history_view(controller, now, call.caller.sees, since_s, most))


async def bill(call: Call) -> past.BillView:
    controller, sees, most = call.host.controller, call.caller.sees, call.most_ended
    return await call.host.look_through(lambda now: seen.bill_view(controller, now, sees, most))


async def events(call: Call) -> Follower:
    after = call.query.get("after", "")
    name = call.host.controller.names(call.caller.sees)
    return Follower(call.host, name, int(after) if after.isdecimal() and len(after) < 19 else None)


async def job(call: Call) -> view.JobView:
    return await call.host.look(lambda now: views.one_job_view(call.host.controller, now, call.job, call.caller.sees))


async def why(call: Call) -> view.Text:
    return await call.host.look(
        lambda now: view.Text(views.explained(call.host.controller, call.job, call.caller.sees))
    )


async def story(call: Call) -> view.Text:
    return view.Text(
        await call.host.look_through(lambda _: views.told(call.host.controller, call.job, call.caller.sees))
    )


async def printed(call: Call) -> view.Text:
    lines = call.number("lines", 100, MOST_LINES)
    found = tuple(await call.host.errands.launcher.log(call.job, lines))
    return await call.host.look(lambda _: view.Text(found))


async def health(call: Call) -> view.Health:
    host = call.host
    seq = host.controller.machine.state.ledger.seq
    return view.Health(True, __version__, seq, host.broken, host.standing, time.time())


async def ready(call: Call) -> view.Health:
    found = await health(call)
    if found.state is not view.Standing.READY:
        raise Unavailable(found.broken or f"the controller is {found.state.value}")
    return found


def _submission(call: Call) -> Submission:
    return read_job(call.body)


def _tenant(call: Call) -> str:
    """The tenant of a new job. An admin's jobs bear the admin's own name, which no tenant has."""
    return call.caller.tenant or call.caller.name


_SINCE = ("since_s", "How many seconds to look back")
_MOST = ("most", "The most phases to show")
_ENDED = ("ended", "The most jobs to show that have ended, the latest")
_LINES = ("lines", "The most lines to show")
_AFTER = ("after", "The last record that was heard of; a browser says so in `Last-Event-ID`")

ROUTES = (
    Route("POST", "/v1/jobs/{job}/ask", ALL, msg.Ask, msg.Turn, "Ask for a phase; parked until it is granted", ask),
    Route("POST", "/v1/jobs/{job}/report", ALL, msg.Report, msg.Heard, "Say what has become of a lease", report),
    Route("POST", "/v1/jobs/{job}/listen", ALL, msg.Listen, msg.Orders, "Show life; parked until orders come", listen),
    Route("POST", "/v1/jobs/{job}/attach", ALL, msg.Attach, msg.Attached, "A process of the job is there", attach),
    Route("POST", "/v1/jobs/{job}/profile", ALL, msg.Profile, msg.Done, "Say what phases really take", profile),
    Route("POST", "/v1/jobs/{job}/leave", ALL, msg.Leave, msg.Done, "The job's processes end", leave, changes=True),
    Route("POST", "/v1/jobs", OWNERS, dict, msg.Done, "Submit a job, as in its YAML file", submit, changes=True),
    Route("POST", "/v1/quote", OWNERS, dict, view.Quote, "The place and the price that a job would get now", quote),
    Route("POST", "/v1/jobs/{job}/cancel", OWNERS, None, msg.Done, "End a job", cancel, changes=True),
    Route("POST", "/v1/nodes/{node}/drain", ADMINS, None, msg.Done, "Put no more jobs on a node", drain, changes=True),
    Route("POST", "/v1/nodes/{node}/undrain", ADMINS, None, msg.Done, "Put jobs on it again", undrain, changes=True),
    Route("POST", "/v1/backup", ADMINS, None, view.Backup, "Copy journal and tokens", backup, changes=True),
    Route(
        "GET",
        "/v1/cluster",
        OWNERS,
        None,
        view.ClusterView,
        "Jobs, nodes and prices",
        cluster,
        of_all=True,
        ended=views.MOST_ENDED,
        asks=(_ENDED,),
    ),
    Route(
        "GET",
        "/v1/history",
        OWNERS,
        None,
        past.HistoryView,
        "Phases of the last `since_s` seconds",
        history,
        of_all=True,
        asks=(_SINCE, _MOST),
    ),
    Route(
        "GET",
        "/v1/bill",
        OWNERS,
        None,
        past.BillView,
        "What jobs have cost, and would have alone",
        bill,
        of_all=True,
        ended=seen.ALL_ENDED,
        asks=(_ENDED,),
    ),
    Route(
        "GET",
        "/v1/events",
        OWNERS,
        None,
        past.News,
        "What changes, as it changes",
        events,
        asks=(_AFTER,),
        streams=True,
    ),
    Route("GET", "/v1/jobs/{job}", ALL, None, view.JobView, "One job", job),
    Route("GET", "/v1/jobs/{job}/explain", OWNERS, None, view.Text, "Why a job is where it is", why),
    Route(
        "GET",
        "/v1/jobs/{job}/story",
        OWNERS,
        None,
        view.Text,
        "What has happened to a job, and why",
        story,
        of_all=True,
    ),
    Route(
        "GET",
        "/v1/jobs/{job}/log",
        OWNERS,
        None,
        view.Text,
        "The last `lines` lines that a job printed",
        printed,
        asks=(_LINES,),
    ),
    Route("GET", "/healthz", EVERYBODY, None, view.Health, "That the controller lives, and how it stands", health),
    Route("GET", "/readyz", EVERYBODY, None, view.Health, "The same; 503 unless it answers all calls", ready),
)
