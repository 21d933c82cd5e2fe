"""Real jobs under a real controller, and a hand that kills them at moments drawn from a seed.

A kill waits for its step of a job and for what the job is at then, as the controller sees it, and comes a random while
later. So every kind of moment is met in every run, however fast the machine is.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from random import Random
from typing import Any

import httpx

from rollmux.service.local.attempt_files import AttemptFiles
from rollmux.service.local.process_tree import Process, descendants, look, send
from tests.ports import free_port
from tests.service.running import Running, running

LEASE_S, DRAIN_S = 2.0, 2.0
OPTIONS = ("--lease-s", str(LEASE_S), "--drain-s", str(DRAIN_S))
LOOK_S = 0.01
ON_ITS_WAY_S = 0.1  # what a process has sent is known by then
LIMIT_S = 600.0
# After an attempt is told to end it has five seconds, and a busy machine needs some.
GONE_S = LEASE_S + DRAIN_S + 30.0


class Moment(Enum):
    """What a job is at."""

    STARTING = "starting"  # another attempt than the one that was hit last, and nothing asked for yet
    WARM_UP = "warm-up"  # before its first checkpoint
    ROLLOUT = "rollout"
    TRAIN = "train"
    SYNC = "sync"  # metrics and checkpoint are written


class Blow(Enum):
    """What is done to whom."""

    KILL = "the job is killed"
    STALL = "the job stands still for longer than its lease"
    HANG = "the job stands still until it is ended"
    CONTROLLER = "the controller is killed"
    WORKER = "one of the processes that the job has begun is killed"


# Seconds within which a moment of each kind mostly lasts.
LASTS_S = {Moment.STARTING: 3.0, Moment.WARM_UP: 0.3, Moment.ROLLOUT: 0.1, Moment.TRAIN: 0.04, Moment.SYNC: 0.015}
AWAY_S = 1.0  # for so long at most nobody starts a controller again
# A busy machine may end one that has stood still for a little too long.
MAY_END_ATTEMPT = frozenset({Blow.KILL, Blow.HANG, Blow.STALL})


@dataclass(frozen=True, slots=True)
class Kill:
    """One blow: `after_s` into a moment, of this step or the next one in which it is met."""

    step: int
    moment: Moment
    blow: Blow
    after_s: float
    for_s: float = 0.0  # how long a job stands still, or no controller is started


def drawn(
    random: Random, steps: int, early: Sequence[tuple[Moment, Blow]], later: Sequence[tuple[Moment, Blow]]
) -> list[Kill]:
    """Kills before the first step, in this order, and others at random steps in any order."""
    shuffled = random.sample(later, len(later))
    places = sorted(random.sample(range(1, steps - 1), len(later)))
    plan = [*((0, *each) for each in early), *((place, *each) for place, each in zip(places, shuffled, strict=True))]
    return [
        Kill(step, moment, blow, random.uniform(0.0, LASTS_S[moment]), for_s(random, blow))
        for step, moment, blow in plan
    ]


def for_s(random: Random, blow: Blow) -> float:
    """Of a job that comes to itself again: its lease is over by then, and its time to vanish is not, mostly."""
    if blow is Blow.STALL:
        return LEASE_S + random.uniform(0.3, 0.3 * DRAIN_S)
    return random.uniform(0.0, AWAY_S) if blow is Blow.CONTROLLER else 0.0


class Floor:
    """A controller that is started anew at the same address, and what it keeps."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._lives = ExitStack()
        self._port = free_port()
        self._begin()

    def _begin(self) -> None:
        self.there: Running = self._lives.enter_context(running(self.folder, *OPTIONS, port=self._port))
        self.client = httpx.Client(
            base_url=self.there.url, headers={"Authorization": f"Bearer {self.there.token}"}, timeout=20.0, verify=False
        )
        self._lives.callback(self.client.close)

    def kill(self, away_s: float) -> None:
        """As a machine's init would: it is there again after a while."""
        with self._lock:
            self.there.process.kill()
            self.there.process.wait()
            self._lives.close()
            time.sleep(away_s)
            self._begin()

    def end(self) -> None:
        self.there.end()

    def close(self) -> None:
        self._lives.close()

    def get(self, path: str) -> Any:
        """Waits for the controller, where it is away."""
        end = time.monotonic() + LIMIT_S
        while True:
            with self._lock:
                client = self.client
            try:
                answer = client.get(path)
                if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                    assert answer.is_success, answer.text
                    return answer.json()
            except (httpx.TransportError, RuntimeError):  # it has just been killed; its client was just closed
                pass
            assert time.monotonic() < end, "no controller"
            time.sleep(LOOK_S)

    def submit(self, job: Mapping[str, Any]) -> None:
        answer = self.client.post("/v1/jobs", json=dict(job))
        assert answer.is_success, answer.text

    def ended(self, job: str) -> bool:
        return bool(self.get(f"/v1/jobs/{job}")["state"] == "ended")

    def until_ended(self, *jobs: str) -> None:
        end = time.monotonic() + LIMIT_S
        for job in jobs:
            while not self.ended(job):
                assert time.monotonic() < end, self.get(f"/v1/jobs/{job}")
                time.sleep(0.1)

    def said(self, job: str) -> str:
        return "\n".join(self.get(f"/v1/jobs/{job}/log?lines=20")["lines"])

    def process(self, job: str) -> Process | None:
        """The one process of the job's latest attempt, if it is there."""
        mine = [each for each in AttemptFiles(self.folder).all_started() if each.key[0] == job]
        keeper = max(mine, key=lambda each: each.key[1]).keeper if mine else None
        if keeper is None or (found := look(keeper.pid)) is None or found.start != keeper.start:
            return None
        return next((each for each in descendants(keeper.pid) if each.parent == keeper.pid), None)


@contextmanager
def floor(folder: Path) -> Iterator[Floor]:
    there = Floor(folder)
    try:
        yield there
    finally:
        there.close()


class Hand(threading.Thread):
    """Carries out the kills of one job, one after the other; `out` is where the job works."""

    def __init__(self, there: Floor, job: str, out: Path, kills: Sequence[Kill]) -> None:
        super().__init__(name=f"kills {job}", daemon=True)
        self.there, self.job, self.out, self.kills = there, job, out, kills
        self.done: list[tuple[Kill, float]] = []  # and when, by the machine's clock
        self.failed: BaseException | None = None
        self._hit: tuple[int, int] = (0, 0)  # the process that was ended last, and its start
        self._attempt = 0  # the one that was ended last

    def run(self) -> None:
        try:
            for kill in self.kills:
                self._wait_for(kill)
                while not self._strike(kill):
                    self._wait_for(kill)
        except BaseException as error:  # noqa: BLE001  for the test's own thread
            self.failed = error

    def finish(self, limit_s: float = GONE_S) -> None:
        """All of them have been carried out."""
        self.join(limit_s)
        if self.failed is not None:
            raise self.failed
        assert len(self.done) == len(self.kills), f"{self.job} ended before {self.kills[len(self.done) :]}"

    def _wait_for(self, kill: Kill) -> None:
        _until(lambda: self._has_come(kill), f"{self.job} never came to {kill}")
        time.sleep(kill.after_s)

    def _has_come(self, kill: Kill) -> bool:
        if kill.moment is Moment.WARM_UP:
            checkpoints = self.out / "checkpoints"
            return checkpoints.exists() and not any(checkpoints.glob("step-*.pt"))
        job = self.there.get(f"/v1/jobs/{self.job}")
        assert job["state"] != "ended", f"{self.job} ended before {kill}: {job['reason']}"
        busy = {lane["kind"]: lane["state"] for lane in job["lanes"]}
        if kill.moment is Moment.STARTING:
            return bool(job["attempt"] > self._attempt and self._victim() is not None)
        at_work = busy.get(kill.moment.value) in ("granted", "running") and job["attempt"] > self._attempt
        return bool(job["synced"] >= kill.step and at_work)

    def _strike(self, kill: Kill) -> bool:
        """Whether it has met anything: who stands still without a lease is in nobody's way, and is left alone."""
        at, victim = time.monotonic(), self._victim()
        if kill.blow is Blow.CONTROLLER:
            self.there.kill(kill.for_s)
        elif victim is None:
            return False
        elif kill.blow is Blow.KILL:
            self._end(victim, signal.SIGKILL)
        elif kill.blow is Blow.WORKER:
            begun = [each for each in descendants(victim.pid) if each.parent != victim.pid and _forks(each.parent)]
            if not begun:
                return False
            send(begun[len(self.done) % len(begun)], signal.SIGKILL)
        elif not self._halted(victim):
            return False
        elif kill.blow is Blow.STALL:
            time.sleep(kill.for_s)
            send(victim, signal.SIGCONT)
        else:
            self._end(victim, signal.SIGSTOP)
            _until(lambda: not _lives(victim), f"{self.job} stands still, and nobody ends it", GONE_S)
        self.done.append((kill, at))
        return True

    def _end(self, victim: Process, number: signal.Signals) -> None:
        """This process and its attempt are not met again."""
        self._attempt = self.there.get(f"/v1/jobs/{self.job}")["attempt"]
        self._hit = victim.pid, victim.start
        send(victim, number)

    def _halted(self, victim: Process) -> bool:
        send(victim, signal.SIGSTOP)
        time.sleep(ON_ITS_WAY_S)
        lanes = self.there.get(f"/v1/jobs/{self.job}")["lanes"]
        if any(lane["state"] != "parked" for lane in lanes):
            return True
        send(victim, signal.SIGCONT)
        return False

    def _victim(self) -> Process | None:
        found = self.there.process(self.job)
        return found if found is not None and (found.pid, found.start) != self._hit else None


def _forks(pid: int) -> bool:
    """Whether workers are forks of this process, which itself does no work."""
    try:
        return b"multiprocessing.forkserver" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _lives(process: Process) -> bool:
    found = look(process.pid)
    return found is not None and found.start == process.start and found.alive


def _until(holds: Callable[[], bool], else_say: str, limit_s: float = LIMIT_S) -> None:
    end = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end, else_say
        time.sleep(LOOK_S)


def pid_of(job: str, attempt: int, rank: int) -> int | None:
    """Of a process that the launcher has begun: what it begins itself is of its group."""
    told = {f"ROLLMUX_JOB={job}", f"ROLLMUX_ATTEMPT={attempt}", f"ROLLMUX_RANK={rank}"}
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit() and told <= _env(int(folder.name)):
                pid = int(folder.name)
                if os.getpgid(pid) == pid:
                    return pid
    return None


def node_of(job: str, attempt: int, rank: int) -> str:
    """The node for which it was begun, as it was told."""
    pid = pid_of(job, attempt, rank)
    assert pid is not None
    (node,) = (each for each in _env(pid) if each.startswith("ROLLMUX_NODE="))
    return node.partition("=")[2]


def _env(pid: int) -> set[str]:
    return {*Path(f"/proc/{pid}/environ").read_text("latin-1").split("\0")}
