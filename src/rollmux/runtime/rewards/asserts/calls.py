"""Asserts about code that can't be trusted, in two processes: the tests ask, the program answers, over one socket.

Invariant: nothing of the program runs in the process that judges, and none of its objects is there: values cross as
what `values.read` can make, and are compared here. So nothing that a program patches, prints or returns decides whether
an assert holds, except operators that the tests themselves ask of its objects, as they would call a method. Questions
that can't be asked in this way end as `UNASKABLE`: what the tests want of any program decides that, not what this one
says.
"""

import socket
import sys
from types import ModuleType
from typing import NoReturn

from rollmux.runtime.rewards.asserts.answering import Answers
from rollmux.runtime.rewards.asserts.asking import BROKEN_TESTS, FAILED, MOST_SENT_BYTES, PASSED, Exited, Link, Over
from rollmux.runtime.rewards.asserts.collecting import call_uncalled
from rollmux.runtime.rewards.asserts.reading import Names, Solution, Tests, compiled
from rollmux.runtime.sandbox import frames

CHANNEL = 3


def serve(source: str) -> None:
    """Called in the program's process: runs the program, then answers until the tests are done."""
    module = ModuleType("solution")
    sys.modules["solution"] = module
    exec(compile(source, "program.py", "exec"), module.__dict__)
    answer_all(socket.socket(fileno=CHANNEL), Answers(module.__dict__))


def answer_all(connection: socket.socket, answers: Answers) -> None:
    while True:
        try:
            head, blobs = frames.receive(connection, MOST_SENT_BYTES)
        except frames.BrokenFrame:
            return
        connection.sendall(answers.answer(head, blobs))


def check(tests: str) -> NoReturn:
    """Called in the judging process: ends it with a status that says how the tests went."""
    status = FAILED
    try:
        status, why = verdict(tests, socket.socket(fileno=CHANNEL))
        if why:
            print(" ".join(why.split()), file=sys.stderr)
    finally:  # even if the tests have replaced stderr by something that fails
        sys.exit(status)


def verdict(tests: str, connection: socket.socket) -> tuple[int, str]:
    """How the tests went, and why. They pass only if the program has run to its end and they asked it something."""
    try:
        code = compiled(tests)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return BROKEN_TESTS, str(error)
    link = Link(connection, expects_stop="StopIteration" in tests)
    names, begun = Names(link, code), 0
    sys.modules["solution"] = Solution(link)
    sys.modules["__main__"] = Tests(names)
    sys.modules["doctest"] = None  # type: ignore[assignment]  # it would find nothing of the program's, and be content
    try:
        link.ask("bool", True)
        begun = link.asked
        exec(code, names)
        call_uncalled(tests, names, link)
        ended = PASSED, ""
    except Over:
        ended = FAILED, ""
    except Exited as error:
        ended = FAILED, _told(error)
    except SystemExit as error:
        ended = (FAILED, "the tests have ended themselves") if error.code else (PASSED, "")
    except ImportError as error:
        missing = error.name is not None and error.name.partition(".")[0] != "solution"
        ended = BROKEN_TESTS if missing else FAILED, _told(error)
    except Exception as error:  # noqa: BLE001 - however a test fails, it has failed
        ended = FAILED, _told(error)
    if link.over is not None:
        return link.over.status, link.over.why
    if link.asked == begun:
        return BROKEN_TESTS, f"they ask nothing of the program {ended[1]}".strip()
    return ended


def _told(error: BaseException) -> str:
    """An error as text. If the error is the program's, its text is asked of the program, and that may fail."""
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:  # noqa: BLE001 - the verdict stands, whatever can be told of it
        return type(error).__name__
