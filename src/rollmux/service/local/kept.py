"""The controller's end of a keeper: how one is started, and how its end is noticed.

A running keeper is held as `Watched`: this always means this very process, while its number may be given away.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from operator import methodcaller
from pathlib import Path
from threading import Thread
from typing import TypeVar

import rollmux
from rollmux.service.local import memory
from rollmux.service.local.process_tree import FOLDERS, Identity, leftovers, send
from rollmux.service.local.rank import Plan
from rollmux.system import Watched, without_name

# Without site-packages and Python's variables, which are the job's business: a keeper loads no code of others.
OPTIONS = ("-I", "-S", "-c")
_PROGRAM = (
    "import sys; sys.path += sys.argv[1 : sys.argv.index('keeper')]; "
    "from rollmux.service.local.keeper import main; main()"
)
# The time between two looks for what is left of a keeper: at first, and at most, if something can't be ended.
_ROUND_S, _LONGEST_ROUND_S = 0.02, 1.0
T = TypeVar("T")
ROOT = str(Path(rollmux.__file__).parents[1])


@dataclass(slots=True)
class Kept:
    """An attempt whose keeper is watched, or whose keeper is gone (not `watched`) and what it kept is being
    ended. Nobody waits to hear of its end once that is `told`."""

    keeper: Identity
    watched: Watched | None
    told: bool = False
    gone: asyncio.Event = field(default_factory=asyncio.Event)


def own_env() -> dict[str, str]:
    """What processes get of the controller's environment: no variable of another RollMux, and no password."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("ROLLMUX_", "PGPASS"))}


def spawn(plan: Plan) -> tuple[Watched, int]:
    """Starts a keeper; returns it and the pipe where it will say that all is up. Its plan, which may hold secrets,
    comes to it by a file without a name."""
    heard, said = os.pipe()
    given, kind = [said], os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    try:
        given.append(told := without_name("plan"))
        given.append(complaints := os.open(f"{plan.record}.keeper", kind, 0o600))
        with open(told, "w", encoding="ascii", closefd=False) as file:
            json.dump(plan._asdict(), file)
        os.lseek(told, 0, os.SEEK_SET)
        command = [sys.executable, *OPTIONS, _PROGRAM, ROOT, *FOLDERS, "keeper", plan.job, str(plan.attempt)]
        process = subprocess.Popen(
            command, cwd="/", env=own_env(), stdin=told, stdout=said, stderr=complaints, start_new_session=True
        )
    except BaseException:
        os.close(heard)
        raise
    finally:
        for descriptor in given:
            os.close(descriptor)
    try:
        watched = Watched(process.pid)
    except OSError:
        process.send_signal(signal.SIGUSR1)  # with whatever it has started by now
        process.wait()
        os.close(heard)
        raise
    process.returncode = 0  # the keeper is to outlive this object: `wait_ended` reaps it
    return watched, heard


async def answer(heard: int, wait_s: float) -> str | None:
    """Why nothing has been started, or "" if all is up; None if the keeper has said nothing in time."""
    try:
        async with asyncio.timeout(wait_s):
            await _readable(heard)
        said = os.read(heard, 2**16)
        return str(json.loads(said)["failed"]) if said else None
    except TimeoutError:
        return None
    finally:
        os.close(heard)


async def wait_ended(watched: Watched) -> None:
    """Waits until this process has ended; `watched` is closed afterwards."""
    try:
        await _readable(watched.fileno())
        watched.reap()
    finally:
        watched.close()


def ask(watched: Watched, number: signal.Signals) -> None:
    """Sends a signal to a keeper, and one that lets it go on, should somebody have halted it."""
    with suppress(ProcessLookupError):
        watched.send(number)
        watched.send(signal.SIGCONT)


async def end_leftovers(keeper: Identity) -> None:
    """For a keeper that is gone without a word: kills the processes that it kept, and removes their shared memory."""
    round_s = _ROUND_S
    while found := await beside(lambda: leftovers([keeper])):
        for process in found[keeper]:
            send(process, signal.SIGKILL)
        await asyncio.sleep(round_s)
        round_s = min(2 * round_s, _LONGEST_ROUND_S)
    await asyncio.to_thread(remove_memory, keeper)


async def beside(look: Callable[[], T]) -> T:
    """Looks in a thread that no end of the program waits for: a look at a process asleep in a driver may hang too."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[T] = loop.create_future()

    def tell(into: Callable[[asyncio.Future[T]], None]) -> None:
        if not found.done():
            into(found)

    def work() -> None:
        try:
            into = methodcaller("set_result", look())
        except Exception as error:  # noqa: BLE001  it is raised where it is waited for
            into = methodcaller("set_exception", error)
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(tell, into)

    Thread(target=work, daemon=True).start()
    return await found


def remove_memory(keeper: Identity) -> None:
    """Removes the memory that the keeper's processes have shared, once they are gone."""
    memory.remove(memory.path_of(keeper.marker, keeper.pid))


async def _readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_reader(descriptor, lambda: None if ready.done() else ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_reader(descriptor)
