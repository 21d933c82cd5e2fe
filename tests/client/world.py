"""A real controller behind a transport that loses, repeats and delays calls; and a floor on which nobody may meet.

Time is the wall's. Parked calls look again whenever one comes, so that jobs in several threads truly share the nodes.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Condition, Lock, Thread
from time import monotonic, sleep
from typing import Any

import httpx

import rollmux
from rollmux.client import Mux
from rollmux.errors import IllegalEvent, InvalidSpec
from rollmux.mux import Checks, ClusterMachine, Rules, Timing, finite
from rollmux.mux import commands as cmd
from rollmux.mux import events as ev
from rollmux.mux.codec import decode, encode
from rollmux.mux.hardware import GB, Cluster, NodeType, Pool
from rollmux.mux.job_record import JobRecord
from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.protocol.job_file import read_job
from rollmux.protocol.messages import (
    Ask,
    Attach,
    Attached,
    Done,
    Leave,
    Listen,
    Orders,
    Profile,
    Refusal,
    Report,
    Said,
    Turn,
)
from rollmux.service.controller import Controller, NoSuchJob, Refused

DEAR = NodeType("dear", 8, 5.28, 80 * GB, 1000 * GB)
CLUSTER = finite(NodeType("cheap", 8, 1.85, 96 * GB, 1000 * GB), DEAR)
SHARED = Cluster(Pool("shared", DEAR, on_demand=False), Pool("shared", DEAR, on_demand=False))
POLL_S = 0.002
PARKED_S = 0.02  # after so long who is parked looks again, though nobody else has called
FOREVER_S = 20.0

_CALLS: dict[str, type[Any]] = {
    "attach": Attach,
    "ask": Ask,
    "report": Report,
    "listen": Listen,
    "profile": Profile,
    "leave": Leave,
}

# What becomes of a call: by its verb and its message. One of the names that `World.handle` knows, or "".
Fate = Callable[[str, Any], str]


class World:
    """A cluster of a few machines, its controller, and the way to it."""

    def __init__(
        self, rollout: int = 1, train: int = 1, lease_s: float = 2.0, drain_s: float = 2.0, shared: int = 0
    ) -> None:
        """`shared` nodes serve both phases, in place of the others."""
        rules = Rules(Timing(lease_s, drain_s), compaction=False, checks=Checks.ALL)
        self.machine = ClusterMachine(SHARED if shared else CLUSTER, RollmuxPolicy(), rules)
        self.controller = Controller(self.machine)
        self.lock = Condition()  # notified when somebody has called
        self.lives = 0  # of the controller: a new one knows nothing of who was parked
        self.away = False
        self.fate: Fate = lambda verb, message: ""
        self.heard: list[tuple[str, str, Any]] = []  # job, verb and message of all that has arrived
        self._began = monotonic()
        for pool, count in [("shared", shared)] if shared else [("rollout", rollout), ("train", train)]:
            for i in range(count):
                self.controller.tell(0.0, ev.NodeJoined(f"{pool}-{i}", pool))

    # -- the way to the controller -----------------------------------------------------------------------------------

    def connect(self, job: str | dict[str, Any], **more: Any) -> Mux:
        given = {"wait_s": 0.5, "profile": 0, "transport": httpx.MockTransport(self.handle), **more}
        return rollmux.connect("http://controller/", "secret", job, **given)

    def handle(self, request: httpx.Request) -> httpx.Response:
        assert request.headers["authorization"] == "Bearer secret"
        *_, job_id, verb = ["", *request.url.path.split("/")]
        body = json.loads(request.content)
        message = body if verb == "jobs" else decode(_CALLS[verb], body)
        fate = self.fate(verb, message)
        if fate == "lost":
            raise httpx.ConnectError("lost on its way")
        if fate == "late":
            sleep(0.02)
        if fate == "503":
            return httpx.Response(503, json=encode(Refusal, Refusal("later")))
        if fate == "twice":
            self._answer(job_id, verb, message)
        response = self._answer(job_id, verb, message)
        if fate == "unheard":
            raise httpx.ReadTimeout("the answer was lost")
        return response

    def _answer(self, job_id: str, verb: str, message: Any) -> httpx.Response:
        self.heard.append((job_id, verb, message))
        life, until = self.lives, monotonic() + getattr(message, "wait_s", 0.0)
        with self.lock:
            response, final = self._try(life, job_id, verb, message)
            self.lock.notify_all()
            while not final and monotonic() < until:
                self.lock.wait(PARKED_S)
                response, final = self._try(life, job_id, verb, message)
        return response

    def _try(self, life: int, job_id: str, verb: str, message: Any) -> tuple[httpx.Response, bool]:
        """The answer as of now, and whether it is one that a parked call waits for."""
        if self.away or life != self.lives:
            raise httpx.ReadError("the controller has gone away")
        now = self.now
        self._pass(now)
        try:
            if verb == "jobs":
                answer: Any = self.submit(message)
            else:
                answer = getattr(self.controller.processes, verb)(now, job_id, message)
        except IllegalEvent as error:
            return _refusal(409, str(error)), True
        except NoSuchJob as error:
            return _refusal(404, str(error)), True
        except Refused as error:
            return _refusal(422, "it can't be taken", *error.reasons), True
        except InvalidSpec as error:
            return _refusal(422, error.subject, *map(str, error.problems)), True
        finally:
            self._pass(now)
        data = {**encode(type(answer), answer), "newer": [{"than": "known"}]}
        return httpx.Response(200, json=data), _is_final(message, answer)

    def _pass(self, now: float) -> None:
        """Time goes by, and what the machine wants done is done: nodes come, processes of launched jobs are up."""
        self.controller.tick(now)
        for errand in self.controller.take()[1]:
            if isinstance(errand, cmd.Provision):
                self.controller.tell(now, ev.NodeJoined(errand.node, errand.pool))
            elif isinstance(errand, cmd.Launch) and self.controller.jobs[errand.job_id].submission.command:
                self.controller.tell(now, ev.JobStarted(errand.job_id, errand.attempt))

    def restart(self, away_s: float = 0.1) -> None:
        """The controller ends, and a new one goes on with what was durable."""
        with self.lock:
            self.away = True
            owned = [(live.tenant, live.submission) for live in self.controller.jobs.values()]
        sleep(away_s)
        with self.lock:
            self.controller = Controller(self.machine, owned)
            self.lives += 1
            self.away = False

    def submit(self, data: dict[str, Any]) -> Done:
        self.controller.submit(self.now, "tenant", read_job(data))
        self._pass(self.now)
        return Done()

    def cancel(self, job_id: str) -> None:
        with self.lock:
            self.controller.cancel(self.now, job_id)
            self._pass(self.now)
            self.lock.notify_all()

    # -- what tests look at ------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        return monotonic() - self._began

    def record(self, job_id: str) -> JobRecord:
        return self.machine.state.jobs[job_id]

    def ended(self, job_id: str) -> str:
        return self.machine.state.ended.get(job_id, "")

    def said(self, job_id: str, said: Said) -> list[Report]:
        """Reports of this job that have arrived."""
        reports = [message for job, verb, message in list(self.heard) if (job, verb) == (job_id, "report")]
        return [report for report in reports if report.said is said]

    def profiles(self, job_id: str) -> list[Profile]:
        return [message for job, _, message in list(self.heard) if job == job_id and isinstance(message, Profile)]


def _refusal(status: int, error: str, *problems: str) -> httpx.Response:
    return httpx.Response(status, json=encode(Refusal, Refusal(error, problems)))


def _is_final(message: Any, answer: object) -> bool:
    if isinstance(answer, Attached):
        return answer.attempt > 0
    if isinstance(answer, Turn):
        return answer.lease is not None or answer.done
    return not isinstance(answer, Orders) or bool(answer.stop) or answer.version != message.seen


def job_data(name: str, **more: Any) -> dict[str, Any]:
    """A job whose like can share one node of each pool; what it really takes is a matter of milliseconds."""
    phase = {"nodes": 1, "duration_s": 50.0}
    return {"name": name, "slo": 4.0, "rollout": phase, "train": phase, **more}


def soon(what: Callable[[], object], within_s: float = 5.0) -> None:
    """Waits until this holds."""
    until = monotonic() + within_s
    while not what():
        assert monotonic() < until, "it did not come about"
        sleep(POLL_S)


class Engine:
    """State that knows whether it is on the nodes."""

    def __init__(self) -> None:
        self.moves: list[str] = []
        self.here = False
        self.nbytes = 10**6

    def load(self) -> None:
        assert not self.here
        self.here = True
        self.moves.append("load")

    def offload(self) -> None:
        assert self.here
        self.here = False
        self.moves.append("offload")


@dataclass
class Floor:
    """The nodes as the jobs walk on them."""

    holders: dict[str, str] = field(default_factory=dict)
    done: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    lock: Lock = field(default_factory=Lock)

    @contextmanager
    def on(self, nodes: tuple[str, ...], job: str) -> Iterator[None]:
        with self.lock:
            for node in nodes:
                assert self.holders.setdefault(node, job) == job, f"{job} meets {self.holders[node]} on {node}"
        yield
        with self.lock:
            for node in nodes:
                del self.holders[node]

    def walk(self, mux: Mux, job: str, iterations: int, body_s: float = 0.004) -> None:
        """A whole job, which notes each phase that it has done."""
        engines = {"rollout": Engine(), "train": Engine()}
        for step in mux.steps(iterations):
            for kind, engine in engines.items():
                with mux.phase(kind, state=engine) as phase, self.on(phase.nodes, job):
                    assert engine.here
                    assert phase.nodes
                    sleep(body_s)
                self.done[job, kind, step] += 1


class Crowd:
    """Jobs, each in its thread; `join` raises what any of them has raised."""

    def __init__(self) -> None:
        self.threads: list[Thread] = []
        self.errors: list[BaseException] = []

    def start(self, work: Callable[[], object]) -> Thread:
        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  raised again by join
                self.errors.append(error)

        thread = Thread(target=run, daemon=True)
        self.threads.append(thread)
        thread.start()
        return thread

    def join(self, within_s: float = FOREVER_S) -> None:
        until = monotonic() + within_s
        for thread in self.threads:
            thread.join(max(0.0, until - monotonic()))
        if self.errors:
            raise self.errors[0]
        assert not any(thread.is_alive() for thread in self.threads), "a job hangs"
