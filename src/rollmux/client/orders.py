"""The controller's orders to a phase that is under way: to pause, to move its tail together, to use more nodes.

Every order is carried out once, in a thread of its own, so that the signs of life go on meanwhile, and after the orders
before it: else work could come to nodes that have just been said to be free. An order for which the job has no hook, or
whose turn comes when the work is over, is ignored.
"""

import logging
from collections.abc import Callable
from functools import partial
from threading import Thread
from time import monotonic

from rollmux.client.residency import break_off
from rollmux.client.stint import Stint
from rollmux.errors import RollmuxError
from rollmux.protocol.messages import Held, Said

log = logging.getLogger("rollmux")


def heed(stint: Stint, now: Held) -> None:
    """Carries out the orders that follow from the lease as the controller sees it now."""
    with stint.link.lock:
        before = stint.lease
        if before is None or before.epoch != now.epoch or stint.paused:
            return
        stint.disturbed |= now.state in ("pausing", "shrinking", "tail")
        if not stint.working:
            return  # once it works it hears the same again, added nodes included
        stint.lease = now
    added = tuple(node for node in now.nodes if node not in before.nodes)
    if added:
        _start(stint, "extend", now, lambda: _extend(stint, now, added))
    if now.state == "pausing":
        _start(stint, "pause", now, lambda: _pause(stint, now))
    elif now.state == "shrinking" and now.free:
        _start(stint, "shrink", now, lambda: _shrink(stint, now))


def lose(stint: Stint, epoch: int, reason: str) -> None:
    """This lease is gone. Work under it may go on, but won't count; state on its way to the nodes need not arrive."""
    with stint.link.lock:
        here = stint.lease is not None and stint.lease.epoch == epoch
        if stint.lost or not here or not (stint.working or stint.arriving):
            return
        stint.lost, arriving = reason, stint.arriving
        stint.telling = arriving
    log.warning("%s has lost its lease: %s", stint, reason)
    tell = partial(_break_off, stint) if arriving else partial(stint.link.call_hook, "lost", reason)
    Thread(target=tell, name="rollmux-lost", daemon=True).start()


def _break_off(stint: Stint) -> None:
    try:
        break_off(stint.loaded)
    finally:
        with stint.link.lock:
            stint.telling = False
            stint.link.lock.notify_all()


def _start(stint: Stint, name: str, now: Held, carry_out: Callable[[], None]) -> None:
    with stint.link.lock:
        order = (now.epoch, f"{name} {now.nodes}" if name == "extend" else name)
        if order in stint.heeded or name not in stint.link.hooks:
            return
        thread = Thread(target=_carry_out, args=(stint, stint.latest, carry_out), name=f"rollmux-{name}", daemon=True)
        thread.start()
        stint.latest = thread
        stint.heeded.add(order)
        stint.heeding += 1


def _carry_out(stint: Stint, before: Thread | None, carry_out: Callable[[], None]) -> None:
    try:
        if before is not None:
            before.join()
        if stint.working:
            carry_out()
    except Exception:
        log.exception("%s could not do what was wanted of it", stint)
    finally:
        with stint.link.lock:
            stint.heeding -= 1
            stint.paused = False
            stint.link.lock.notify_all()


def _extend(stint: Stint, now: Held, added: tuple[str, ...]) -> None:
    stint.link.call_hook("extend", now.nodes, added)


def _shrink(stint: Stint, now: Held) -> None:
    keep = tuple(node for node in now.nodes if node not in now.free)
    if stint.link.call_hook("shrink", keep, now.free) and stint.working:
        stint.link.report(Said.SHRUNK, now.epoch)


def _pause(stint: Stint, now: Held) -> None:
    """Stops the work, moves off the nodes, waits in line again, and resumes the work once its turn comes."""
    link = stint.link
    if not link.call_hook("pause"):
        return
    if not _stand_aside(stint):
        # The work has ended meanwhile, or is to end: what the hook has stopped must run in the next phase.
        link.call_hook("resume")
        return
    began = monotonic()
    try:
        stint.move_off()
        stint.take(paused=now.epoch)
    except Exception as error:
        with link.lock:
            stint.lease = None
            if stint.abandoned and isinstance(error, RollmuxError):
                return  # the work has raised an error of its own
            stint.lost = str(error)
        link.call_hook("lost", stint.lost)  # the work stands still, and only the job's hook can end it
        raise
    stint.away_s += monotonic() - began
    link.call_hook("resume")


def _stand_aside(stint: Stint) -> bool:
    """Marks the phase as paused. False if its work is done, or lost: then the work has heard that it does not count."""
    with stint.link.lock:
        stint.paused = stint.working and not stint.lost
        return stint.paused
