"""Asserts about code that can't be trusted, in two processes: the tests ask, the program answers, over one socket.

Invariant: in the process that judges nothing of the program runs, and no object of the program's is: values cross as
what `values.read` can make, and are compared here. So nothing that a program patches, prints or returns decides whether
an assert holds, but for operators that the tests themselves ask of its objects, as they would call a method. What can't
be asked so ends as `UNASKABLE`, by what the tests want of any program and not by what this one says.
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
    """In the program's process: runs it, then answers until the tests are done."""
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
    """In the judging process: ends with a status that says how the tests went."""
    status = FAILED
    try:
        status, why = verdict(tests, socket.socket(fileno=CHANNEL))
        if why:
            print(" ".join(why.split()), file=sys.stderr)
    finally:  # whatever the tests have put in the place of that stream
        sys.exit(status)


def verdict(tests: str, connection: socket.socket) -> tuple[int, str]:
    """How the tests went, and why. They pass only with a program that has run to its end, and of which they ask."""
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
    """The text of an error of the program's is asked of it, too."""
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:  # noqa: BLE001 - the verdict stands, whatever can be told of it
        return type(error).__name__
