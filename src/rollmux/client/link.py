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
from rollmux.client.residency import State, is_same, offload
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
# Leases that are remembered to be over: a job may go on for months.
MOST_OVER = 1000


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
        self.over: set[int] = set()  # the latest leases whose end was said or heard: never taken again
        self.finished: set[int] = set()  # leases that we are done with, and don't know to be committed
        self.parked: dict[PhaseKind, tuple[int, State]] = {}  # state that may stay on the nodes, and since which lease
        self.moving: set[PhaseKind] = set()  # whose state is just being moved off
        self.stuck: set[PhaseKind] = set()  # these, and those whose state could not be moved off
        self.keeps = False  # a lease has let state stay, so that it may yet be asked whether it has left
        self.leaves = False  # the process takes its leave: no state stays any more
        self.lingers = False  # it has done its part: nothing but orders is heard any more

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

    def never_again(self, *epochs: int) -> None:
        """Their end was said or heard. Under the lock; of very old leases, which have low numbers, no word comes."""
        self.over.update(epochs)
        if len(self.over) > MOST_OVER:
            self.over = set(sorted(self.over)[MOST_OVER // 2 :])

    # -- what is said of leases --------------------------------------------------------------------------------------

    def lease_for(
        self,
        kind: PhaseKind,
        iteration: int,
        unless: Callable[[], object],
        accepts: Callable[[Held], bool],
        paused: int = 0,
    ) -> Held:
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
            if turn.lease is not None and turn.lease.epoch != paused:
                if turn.lease.epoch in self.over:
                    self.leave_behind_nothing(kind, turn.lease.epoch, Said.FAILED, "it was given up before")
                elif accepts(turn.lease):
                    return turn.lease
            said.once(turn.reason, turn.expected_s)

    def ask(self, kind: PhaseKind, iteration: int, wait_s: float, unless: Callable[[], object] = lambda: None) -> Turn:
        for _ in range(2):  # another thread may just have given back what the first was refused for
            message = Ask(self.attempt, kind, iteration, self.rank, self.done_with(), wait_s, self.instance)
            try:
                return self.send("ask", message, Turn, wait_s=wait_s, unless=unless)
            except CallRefused as error:
                if error.status != _CONFLICT:
                    raise
                refused = error
            if self._makes_good(kind, refused):
                return Turn(None, reason=refused.error)
        done = self.next[kind] - 1
        if kind is PhaseKind.ROLLOUT and done >= self.next[PhaseKind.TRAIN]:
            hint = f"rollout({done}) counts, and its training is yet to come: train with what it gave"
            raise CallRefused(refused.status, f"{refused.error}; {hint}", refused.problems) from refused
        raise refused

    def _makes_good(self, kind: PhaseKind, refused: CallRefused) -> bool:
        """An ask was refused: because the job is to end, or because a lease expired of which no word had come."""
        orders = self.send("listen", Listen(self.attempt, rank=self.rank, seen=-1, instance=self.instance), Orders)
        if orders.stop:
            self.stop = orders.stop
            raise Stopped(orders.stop) from refused
        fenced = [held for held in orders.held if held.kind is kind and held.state == "fenced"]
        for held in fenced:
            self.leave_behind_nothing(kind, held.epoch)
        return bool(fenced)

    def has_left(self, kind: PhaseKind) -> bool:
        """Whether nothing of the kind is on its way off, or could not leave. It is waited for, a little."""
        with self.lock:
            return self.lock.wait_for(lambda: kind not in self.stuck, MOVING_S)

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
            self.never_again(epoch)
        self.report(Said.FAILED, epoch, reason, patience_s)

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

    def unpark(self, kind: PhaseKind) -> State:
        """Takes over the state that was left on the nodes, if it is still there: only one thread gets it."""
        with self.lock:
            return self.parked.pop(kind, (0, ()))[1]

    def decline(self, held: Held) -> None:
        """A lease for which nobody waits any more: others get its nodes."""
        with self.lock:
            if not self.is_unwanted(held):
                return
            self.never_again(held.epoch)
        self.leave_behind_nothing(held.kind, held.epoch, Said.FAILED, "nobody waited for its turn any more")

    def is_unwanted(self, held: Held) -> bool:
        return self.unwanted.get((held.kind, held.iteration), inf) <= monotonic()

    def take_off(self, kind: PhaseKind, but: State | None = None) -> None:
        """Moves off what was left for the kind, under whatever lease, unless another thread does so already."""
        with self.lock:
            if kind not in self.parked or (but is not None and is_same(self.parked[kind][1], but)):
                return
            self._begin_to_move(kind)
            stayed = self.unpark(kind)
        self.clear(kind, stayed)

    def leave_behind_nothing(self, kind: PhaseKind, epoch: int, said: Said = Said.OFFLOADED, reason: str = "") -> None:
        """Nobody here goes on under this lease: says so, once all that was left for its kind is off the nodes.

        Where that takes long it is said another time: the listening thread comes again, and so does who asks.
        """
        with self.lock:
            self.never_again(epoch)
        self.take_off(kind)
        if self.has_left(kind):
            self.report(said, epoch, reason)

    def move_all_off(self, within_s: float) -> None:
        """No state is on nodes once this returns but what the job is at work with: who leaves frees them.

        What others are moving off is waited for. Where that takes too long nobody may say that the nodes are free.
        """
        until = monotonic() + within_s
        with self.lock:
            self.leaves = True
            self.lock.wait_for(self._all_are_out, within_s)
            kinds = tuple(self.parked)
        with ExitStack() as each:  # also if one fails
            for kind in kinds:
                each.callback(self.take_off, kind)
        with self.lock:
            self.lock.wait_for(lambda: not self.moving and self._all_are_out(), max(0.0, until - monotonic()))
            if self.stuck or not self._all_are_out():
                raise RollmuxError("its state is still on its nodes")

    def _all_are_out(self) -> bool:
        return not any(stint.loaded for stint in self.stints.values() if not stint.is_live)

    def _begin_to_move(self, kind: PhaseKind) -> None:
        """State that is about to leave the nodes is on them until it has."""
        with self.lock:
            self.moving.add(kind)
            self.stuck.add(kind)

    def clear(self, kind: PhaseKind, state: State) -> float:
        """Moves a kind's state off its nodes; returns the seconds that it took.

        Where that fails the nodes are not free, and nobody may say so: the lease runs out, and the job is ended.
        """
        self._begin_to_move(kind)
        try:
            took_s = offload(state)
            with self.lock:
                self.stuck.discard(kind)
            return took_s
        finally:
            with self.lock:
                self.moving.discard(kind)
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
