"""An attached process: its verbs, and what it holds, has finished and has left on its nodes.

What is written here is shared by the job's own threads and the listening one: it changes under `lock` alone. Whose a
lease is, and until when, is told in `stint`.
"""

import logging
from collections.abc import Callable
from contextlib import ExitStack
from math import inf
from threading import Condition
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar, Unpack
from urllib.parse import quote

from rollmux.client.errors import AlreadyCommitted, CallRefused, LeaseLost, Stopped, sendable
from rollmux.client.residency import State, offload
from rollmux.client.timings import Timings
from rollmux.client.wire import ANSWER_PART, Waits, Wire
from rollmux.errors import RollmuxError
from rollmux.mux.job import PhaseKind
from rollmux.protocol.messages import Ask, Attached, Heard, Held, Listen, Orders, Report, Said, Turn

if TYPE_CHECKING:
    from rollmux.client.stint import Stint

T = TypeVar("T")

log = logging.getLogger("rollmux")

_CONFLICT = 409

# How a job has ended whose first process has left because all is committed, while the others are yet to hear of it.
FINISHED = "finished"
# Whoever waits longer than this wants to know why.
FIRST_WAIT_S = 1.0
# State that is being moved off is waited for so long before the controller is asked again.
MOVING_S = 1.0


def job_path(job: str) -> str:
    return f"/v1/jobs/{quote(job, safe='')}"


class Link:
    """One process of a running attempt."""

    def __init__(
        self,
        wire: Wire,
        job: str,
        attached: Attached,
        rank: int,
        wait_s: float,
        timings: Timings,
        processes: int,
        instance: str,
    ) -> None:
        self.wire, self.job, self.attached, self.rank = wire, job, attached, rank
        self.leases_last(attached.lease_s)
        self.wait_s, self.processes, self.instance = wait_s, processes, instance
        self.timings = timings
        self.hooks: dict[str, Callable[..., object]] = {}
        self.stop = ""  # why the job is to end
        self.losses = 0  # phases that did not count
        self.alive_at = monotonic()  # when the last sign of life was sent that has arrived
        self.lock = Condition()
        self.next = dict.fromkeys(PhaseKind, attached.synced)  # the first iteration that is not committed
        self.stints: dict[PhaseKind, Stint] = {}  # who has the kind: in line for a lease, under it, or on its way out
        self.unwanted: dict[tuple[PhaseKind, int], float] = {}  # asked for, and from then on nobody waits any more
        self.over: set[int] = set()  # leases whose end was said, heard or not: never taken again
        self.finished: set[int] = set()  # leases that we are done with, and don't know to be committed
        self.parked: dict[PhaseKind, tuple[int, State]] = {}  # state that may stay on the nodes, and since which lease
        self.moving: set[int] = set()  # leases whose state is just being moved off
        self.stuck: set[int] = set()  # these, and leases whose state could not be moved off

    @property
    def attempt(self) -> int:
        return self.attached.attempt

    def leases_last(self, lease_s: float) -> None:
        """So long without a sign of life."""
        self.lease_s = lease_s
        self.wire.hurry(lease_s)

    @property
    def sure_s(self) -> float:
        """For so long its leases hold, whatever becomes of the next signs of life; and a call has time to arrive."""
        return self.alive_at + (1.0 - ANSWER_PART) * self.lease_s - monotonic()

    def send(self, verb: str, message: Any, answer: type[T], **waits: Unpack[Waits]) -> T:
        return self.wire.send(f"{job_path(self.job)}/{verb}", message, answer, **waits)

    def done_with(self) -> tuple[int, ...]:
        """To be said again and again, until it is known to count: a new controller has not heard it."""
        with self.lock:
            return tuple(sorted(self.finished))

    # -- what is said of leases --------------------------------------------------------------------------------------

    def lease_for(self, kind: PhaseKind, iteration: int, unless: Callable[[], object], paused: int = 0) -> Held:
        """Waits for its turn, and says why that takes long. `paused` is the lease that the phase had before."""
        said, wait_s = Saying("waiting for nodes"), min(self.wait_s, FIRST_WAIT_S)
        while True:
            unless()
            if self.stop:
                raise Stopped(self.stop)
            if paused:  # all processes must have said so, and a new controller has heard it of none
                self.report(Said.PAUSED, paused)
            turn = self.ask(kind, iteration, wait_s, unless)
            wait_s = self.wait_s
            if turn.done:
                unless()  # only who hears it goes on from there
                self.counts(kind, iteration)
                raise AlreadyCommitted(f"{kind.value}({iteration}) of job {self.job} is committed: go on from there")
            if turn.lease is not None and turn.lease.epoch != paused and self._has_left(turn.lease.epoch):
                if turn.lease.epoch not in self.over:
                    return turn.lease
                self.fail(turn.lease.epoch, "it was given up before")
            said.once(turn.reason, turn.expected_s)

    def ask(self, kind: PhaseKind, iteration: int, wait_s: float, unless: Callable[[], object] = lambda: None) -> Turn:
        message = Ask(self.attempt, kind, iteration, self.rank, self.done_with(), wait_s, self.instance)
        try:
            return self.send("ask", message, Turn, wait_s=wait_s, unless=unless)
        except CallRefused as refused:
            if refused.status != _CONFLICT:
                raise
            self._make_good(kind, refused)
            return Turn(None, reason=refused.error)

    def _make_good(self, kind: PhaseKind, refused: CallRefused) -> None:
        """An ask was refused: because the job is to end, or because a lease expired of which no word had come."""
        orders = self.send("listen", Listen(self.attempt, rank=self.rank, seen=-1, instance=self.instance), Orders)
        if orders.stop:
            self.stop = orders.stop
            raise Stopped(orders.stop) from refused
        fenced = [held for held in orders.held if held.kind is kind and held.state == "fenced"]
        if not fenced:
            done = self.next[kind] - 1
            if kind is PhaseKind.ROLLOUT and done >= self.next[PhaseKind.TRAIN]:
                hint = f"rollout({done}) counts, and its training is yet to come: train with what it gave"
                raise CallRefused(refused.status, f"{refused.error}; {hint}", refused.problems) from refused
            raise refused
        for held in fenced:
            self.leave_behind_nothing(kind, held.epoch)

    def _has_left(self, epoch: int) -> bool:
        """Whether no state is left behind under this lease. What is just being moved off is waited for, a little."""
        with self.lock:
            return self.lock.wait_for(lambda: epoch not in self.stuck, MOVING_S)

    def report(self, said: Said, epoch: int, reason: str = "", patience_s: float = 0.0, *, left: bool = True) -> Heard:
        return self.send(
            "report",
            Report(said, epoch, self.rank, reason=sendable(reason), instance=self.instance, left=left),
            Heard,
            patience_s=patience_s,
        )

    def fail(self, epoch: int, reason: str, patience_s: float = 0.0) -> None:
        """Gives a lease up. That may be heard late, or never: it is not taken again in any case."""
        with self.lock:
            self.over.add(epoch)
        self.report(Said.FAILED, epoch, reason, patience_s)

    def give_back(self, epoch: int) -> None:
        """This process is off the nodes of a lease that no longer holds."""
        self.report(Said.OFFLOADED, epoch)

    def outcome(self, kind: PhaseKind, iteration: int, heard: Heard) -> Turn:
        """What has come of a phase that this process has finished: done, or a new lease. Waits for the job's others."""
        if heard.committed:
            return Turn(None, done=True)
        # Whether a lease that is gone was lost, or given up by others of the job who pause, only the next one tells.
        waits = heard.holds or self.processes > 1
        said, wait_s = Saying("finished"), self.wait_s if waits else 0.0
        while True:
            try:
                turn = self.ask(kind, iteration, wait_s)
            except Stopped:
                if self.stop == FINISHED:
                    return Turn(None, done=True)
                raise
            if turn.done or turn.lease is not None or not waits:
                return turn
            said.once(turn.reason, turn.expected_s)

    def counts(self, kind: PhaseKind, iteration: int) -> None:
        """The script hears that a phase is committed, and so is what comes before it in its iteration."""
        with self.lock:
            for each in PhaseKind:
                self.next[each] = max(self.next[each], iteration + 1)
                if each is kind:
                    break

    def lost(self, what: str) -> RollmuxError:
        self.losses += 1
        return Stopped(self.stop) if self.stop else LeaseLost(what)

    # -- what the controller wants -----------------------------------------------------------------------------------

    def call_hook(self, name: str, *args: object) -> bool:
        """Whether there is such a hook and it did its part. Its errors are the job's own: they are shown."""
        hook = self.hooks.get(name)
        if hook is None:
            return False
        try:
            hook(*args)
        except Exception:
            log.exception("the runtime hook %r of job %s failed", name, self.job)
            return False
        return True

    def unpark(self, kind: PhaseKind, epoch: int | None = None) -> State | None:
        """Takes over the state that was left on the nodes, if it is still there: only one thread gets it."""
        with self.lock:
            parked = self.parked.get(kind)
            if parked is None or epoch not in (None, parked[0]):
                return None
            return self.parked.pop(kind)[1]

    def move_off(self, kind: PhaseKind, epoch: int) -> None:
        """Somebody else needs the nodes on which state was left."""
        with self.lock:
            state = self.unpark(kind, epoch)
            if epoch in self.stuck:
                return
            self.begin_to_move(epoch)
        self.clear(epoch, state or ())
        self.give_back(epoch)

    def decline(self, held: Held) -> None:
        """A lease for which nobody waits any more: others get its nodes, once what was left there is off them."""
        with self.lock:
            if not self.is_unwanted(held) or held.epoch in self.stuck:
                return
            self.over.add(held.epoch)
            self.begin_to_move(held.epoch)
            stayed = self.unpark(held.kind)
        self.clear(held.epoch, stayed or ())
        self.fail(held.epoch, "nobody waited for its turn any more")

    def is_unwanted(self, held: Held) -> bool:
        return self.unwanted.get((held.kind, held.iteration), inf) <= monotonic()

    def take_off(self, kind: PhaseKind, epoch: int) -> None:
        """Moves off what was left under this lease, unless another thread does so already."""
        with self.lock:
            stayed = self.unpark(kind, epoch)
            if stayed is None:
                return
            self.begin_to_move(epoch)
        self.clear(epoch, stayed)

    def leave_behind_nothing(self, kind: PhaseKind, epoch: int) -> None:
        """The lease does not hold: says that this process is off its nodes, once it is."""
        self.take_off(kind, epoch)
        if self._has_left(epoch):  # else whoever moves it says so
            self.give_back(epoch)

    def move_all_off(self, within_s: float) -> None:
        """No state is on nodes once this returns but what the job is at work with: who leaves frees them.

        What others are moving off is waited for. Where that takes too long nobody may say that the nodes are free.
        """
        until = monotonic() + within_s
        with self.lock:
            self.lock.wait_for(self._all_are_out, within_s)
            parked, self.parked = self.parked, {}
            for epoch, _ in parked.values():
                self.begin_to_move(epoch)
        with ExitStack() as each:  # also if one fails
            for epoch, state in parked.values():
                each.callback(self.clear, epoch, state)
        with self.lock:
            self.lock.wait_for(lambda: not self.moving and self._all_are_out(), max(0.0, until - monotonic()))
            if self.stuck or not self._all_are_out():
                raise RollmuxError("its state is still on its nodes")

    def _all_are_out(self) -> bool:
        return not any(stint.loaded for stint in self.stints.values() if not stint.is_live)

    def begin_to_move(self, epoch: int) -> None:
        """State that is about to leave this lease's nodes is on them until it has."""
        with self.lock:
            self.moving.add(epoch)
            self.stuck.add(epoch)

    def clear(self, epoch: int, state: State) -> float:
        """Moves state off a lease's nodes; returns the seconds that it took.

        Where that fails the nodes are not free, and nobody may say so: the lease runs out, and the job is ended.
        """
        self.begin_to_move(epoch)
        try:
            took_s = offload(state)
            with self.lock:
                self.stuck.discard(epoch)
            return took_s
        finally:
            with self.lock:
                self.moving.discard(epoch)
                self.lock.notify_all()


class Saying:
    """Tells the job's owner why it waits, once for each reason."""

    def __init__(self, what: str) -> None:
        self._what, self._last = what, ""

    def once(self, reason: str, expected_s: float | None = None) -> None:
        if reason != self._last:
            about = f" (about {expected_s:.0f} s)" if expected_s is not None else ""
            log.info("%s: %s%s", self._what, reason, about)
        self._last = reason
