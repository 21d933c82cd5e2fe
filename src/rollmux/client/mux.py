"""`Mux`, which `connect` gives to a job's script: phases, hooks, progress, steps.

Without a controller phases wait for nothing, so that the same script runs anywhere.
"""

import atexit
import logging
import os
from collections.abc import Callable, Iterator
from math import inf
from operator import index
from threading import RLock
from typing import TypeVar

from rollmux.client.aside import Aside
from rollmux.client.errors import AlreadyCommitted, LeaseLost, reason_of, sendable
from rollmux.client.exits import Exit, failed_by
from rollmux.client.heart import Heart
from rollmux.client.kin import Kin
from rollmux.client.link import Link
from rollmux.client.orders import lose
from rollmux.client.phase import Phase
from rollmux.client.residency import State, as_state, load
from rollmux.client.stint import Stint
from rollmux.client.timings import Timings
from rollmux.errors import RollmuxError
from rollmux.mux.job import PhaseKind
from rollmux.protocol.messages import Done, Leave, Profile
from rollmux.system import peak_bytes

log = logging.getLogger("rollmux")

Hook = TypeVar("Hook", bound=Callable[..., object])

HOOKS = ("pause", "resume", "shrink", "extend", "lost")
# An ending process waits no longer for a controller that is away: without signs of life the job is ended anyway.
LEAVE_PATIENCE_S = 10.0
# The `Mux`es of this process that are closed, but whose state may still be on their nodes.
_LINGERING: "list[Mux]" = []


class Mux:
    """One process's part in the cluster. `owner`: the process takes its leave itself, as no launcher does it."""

    def __init__(self, link: Link | None, timings: Timings, owner: bool) -> None:
        self.timings = timings
        self._link = link
        self._owner = owner
        self._pid = os.getpid()
        self._closed = False
        self._profiled: Profile | None = None  # the last profile that the controller was told
        self._syncs = False  # the script has sync phases of its own
        self._here: list[object] = []  # state that was loaded, where there is no controller
        self._once = RLock()  # held for what the first thread that enters a phase does for all
        self._is_syncing = False
        self._aside: Aside | None = None
        self._exit = Exit()
        if link is not None:
            self._aside = Aside(link)
            self._aside.start()
            Heart(link).start()
            atexit.register(self._at_exit)
            self._exit.watch()

    # -- phases ------------------------------------------------------------------------------------------------------

    def phase(self, kind: str, state: object = None, iteration: int | None = None) -> Phase:
        """A phase, as a decorator or as a context: `kind` is "rollout", "train" or "sync".

        `state` is what the phase needs on its nodes: an object, or several, that may have `load()` and `offload()`.
        """
        try:
            known = PhaseKind(kind)
        except ValueError:
            kinds = ", ".join(each.value for each in PhaseKind)
            raise ValueError(f"there is no phase {kind!r}: there are {kinds}") from None
        self._syncs |= known is PhaseKind.SYNC
        return Phase(self, known, as_state(state), iteration)

    def steps(self, n: int) -> Iterator[int]:
        """The iterations from the first that is not committed to the last of `n`. A lost iteration comes again.

        If only its training was lost, its rollout counts: train with the same responses once more.
        """
        self._sync_if_due()  # if an earlier loop was broken off, its last step may be trained and not synced
        step, link = self.synced, self._link
        while step < n:
            lost = link.losses if link is not None else 0
            yield step
            self._sync_if_due()
            again = link is not None and link.losses > lost and self.synced <= step
            step += not again

    @property
    def attached(self) -> bool:
        """Whether there is a controller."""
        return self._link is not None

    @property
    def rollout_nodes(self) -> tuple[str, ...]:
        """The nodes for rollouts in the job's place, in their order; none without a controller."""
        return self._link.attached.rollout_nodes if self._link is not None else ()

    @property
    def roams(self) -> bool:
        """Whether a rollout runs on some of `rollout_nodes` that are free (the phase's `nodes`), and not on all."""
        return self._link is not None and 0 < self._link.attached.rollout_holds < len(self.rollout_nodes)

    @property
    def train_nodes(self) -> tuple[str, ...]:
        """The nodes for training in the job's place; none without a controller."""
        return self._link.attached.train_nodes if self._link is not None else ()

    @property
    def kin(self) -> Kin:
        """This process among the processes of the job. Looks up the controller's address."""
        return Kin.of(self._link) if self._link is not None else Kin()

    @property
    def measuring(self) -> bool:
        """Whether the controller has yet to hear how long phases take: until then each phase is to do all its work."""
        return self._link is not None and self.timings.is_measuring

    @property
    def drain_s(self) -> float:
        """How long state may take to leave nodes that others need; endless without a controller."""
        return min(self._link.attached.drain_s, self._link.lease_s) if self._link is not None else inf

    @property
    def synced(self) -> int:
        """How many iterations are committed."""
        return self._link.next[PhaseKind.SYNC] if self._link is not None else 0

    @property
    def is_own(self) -> bool:
        """Used by phases: whether this is the process that has connected, and not a child of it."""
        return os.getpid() == self._pid

    def open_stint(self, kind: PhaseKind, state: State, iteration: int | None) -> Stint | None:
        """Used by phases: a new passage through the phase, or None without a controller."""
        link = self._link
        if link is None:
            self._load_once(state)
            return None
        if not self.is_own:
            raise RuntimeError(f"{kind.value} can't be entered in a child of the process that has connected")
        if link.wire.closing.is_set():
            raise RuntimeError(f"job {link.job} has taken its leave: {kind.value} can't be entered any more")
        self._exit.is_overruled()
        if kind is PhaseKind.ROLLOUT:
            self._sync_if_due()
        return Stint(link, kind, link.next[kind] if iteration is None else index(iteration), state)

    def _load_once(self, state: State) -> None:
        """Without a controller the first phase that needs a state loads it, and the state stays."""
        with self._once:
            for part in state:
                if all(part is not here for here in self._here):
                    load((part,))
                    self._here.append(part)

    def _sync_if_due(self) -> None:
        """Ends a trained iteration with an empty sync phase, if the script has no sync phases of its own."""
        link = self._link
        if link is None or self._syncs:
            return
        with self._once:
            if self._is_syncing:  # this thread is in the loop below: a signal's handler ends the job
                return
            self._is_syncing = True
            try:
                while link.next[PhaseKind.TRAIN] > self.synced:
                    self._sync(link)
            finally:
                self._is_syncing = False

    def _sync(self, link: Link) -> None:
        stint = Stint(link, PhaseKind.SYNC, self.synced, ())
        try:
            stint.begin()
            stint.end()
            link.counts(PhaseKind.SYNC, stint.iteration)
        except (LeaseLost, AlreadyCommitted):
            pass  # it did nothing: the loop does it again if it does not count
        except BaseException as error:  # Ctrl-C may come at any point: nobody else would end the stint
            stint.fail(error)
            raise

    def measured(self) -> None:
        """Used by phases: one more is done and measured. Tells the controller the profile if there is news in it."""
        link, aside = self._link, self._aside
        if link is None or aside is None or link.rank:
            return
        profile = self.timings.profile(link.attempt, peak_bytes())
        told = self._profiled
        if profile is not None and (told is None or _switches(told) != _switches(profile)):
            self._profiled = profile
            aside.profile(profile)

    # -- what else a job tells and is told ---------------------------------------------------------------------------

    def progress(self, done: int, total: int) -> None:
        """Tells that `done` of the rollout's `total` responses are done. Costs next to nothing and never fails."""
        if self._aside is not None:
            self._aside.progress(done, total)

    def runtime_hook(self, name: str) -> Callable[[Hook], Hook]:
        """Registers the function that obeys this order in the middle of a phase. It is called in another thread, and
        only once the order before it is carried out; `lost` is called at once.

        - `pause()` stops the work at a safe point, and `resume()` lets it go on; between them the state is moved off
        - `shrink(keep, free)` moves the rollout's tail off the nodes that are to be free
        - `extend(nodes, added)` lets the work use the nodes `added`, too, from now on
        - `lost(reason)` hears that the work under way will not count, and may break it off
        """
        if name not in HOOKS:
            raise ValueError(f"there is no runtime hook {name!r}: there are {', '.join(HOOKS)}")

        def register(hook: Hook) -> Hook:
            if self._link is not None:
                self._link.hooks[name] = hook
            return hook

        return register

    @property
    def stop_reason(self) -> str:
        """Why the job is to end, if it is; the next phase raises Stopped."""
        return self._link.stop if self._link is not None else ""

    # -- the end -----------------------------------------------------------------------------------------------------

    def close(self, failed: str = "") -> None:
        """This process has done its part, or has failed, as `failed` then tells. Does nothing in a child process."""
        link = self._link
        if link is None or self._closed or not self.is_own:
            return
        self._closed = True
        atexit.unregister(self._at_exit)
        self._exit.ignore()
        try:
            if not failed and not link.stop:
                self._sync_if_due()
            if self._owner:
                self._break_off()
                self._leave(link, failed)
        except RollmuxError as error:
            log.warning("job %s could not take its leave: %s", link.job, error)
        finally:
            if self._aside is not None:
                self._aside.close()
            if self._owner or link.stop or not link.keeps:
                link.wire.close()
            else:  # it may do other work yet: the heart moves its state off once others want the nodes, and says so
                link.lingers = True
                atexit.register(self._at_exit)
                _LINGERING.append(self)

    def _break_off(self) -> None:
        """State that is on its way in, for a phase that nobody waits for any more, need not arrive."""
        link = self._link
        for stint in list(link.stints.values()) if link is not None else ():
            if stint.abandoned and stint.lease is not None:
                lose(stint, stint.lease.epoch, "the job ends")

    def _leave(self, link: Link, failed: str = "") -> None:
        link.move_all_off(self.drain_s)
        leave = Leave(link.attempt, sendable(failed), link.rank, link.instance)
        link.send("leave", leave, Done, patience_s=LEAVE_PATIENCE_S)

    def _at_exit(self) -> None:
        failed, link = self._exit.reason, self._link
        self.close(failed)
        if link is None or not self.is_own:
            return
        try:
            if link.lingers and link.processes > 1 and not (failed or link.wire.closing.is_set()):
                self._leave(link)  # else nobody would say that this process's state has left the nodes
        except RollmuxError as error:
            log.warning("a process of job %s could not take its leave: %s", link.job, error)
        finally:
            link.wire.close()

    def __enter__(self) -> "Mux":
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, SystemExit):
            self.close(failed_by(error.code))
        else:
            self.close("" if error is None else reason_of(error))


def make_way(job: str, rank: int) -> None:
    """Moves off the state that the job's closed `Mux` has left: a new `Mux` will speak for the job, and not know of it.

    Raises RollmuxError if the state can't leave.
    """
    for mux in [each for each in _LINGERING if each.is_own]:
        link = mux._link
        if link is not None and (link.job, link.rank) == (job, rank):
            link.move_all_off(mux.drain_s)
            link.wire.close()
        if link is None or link.wire.closing.is_set():
            _LINGERING.remove(mux)
            atexit.unregister(mux._at_exit)


def _switches(profile: Profile) -> tuple[object, object]:
    return profile.rollout_switch_s, profile.train_switch_s
