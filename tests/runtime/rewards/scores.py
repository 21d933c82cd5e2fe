"""Functions that score, as a caller of the pool may have them."""

import multiprocessing
import os
import signal
import subprocess
import time
from typing import Any


def length(text: str) -> float:
    print("what is printed does not matter")
    return len(text) / 10


def slowly(text: str) -> float:
    time.sleep(0.03)
    return len(text) / 10


def beside(text: str) -> float:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.map(len, [text])[0] / 10


def runs(text: str) -> float:
    """As scorers of reasoning-gym's and sympy's readers do."""
    return float(eval(text))


def kills_itself() -> float:
    os.kill(os.getpid(), signal.SIGKILL)
    return 1.0


async def soon(text: str) -> float:
    return len(text) / 20


def raises() -> float:
    raise RuntimeError("no judge today")


def nothing() -> None:
    return None


def too_much() -> float:
    return -1e10


def of_numpy(kind: str, value: Any) -> Any:
    import numpy  # noqa: PLC0415 - as a scoring function may

    return getattr(numpy, kind)(value)


def not_a_number() -> float:
    return float("nan")


def hangs_with_children() -> float:
    subprocess.Popen(["/bin/sleep", "1000"], start_new_session=True)
    os.fork()
    time.sleep(1000)
    return 1.0


def dies() -> float:
    os._exit(0)


def environment(name: str) -> float:
    return float(os.environ[name])
