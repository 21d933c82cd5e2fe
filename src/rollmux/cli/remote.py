"""How commands find the controller, and what they say when they don't.

The URL and the token are given by options, or by the environment, or by the folder of a controller on this machine; a
folder that is named as an option comes before the environment. The folder's token goes to no other controller.
"""

import os
import shlex
import signal
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import httpx
import typer

from rollmux.cli.options import AsJson, Folder, folder_of
from rollmux.cli.outputs import show
from rollmux.client.wire import TRUST, UNTRUSTED, direct, read, sent_on
from rollmux.errors import InvalidSpec
from rollmux.protocol.addresses import is_address
from rollmux.protocol.views import Health

T = TypeVar("T")

TIMEOUT_S = 30.0
# How long, and how often, a controller is asked again that answers that it is starting.
STARTING_S, AGAIN_S = 20.0, 0.1
# A start has mostly ended after so long: until then the command does not say that it waits.
UNTOLD_S = 1.5

# The statuses by which a proxy says that nobody behind it answers.
AWAY = (502, 503, 504)
# The keys that each refusal of a controller has, whatever its status: some of a proxy's have the first only.
OWN = {"error", "problems"}

BY = "--url and --token, or --folder"
NO_TOKEN = "none was sent: give --token. A folder's own goes only to the address in its file `url`, as written there."


class Unknown(typer.BadParameter):
    """Neither options nor environment nor folder say yet where the controller is."""


class CallRefused(typer.BadParameter):
    """The controller has refused a call; the message is its answer."""


class NoController(CallRefused):
    """Nobody answers at the address, or not yet."""


class Untrusted(CallRefused):
    """The certificate of the one who answers can't be trusted here."""


@dataclass(frozen=True, slots=True)
class Remote:
    """The controller, as commands call it. If there is a client, all calls share its connections."""

    url: str
    token: str
    client: httpx.Client | None = None
    timeout_s: float = TIMEOUT_S
    starting_s: float = STARTING_S

    def get(self, kind: type[T], path: str, **query: object) -> T:
        return self._read(kind, self._call("GET", path, params=query))

    def post(self, kind: type[T], path: str, body: object = None) -> T:
        return self._read(kind, self._call("POST", path, json=body))

    def _read(self, kind: type[T], data: dict[str, Any]) -> T:
        try:
            return read(kind, data)
        except (KeyError, TypeError, ValueError) as error:
            raise CallRefused(f"{self.url} is no RollMux controller, or one of another version: {error!r}") from error

    def _call(self, method: str, path: str, **what: Any) -> dict[str, Any]:
        answer = self._answer(method, path, **what)
        status = answer.status_code
        try:
            data: dict[str, Any] = dict(answer.json())
        except (ValueError, TypeError):
            data = {}
        if not data or (answer.is_error and not data.keys() >= OWN):
            if status in AWAY:
                said = f"no controller answers behind {self.url} (status {status}, of a proxy)"
                raise NoController(f"{said}; is `rollmux serve` running?")
            why = f": {data['error']}" if "error" in data else ""
            raise CallRefused(f"{self.url} is no RollMux controller: it answered {status}{sent_on(answer)}{why}")
        if _is_starting(answer):
            raise NoController(str(data["error"]))
        if answer.is_error:
            problems = "".join(f"\n  {problem}" for problem in data.get("problems", ()))
            remedy = "" if self.token or status != httpx.codes.UNAUTHORIZED else f"\n  {NO_TOKEN}"
            raise CallRefused(f"{data.get('error', status)}{problems}{remedy}")
        return data

    def _answer(self, method: str, path: str, **what: Any) -> httpx.Response:
        """The answer to a call. Every call may be repeated, so one that comes while the controller starts is."""
        if self.client is None:
            with httpx.Client(transport=way_to(self.url)) as client:
                return replace(self, client=client)._answer(method, path, **what)
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        what |= {"headers": headers, "timeout": self.timeout_s}
        give_up = time.monotonic() + self.starting_s
        while True:
            try:
                answer = self.client.request(method, f"{self.url}{path}", **what)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                said = f"no controller answers at {self.url} ({error})"
                if UNTRUSTED in str(error):
                    raise Untrusted(f"{said}; {TRUST}") from error
                is_cut = isinstance(error, httpx.RemoteProtocolError) and self.url.startswith("http:")
                remedy = "does its address begin with https?" if is_cut else "is `rollmux serve` running?"
                raise NoController(f"{said}; {remedy}") from error
            if not _is_starting(answer) or time.monotonic() > give_up:
                return answer
            time.sleep(AGAIN_S)


def _is_starting(answer: httpx.Response) -> bool:
    return answer.status_code == httpx.codes.SERVICE_UNAVAILABLE and "retry-after" in answer.headers


def way_to(url: str) -> httpx.HTTPTransport:
    """The transport for calls to a controller at this URL."""
    try:
        return direct(url)
    except InvalidSpec as error:
        raise Untrusted(str(error)) from error


def remote(url: str, token: str, folder: Path | None, by: str = BY, **how: Any) -> Remote:
    """The controller that is meant. `by`: the options that say so, for messages; `how`: other fields of `Remote`."""
    if folder is not None and not _is_of_environment("ROLLMUX_FOLDER", folder):
        url = "" if _is_of_environment("ROLLMUX_URL", url) else url
        token = "" if _is_of_environment("ROLLMUX_TOKEN", token) else token
    known = token.strip()
    here = "" if url and known else _written(folder_of(folder) / "url", by)
    found = url or here
    if not found:
        raise Unknown(f"where is the controller? Give {by}, or start one here: no {folder_of(folder) / 'url'}")
    if not is_address(found):
        raise typer.BadParameter(f"{found!r} is no address of a controller: write it like http://machine:8421")
    if not known and found.rstrip("/") == here.rstrip("/"):
        known = _written(folder_of(folder) / "admin.token", by)
    if not (known.isascii() and known.isprintable()):
        raise typer.BadParameter(
            "the token is none: they are letters, digits and signs in one line, as they were shown"
        )
    return Remote(found.rstrip("/"), known, **how)


def _is_of_environment(name: str, option: Path | str) -> bool:
    """Whether an option is what the environment says: the command line has then, in all likelihood, said nothing."""
    said = os.environ.get(name, "")
    return bool(said) and type(option)(said) == option


def elsewhere(url: str, folder: Path | None) -> str:
    """Why the controller at `url` is not that of this machine's folder; "" if it is, or if a folder is named."""
    if folder is not None or not url:
        return ""
    here = folder_of(None)
    own = _written(here / "url", BY)
    if own.rstrip("/") == url.rstrip("/"):
        return ""
    return f"not the controller of {here}, " + (f"which is at {own}" if own else "which has none yet")


def env(
    wait: Annotated[float, typer.Option(min=0.0, help="So many seconds for a controller that is being started.")] = 60,
    as_json: AsJson = False,
    folder: Folder = None,
) -> None:
    """Print what a shell needs to find this machine's controller, once that is ready: `eval "$(rollmux env)"`."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # `timeout` sends it
    try:
        there = _awaited(wait, folder)
    except BaseException:
        typer.echo("false")  # so that the shell's `eval` fails, too, and jobs don't run without a controller
        raise
    found = {"ROLLMUX_URL": there.url, "ROLLMUX_TOKEN": there.token}
    show(found, as_json, *(f"export {name}={shlex.quote(value)}" for name, value in found.items()))


def _awaited(wait_s: float, folder: Path | None) -> Remote:
    """This machine's controller, once it is ready."""
    began, told = time.monotonic(), False
    while True:
        try:
            there = remote("", "", folder, "--folder", starting_s=0.0)  # else each look would wait by itself
            there.get(Health, "/readyz")
        except typer.BadParameter as error:
            may_come = isinstance(error, CallRefused | Unknown) and not isinstance(error, Untrusted)
            waited_s = time.monotonic() - began
            if waited_s > wait_s or not may_come:
                raise
            if waited_s > UNTOLD_S and not told:
                typer.echo(f"waits for a controller, {wait_s:g} s at most: {error.message}", err=True)
                told = True
            time.sleep(AGAIN_S)
        else:
            return there


def _written(path: Path, by: str) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{path} can't be read: {error}; give {by}") from error
