"""How commands find the controller, and what they say when they don't.

The URL and the token are given, or in the environment, or in the folder of a controller on this machine.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import httpx
import typer

from rollmux.mux.codec import decode

T = TypeVar("T")

Url = Annotated[str, typer.Option("--url", envvar="ROLLMUX_URL", help="Where the controller is.", show_default=False)]
Token = Annotated[
    str, typer.Option("--token", envvar="ROLLMUX_TOKEN", help="Who calls.", show_default=False, show_envvar=True)
]
Folder = Annotated[
    Path | None,
    typer.Option("--folder", envvar="ROLLMUX_FOLDER", help="The controller's folder [default: ~/.rollmux]."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print data instead of text.")]

TIMEOUT_S = 30.0


def folder_of(folder: Path | None) -> Path:
    """The folder of the controller on this machine."""
    return (folder or Path(os.environ.get("ROLLMUX_FOLDER") or Path.home() / ".rollmux")).expanduser()


class CallRefused(typer.BadParameter):
    """The controller's answer to a call that it did not take."""


@dataclass(frozen=True, slots=True)
class Remote:
    """The controller."""

    url: str
    token: str

    def get(self, kind: type[T], path: str, **query: object) -> T:
        return self._read(kind, self._call("GET", path, params=query))

    def post(self, kind: type[T], path: str, body: object = None) -> T:
        return self._read(kind, self._call("POST", path, json=body))

    def _read(self, kind: type[T], data: dict[str, Any]) -> T:
        known = getattr(kind, "__dataclass_fields__", {})
        return decode(kind, {name: value for name, value in data.items() if name in known})

    def _call(self, method: str, path: str, **what: Any) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self.token}"}
        try:
            answer = httpx.request(method, f"{self.url}{path}", headers=headers, timeout=TIMEOUT_S, **what)
        except httpx.HTTPError as error:
            raise CallRefused(f"no controller answers at {self.url} ({error}); is `rollmux serve` running?") from error
        try:
            data: dict[str, Any] = answer.json()
        except ValueError as error:
            raise CallRefused(f"{self.url} is no RollMux controller: it answered {answer.status_code}") from error
        if answer.is_error:
            problems = "".join(f"\n  {problem}" for problem in data.get("problems", ()))
            raise CallRefused(f"{data.get('error', answer.status_code)}{problems}")
        return data


def remote(url: str, token: str, folder: Path | None) -> Remote:
    """The controller that is meant."""
    place = folder_of(folder)
    found = url or _written(place / "url")
    if not found:
        raise typer.BadParameter(f"where is the controller? Give --url, or start one here: no {place / 'url'}")
    return Remote(found.rstrip("/"), token or _written(place / "admin.token"))


def _written(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip() if path.is_file() else ""
