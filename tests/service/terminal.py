"""A program in a pseudo-terminal of its own: what it draws is read, keys are pressed."""

import os
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.service.running import clean_env

ENTER_SCREEN, LEAVE_SCREEN, SHOW_CURSOR, HOME = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h", "\x1b[H"
CTRL_C = b"\x03"
_IN_TERMINAL = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); from rollmux.cli import app; app()"
_CODES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """One `rollmux` command that believes somebody looks on."""

    def __init__(self, end: int, process: subprocess.Popen[bytes]) -> None:
        self._end, self.process = end, process
        self.drawn = ""

    @property
    def screen(self) -> str:
        """What stands there, once the latest frame is whole: frames begin at the upper left."""
        frames = _CODES.sub(_only_home, self.drawn).split(HOME)
        return frames[-2] if len(frames) > 1 else ""

    def until(self, *words: str, without: str = "\0", limit_s: float = 60.0) -> str:
        """The screen as soon as it has all these words, and not the other one."""
        give_up = time.monotonic() + limit_s
        while not (all(word in self.screen for word in words) and without not in self.screen):
            assert time.monotonic() < give_up, f"no {words} within {limit_s} s:\n{self.screen}"
            self.read(0.2)
        return self.screen

    def read(self, wait_s: float) -> bool:
        """Whether there was something to read."""
        if not select.select([self._end], [], [], wait_s)[0]:
            return False
        try:
            new = os.read(self._end, 65536)
        except OSError:  # so the end of the other side is told
            return False
        self.drawn += new.decode(errors="replace")
        return bool(new)

    def press(self, keys: bytes) -> None:
        os.write(self._end, keys)

    def ended(self, limit_s: float = 30.0) -> int:
        """Its exit status; all that it had to draw is read."""
        give_up = time.monotonic() + limit_s
        while self.process.poll() is None and time.monotonic() < give_up:
            self.read(0.1)
        while self.read(0.0):
            pass
        return self.process.wait(0)


@contextmanager
def terminal(*words: str, size: tuple[int, int] = (40, 160), kind: str = "xterm-256color") -> Iterator[Terminal]:
    """The command in a terminal of so many lines and columns."""
    outer, inner = os.openpty()
    termios.tcsetwinsize(inner, size)
    process = subprocess.Popen(
        [sys.executable, "-c", _IN_TERMINAL, *words],
        stdin=inner,
        stdout=inner,
        stderr=inner,
        start_new_session=True,
        env=clean_env(TERM=kind),
    )
    os.close(inner)
    try:
        yield Terminal(outer, process)
    finally:
        process.kill()
        process.wait()
        os.close(outer)


def _only_home(code: re.Match[str]) -> str:
    return HOME if code[0] == HOME else ""


def plain(drawn: str) -> str:
    """What was drawn, without colours and movements."""
    return _CODES.sub("", drawn)
