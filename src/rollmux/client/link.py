"""An attached process: its calls, and the leases and the state that it holds, has finished or has left on its nodes.

The job's own threads and the listening thread share these values: they change only under `lock`. `stint` tells which
passage through a phase a lease belongs to, and until when.
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

# The reason to stop when the first process has left because all is committed, and the others have yet to hear of it.
FINISHED = "finished"
# The script is told why it waits if it waits longer than this.
FIRST_WAIT_S = 1.0
# How long to wait for state that is being moved off before the controller is asked again.
MOVING_S = 1.0
# How many ended leases are remembered: a job may go on for months.
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
        self.alive_at = monotonic()  # when the last sign of life that has arrived was sent
        self.lock = Condition()
        self.next = dict.fromkeys(PhaseKind, attached.synced)  # the first iteration that is not committed
        self.stints: dict[PhaseKind, Stint] = {}  # the stint of each kind: in line, under its lease, or on its way out
        self.unwanted: dict[tuple[PhaseKind, int], float] = {}  # asked for; from then on nobody waits
        self.over: set[int] = set()  # ended leases, as told or heard, the latest of them: never taken again
        self.finished: set[int] = set()  # leases whose work here is done, and that may not be committed yet
        self.parked: dict[PhaseKind, tuple[int, State]] = {}  # state that stays on nodes, and the lease that left it
        self.moving: set[PhaseKind] = set()  # kinds whose state is just being moved off
        self.stuck: set[PhaseKind] = set()  # `moving`, and the kinds whose state could not be moved off
        self.keeps = False  # a lease has let state stay: the controller may yet ask whether that state has left
        self.leaves = False  # the process takes its leave: no state stays any more
        self.lingers = False  # the process has done its part, and only listens for orders

    @property
    def attempt(self) -> int:
        return self.attached.attempt

    def leases_last(self, lease_s: float) -> None:
        """Sets how long a lease lasts without a sign of life."""
        self.lease_s = lease_s
        self.wire.hurry(lease_s)

    @property
    def sure_s(self) -> float:
        """How long its leases hold even if no sign of life arrives from now on, less the time that a call may take."""
        return self.alive_at + (1.0 - ANSWER_PART) * self.lease_s - monotonic()

    def send(self, verb: str, message: Any, answer: type[T], **waits: Unpack[Waits]) -> T:
        return self.wire.send(f"{job_path(self.job)}/{verb}", message, answer, **waits)

    def done_with(self) -> tuple[int, ...]:
        """Finished leases, told in each call until they are known to count: a new controller has not heard of them."""
        with self.lock:
            return tuple(sorted(self.finished))

    def never_again(self, *epochs: int) -> None:
        """Notes that these leases have ended. Call it under the lock. The oldest, lowest numbers are forgotten: no
        message speaks of them any more."""
        self.over.update(epochs)
        if len(self.over) > MOST_OVER:
            self.over = set(sorted(self.over)[MOST_OVER // 2 :])

    # -- calls about leases ------------------------------------------------------------------------------------------

    def lease_for(
        self,
        kind: PhaseKind,
        iteration: int,
        unless: Callable[[], object],
        accepts: Callable[[Held], bool],
        paused: int = 0,
    ) -> Held:
        """Waits for the phase's turn, and says why that takes long. `paused` is the lease under which it paused."""
        said, wait_s = Saying("waiting for nodes"), min(self.wait_s, FIRST_WAIT_S)
        while True:
            unless()
            if self.stop:
                raise Stopped(self.stop)
            if paused:  # each process must say so, and a new controller has heard it from none
                self.report(Said.PAUSED, paused)
            turn = self.ask(kind, iteration, wait_s, unless)
            wait_s = self.wait_s
            if turn.done:
                unless()  # a caller who has given up does not hear it, so the script does not go on from there
                self.counts(kind, iteration)
                raise AlreadyCommitted(f"{kind.value}({iteration}) of job {self.job} is committed: go on from there")
            if turn.lease is not None and turn.lease.epoch != paused:
                if turn.lease.epoch in self.over:
                    self.leave_behind_nothing(kind, turn.lease.epoch, Said.FAILED, "it was given up before")
                elif accepts(turn.lease):
                    return turn.lease
            said.once(turn.reason, turn.expected_s)

    def ask(self, kind: PhaseKind, iteration: int, wait_s: float, unless: Callable[[], object] = lambda: None) -> Turn:
        for _ in range(2):  # another thread may just have given back the lease for which the first call was refused
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
        """After a refused ask: whether it may be asked again, as leases that expired unnoticed are now given back.
        Raises Stopped if the job is to end."""
        orders = self.send("listen", Listen(self.attempt, rank=self.rank, seen=-1, instance=self.instance), Orders)
        if orders.stop:
            self.stop = orders.stop
            raise Stopped(orders.stop) from refused
        fenced = [held for held in orders.held if held.kind is kind and held.state == "fenced"]
        for held in fenced:
            self.leave_behind_nothing(kind, held.epoch)
        return bool(fenced)

    def has_left(self, kind: PhaseKind) -> bool:
        """Whether no state of the kind is still on its way off, or stuck. Waits for it, up to MOVING_S."""
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
        """Gives a lease up. Whether the controller hears this late or never, the lease is not taken again."""
        with self.lock:
            self.never_again(epoch)
        self.report(Said.FAILED, epoch, reason, patience_s)

    def outcome(self, kind: PhaseKind, iteration: int, heard: Heard) -> Turn:
        """What became of a phase that this process has finished: done, or a new lease. Waits for the job's other
        processes."""
        if heard.committed:
            return Turn(None, done=True)
        # A lease that is gone was lost, or other processes of the job pause: only the next answer tells which.
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
        """The script hears that a phase is committed, and with it the phases before it in its iteration."""
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
        """Whether there is such a hook and it ran without an error. Its errors are the job's own: they are logged."""
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
        """Takes over the state that was left on the nodes, if there is any: only one thread gets it."""
        with self.lock:
            return self.parked.pop(kind, (0, ()))[1]

    def decline(self, held: Held) -> None:
        """Gives back a lease for which nobody waits any more: others get its nodes."""
        with self.lock:
            if not self.is_unwanted(held):
                return
            self.never_again(held.epoch)
        self.leave_behind_nothing(held.kind, held.epoch, Said.FAILED, "nobody waited for its turn any more")

    def is_unwanted(self, held: Held) -> bool:
        return self.unwanted.get((held.kind, held.iteration), inf) <= monotonic()

    def take_off(self, kind: PhaseKind, but: State | None = None) -> None:
        """Moves off the kind's state that any lease left on the nodes, but not the state `but`. One thread does it."""
        with self.lock:
            if kind not in self.parked or (but is not None and is_same(self.parked[kind][1], but)):
                return
            self._begin_to_move(kind)
            stayed = self.unpark(kind)
        self.clear(kind, stayed)

    def leave_behind_nothing(self, kind: PhaseKind, epoch: int, said: Said = Said.OFFLOADED, reason: str = "") -> None:
        """Says that this process is no longer under the lease, once all state left for its kind is off the nodes.

        If moving it takes long, nothing is said now: the listening thread comes here again, and so does an ask.
        """
        with self.lock:
            self.never_again(epoch)
        self.take_off(kind)
        if self.has_left(kind):
            self.report(said, epoch, reason)

    def move_all_off(self, within_s: float) -> None:
        """Moves off all state but that of phases at work, before the process leaves and so frees its nodes.

        Waits for state that other threads move off. Raises if that takes too long: the nodes don't count as free.
        """
        until = monotonic() + within_s
        with self.lock:
            self.leaves = True
            self.lock.wait_for(self._all_are_out, within_s)
            kinds = tuple(self.parked)
        with ExitStack() as each:  # all of them, even if one fails
            for kind in kinds:
                each.callback(self.take_off, kind)
        with self.lock:
            self.lock.wait_for(lambda: not self.moving and self._all_are_out(), max(0.0, until - monotonic()))
            if self.stuck or not self._all_are_out():
                raise RollmuxError("its state is still on its nodes")

    def _all_are_out(self) -> bool:
        return not any(stint.loaded for stint in self.stints.values() if not stint.is_live)

    def _begin_to_move(self, kind: PhaseKind) -> None:
        """State that begins to leave the nodes counts as on them until it has left."""
        with self.lock:
            self.moving.add(kind)
            self.stuck.add(kind)

    def clear(self, kind: PhaseKind, state: State) -> float:
        """Moves a kind's state off its nodes; returns the seconds that it took.

        If that fails the nodes are not free, and nobody may say so: the lease runs out, and the job is ended.
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
    """Tells the job's owner why the job waits, once for each reason."""

    def __init__(self, what: str) -> None:
        self._what, self._last = what, ""

    def once(self, reason: str, expected_s: float | None = None) -> None:
        if reason != self._last:
            about = f" (about {expected_s:.0f} s)" if expected_s is not None else ""
            log.info("%s: %s%s", self._what, reason, about)
        self._last = reason
