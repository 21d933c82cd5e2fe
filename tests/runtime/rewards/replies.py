"""What functions say to responses."""

import os
import socket
import sys
import time
from typing import Any

from rollmux.runtime.sandbox import frames


def told(said: str) -> str | None:
    return None if said == "bye" else f"{said}!"


async def told_soon(said: str) -> str:
    return f"{said}, soon"


def prints(said: str) -> str:
    sys.stdout.write("noise\n")
    return said


def number(said: str) -> int:
    return 3


def long(characters: int, of: str) -> str:
    return of * characters


def same(reply: Any) -> Any:
    return reply


def pair() -> Any:
    return ({"role": "tool", "content": "4"}, {"role": "user", "content": "So?"})


def half() -> str:
    return "\ud800"


def raises(said: str) -> str:
    raise ValueError(f"not {said}")


def hangs(said: str) -> str:
    time.sleep(1000)
    return said


def exits(said: str) -> str:
    os._exit(0)


def forges(reply: Any, trouble: Any) -> None:
    """What a response may do that a function runs."""
    with socket.socket(fileno=3) as channel:
        channel.sendall(frames.packed({"reply": reply, "trouble": trouble}))
    os._exit(0)
