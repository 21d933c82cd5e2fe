"""One passage through a phase: wait for the lease, move the state in, work, move the state off, tell the controller.

After a pause the stint goes on under another lease. Its work and its hooks are in different threads: of the end of the
work and the end of a pause, the one that comes first waits for the other.

In each kind of phase there is one stint at a time (`Link.stints`): from before it asks until none of its state is on
the nodes and it has told, or tried to tell, the end of its lease. If another stint would enter meanwhile, the new stint

- takes over the place in line of the former one, if that has no lease yet and nobody waits for it any more: the former
  stint ignores the answer to its ask;
- waits, if the former one is on its way out;
- is refused, if the former one is at work, or if somebody waits for it to begin.

A lease of which this process has said that it finished or failed is never taken again (`Link.over`): the message may
arrive at any time. A lease that was asked for, but for which no stint is in line any more, is given up
(`Link.unwanted`). An iteration goes on once the script has heard that its phase counts. A script that gave up waiting
for this hears it when it enters the phase again.

When a lease has run out, the stint under it says that it has left the nodes, or the heart if no stint is under it: none
begins under it any more. Either says so only once all state that stayed for that kind of phase, under whatever lease,
is off the nodes (`Link.leave_behind_nothing`).
"""

import logging
from threading import Thread
from time import monotonic

from rollmux.client.errors import LeaseLost, Unreachable, reason_of
from rollmux.client.link import Link
from rollmux.client.residency import State, load, moves, size
from rollmux.client.timings import Timing
from rollmux.errors import RollmuxError
from rollmux.mux.job import PhaseKind
from rollmux.protocol.messages import Heard, Held, Said, Turn

log = logging.getLogger("rollmux")

# A hook that is under way when the work ends has nothing left to stop, and may wait for a safe point that never comes.
HOOK_GRACE_S = 5.0
# A failed phase waits no longer for a controller that is away: the lease will run out.
FAIL_PATIENCE_S = 10.0
_LEAST_S = 0.01


class Stint:
    """A phase that this process is in. Values that several threads read change under the link's lock."""

    def __init__(self, link: Link, kind: PhaseKind, iteration: int, state: State) -> None:
        self.link, self.kind, self.iteration, self.state = link, kind, iteration, state
        self.lease: Held | None = None
        self.in_line = False  # it waits for a lease, and the next one is its own
        self.lost = ""  # why the lease is gone, if that is known
        self.working = False  # the body is under way: only then is there work to pause or shrink
        self.arriving = False  # the lease is there, and the state is on its way onto the nodes
        self.telling = False  # the arriving state is just told to break off
        self.paused = False  # its nodes are given up, or are just being given up
        self.disturbed = False  # it was told to make room: its state can't stay
        self.heeding = 0  # orders that are being carried out
        self.heeded: set[tuple[int, str]] = set()  # orders seen, by lease and name
        self.latest: Thread | None = None  # carries out the latest order
        self.away_s = 0.0  # the time spent paused
        self.abandoned = False  # nobody waits for its next turn any more
        self.loaded: State = ()
        self._load_s: float | None = None  # None if the state was not moved in
        self._began = monotonic()

    def __str__(self) -> str:
        return f"{self.kind.value}({self.iteration}) of job {self.link.job}"

    @property
    def is_live(self) -> bool:
        """Whether its work is under way, or somebody waits for it to begin."""
        begins = (self.in_line or self.arriving) and not self.paused
        return not self.abandoned and (self.working or begins)

    def begin(self) -> None:
        """Returns when the nodes are this job's and the state is on them."""
        self.take()
        self._began = monotonic()
        with self.link.lock:
            self.working = True
            self.link.lock.notify_all()

    def abandon(self) -> None:
        """Nobody waits for it to begin any more, or to go on where it has paused."""
        with self.link.lock:
            self.abandoned = True
            self.link.lock.notify_all()

    def leave_off(self) -> None:
        """The work is over, and the end begins: a stint that enters the phase from here on waits for this one."""
        with self.link.lock:
            self.working = False

    def end(self) -> None:
        """The work is done: returns if the phase counts, and raises LeaseLost or Stopped if it does not."""
        link, no_lease = self.link, f"{self} ended without its lease: what it did does not count, do it again"
        try:
            self._stop()
            body_s, lease = monotonic() - self._began - self.away_s, self.lease
            if lease is None:
                raise link.lost(f"{self} has lost its nodes while it paused: {self.lost}")
            if self.lost:  # its work may have broken off: it does not count, whatever the controller would say
                lost = link.lost(no_lease)
                self.give_up(lost)
                raise lost
            offload_s = self._leave(lease)
            counts = self._finish(lease)
        except RollmuxError:
            raise
        except BaseException as error:
            self.give_up(error)
            raise
        finally:
            self._forget()
        if not counts:
            raise link.lost(no_lease)
        switched = self._load_s is not None and offload_s is not None and moves(self.state)
        timing = Timing(self._load_s or 0.0, body_s, offload_s or 0.0, size(self.state), switched)
        link.timings.add(self.kind, timing)

    def fail(self, error: BaseException) -> None:
        """The work has raised this error: others get the nodes. A phase that has paused does not wait for its turn."""
        self.abandon()
        try:
            self._stop()
        finally:
            self.give_up(error)

    # -- its lease and its state -------------------------------------------------------------------------------------

    def take(self, paused: int = 0) -> None:
        """Waits for the lease and moves the state in. `paused` is the lease before the pause, if there was one."""
        link = self.link
        while True:
            try:
                self._line_up()
                lease = link.lease_for(self.kind, self.iteration, self._check_wanted, self._accepts, paused)
                self._move_in(lease)
            except BaseException as error:
                if not self.arriving:
                    self._step_out()
                    if not paused:
                        self._forget()
                    raise
                self._arrived()
                self.give_up(error)
                if self.lost and isinstance(error, Exception):
                    raise link.lost(f"{self} lost its lease before it began") from error
                raise
            self._arrived()
            try:
                if self._has_started(lease):
                    return
            except BaseException as error:
                self.give_up(error)
                raise
            with link.lock:
                self.lease, self.lost = None, ""

    def _accepts(self, lease: Held) -> bool:
        """Takes the lease, with the state that has stayed; False while other state leaves, or if the lease is over."""
        link = self.link
        link.take_off(self.kind, but=self.state)
        with link.lock:
            has_left = link.has_left(self.kind)
            self._check_wanted()
            if not has_left or lease.epoch in link.over:
                return False
            self.lease, self.arriving, self.in_line = lease, True, False
            self.loaded = link.unpark(self.kind)
            return True

    def _has_started(self, lease: Held) -> bool:
        """Tells the controller that the phase starts. False if the lease does not hold: the state is off again then."""
        link = self.link
        holds = link.report(Said.STARTED, lease.epoch).holds
        if holds and not self.lost:
            return True
        self.move_off()
        if holds:  # but other processes of the job have given it up
            link.fail(lease.epoch, self.lost)
        else:
            link.report(Said.OFFLOADED, lease.epoch)
        return False

    def _arrived(self) -> None:
        """The state has arrived, or won't. If it is just told to break off, waits until it was told."""
        lock = self.link.lock
        with lock:
            self.arriving = False
            lock.wait_for(lambda: not self.telling, HOOK_GRACE_S)

    def give_up(self, error: BaseException) -> None:
        """Moves the state off, and tells the controller why; if moving fails, nothing, as that would free the nodes."""
        lease = self.lease
        try:
            if lease is not None:
                self.link.take_off(self.kind)
            self.move_off()
        finally:
            with self.link.lock:
                self.lease = None  # no sign of life is given for it any more, however long telling takes
            try:
                if lease is not None and self.kind not in self.link.stuck:
                    self._report_failed(lease.epoch, reason_of(error))
            finally:
                self._forget()  # from here on another stint may ask, and does not get the lease that was given up

    def move_off(self) -> float:
        if self.lease is None or not self.loaded:
            return 0.0
        took_s = self.link.clear(self.kind, self.loaded)
        with self.link.lock:
            self.loaded = ()
            self.link.lock.notify_all()
        return took_s

    def _move_in(self, lease: Held) -> None:
        if self.loaded:  # it has stayed
            self._load_s = None
            return
        self._load_s = 0.0
        for part in self.state if lease.nodes else ():  # a sync has no nodes to move state to
            with self.link.lock:
                if self.lost or self.abandoned:
                    return
                self.loaded += (part,)
            self._load_s += load((part,))

    def _leave(self, lease: Held) -> float | None:
        """State stays on the nodes if it may. This is noted before the controller is told: its order to move the state
        off may come before its answer.

        Returns the seconds that moving the state off took, or None if it stays.
        """
        with self.link.lock:
            self.link.keeps |= lease.keep
            stays = lease.keep and not self.disturbed and not self.link.leaves and self.link.sure_s > 0
            if stays:
                self.link.parked[self.kind] = (lease.epoch, self.loaded)
                self.loaded = ()
                self.link.lock.notify_all()
        return None if stays else self.move_off()

    def _finish(self, lease: Held) -> bool:
        """Whether the phase counts. If other processes have paused it, this one has only to finish its next lease, too.

        To hear whether it counts it asks again. If that brings a lease, it is kept for the script for a lease's time.
        """
        link, counts = self.link, False
        try:
            while True:
                turn = self._say_finished(lease)
                if turn.lease is None or turn.lease.epoch == lease.epoch or not turn.lease.resumed:
                    counts = turn.done
                    return counts
                lease = turn.lease
        finally:
            if not counts:
                with link.lock:
                    link.unwanted[self.kind, self.iteration] = monotonic() + link.lease_s

    def _say_finished(self, lease: Held) -> Turn:
        link, epoch = self.link, lease.epoch
        with link.lock:
            link.finished.add(epoch)
            link.never_again(epoch)
        try:
            heard = self._report_finished(epoch)
            if lease.keep and not heard.holds:  # the state may not stay after all, and must be said to have left
                link.leave_behind_nothing(self.kind, epoch)
            return link.outcome(self.kind, self.iteration, heard)
        finally:
            with link.lock:
                link.finished.discard(epoch)

    def _report_finished(self, epoch: int) -> Heard:
        """Says that state stays only while the lease surely holds: later the message would free nodes with state on."""
        link = self.link
        if self.kind in link.parked:
            try:
                return link.report(Said.FINISHED, epoch, patience_s=max(link.sure_s, _LEAST_S), left=False)
            except Unreachable:
                link.take_off(self.kind)
        return link.report(Said.FINISHED, epoch, left=link.has_left(self.kind))

    def _report_failed(self, epoch: int, reason: str) -> None:
        try:
            self.link.fail(epoch, reason, FAIL_PATIENCE_S)
        except RollmuxError as error:
            log.warning("%s has failed, and the controller could not be told: %s", self, error)

    def _line_up(self) -> None:
        link = self.link
        with link.lock:
            link.lock.wait_for(self._may_line_up)
            before = link.stints.get(self.kind)
            if self.abandoned:
                raise LeaseLost(f"{self} is no longer waited for")
            if before is not None and before is not self:
                before._step_out()
            link.stints[self.kind] = self
            self.in_line = True
            link.unwanted.pop((self.kind, self.iteration), None)

    def _may_line_up(self) -> bool:
        before = self.link.stints.get(self.kind)
        if before is None or before is self or self.abandoned:
            return True
        if before.is_live:
            raise RuntimeError(f"{before} is under way in this process: a phase can't be entered twice at once")
        return before.abandoned and before.in_line

    def _check_wanted(self) -> None:
        if self.abandoned or self.link.stints.get(self.kind) is not self:
            raise LeaseLost(f"{self} is no longer waited for")

    def _step_out(self) -> None:
        """Leaves the line: if a lease still comes, nobody wants it, unless somebody asks again."""
        with self.link.lock:
            if self.in_line:
                self.link.unwanted[self.kind, self.iteration] = monotonic()
            self.in_line = False

    def _stop(self) -> None:
        """Returns once no order is under way; from here on none is begun."""
        lock = self.link.lock
        self.leave_off()
        with lock:
            lock.wait_for(lambda: not self.heeding or self._only_waits(), HOOK_GRACE_S)
            lock.wait_for(lambda: not self.paused or self._only_waits())
            if self._only_waits():
                self._step_out()

    def _only_waits(self) -> bool:
        """Whether it is paused and in line for a turn that nobody waits for: none of its state is on the nodes."""
        return self.abandoned and self.paused and self.in_line

    def _forget(self) -> None:
        with self.link.lock:
            self.lease = None
            if self.link.stints.get(self.kind) is self:
                del self.link.stints[self.kind]
                self.link.lock.notify_all()
