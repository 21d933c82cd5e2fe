"""Turns errors that a person can mend into messages of the command line."""

from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches

import typer

from rollmux.errors import InvalidSpec, RollmuxError

SHOWN_PROBLEMS = 20
SHOWN_CHOICES = 20


@contextmanager
def refusals() -> Iterator[None]:
    """Turns descriptions that can't be accepted and files that can't be used into messages."""
    try:
        yield
    except InvalidSpec as error:
        more = len(error.problems) - SHOWN_PROBLEMS
        if more <= 0:
            raise typer.BadParameter(str(error)) from error
        shown = str(error).splitlines()[: 1 + SHOWN_PROBLEMS]
        raise typer.BadParameter("\n".join([*shown, f"  and {more} more"])) from error
    except BrokenPipeError:
        raise  # the reader of the output wants no more
    except OSError as error:
        raise typer.BadParameter(why_not(error)) from error


@contextmanager
def all_refusals() -> Iterator[None]:
    """Like `refusals`, also for all other errors of RollMux's own."""
    try:
        with refusals():
            yield
    except RollmuxError as error:
        raise typer.BadParameter(str(error)) from error


@contextmanager
def run_refusals() -> Iterator[None]:
    """Turns what ends a run into messages: a wrong description is a wrong parameter, all else an error of its own."""
    try:
        yield
    except InvalidSpec as error:
        raise typer.BadParameter(str(error)) from error
    except BrokenPipeError:
        raise  # the reader of the output wants no more
    except (RollmuxError, OSError) as error:
        typer.echo(f"Error: {why_not(error)}", err=True)
        raise typer.Exit(1) from error


@contextmanager
def torch_wanted() -> Iterator[None]:
    """Stands around imports that need torch: says what to install if it is missing."""
    try:
        yield
    except ImportError as error:
        raise typer.BadParameter(f"{error.name} is missing: install rollmux[torch]") from error


def why_not(error: RollmuxError | OSError) -> str:
    """The message of an error; if it is the system's, with the file that it is about."""
    if not isinstance(error, OSError):
        return str(error)
    where = "" if error.filename is None else f"{error.filename}: "
    return where + (error.strerror or str(error) or type(error).__name__)


def require_name(what: str, name: str, known: tuple[str, ...]) -> None:
    """Raises BadParameter, with what may be meant, if this is not a known name."""
    if name not in known:
        raise typer.BadParameter(f"there is no {what} {name!r}{nearest(name, known)}")


def nearest(name: str, known: tuple[str, ...]) -> str:
    """Which of the known names may be meant, as the end of a sentence: the nearest if it is near, and all if they are
    few."""
    near = get_close_matches(name, known, n=1)
    hint = f"; the nearest is {near[0]}" if near else ""
    return hint + (f"; choose from {', '.join(known)}" if 0 < len(known) <= SHOWN_CHOICES else "")
