"""`rollmux top`: the cluster as it stands, again and again: who holds what, who waits for whom, and what it costs."""

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.live import Live

from rollmux.cli.options import Folder, Token, Url
from rollmux.cli.outputs import console
from rollmux.cli.remote import NoController, remote, way_to
from rollmux.cli.top_screen import screen
from rollmux.protocol.history import HistoryView
from rollmux.protocol.views import ClusterView

# A controller that takes longer than this counts as silent: the screen is to show the present.
TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class Frame:
    """The cluster as it was at the controller's last answer; if the controller is silent now, for how long."""

    url: str
    unix_s: float
    cluster: ClusterView | None
    history: HistoryView | None = None  # no past phases; since when phases wait, where node hours went
    trouble: str = ""
    silent_s: float = 0.0

    def as_data(self) -> dict[str, Any]:
        data = asdict(self)
        if self.cluster is not None:
            for view, shown in zip(self.cluster.jobs, data["cluster"]["jobs"], strict=True):
                shown["slo_headroom"] = view.slo_headroom
        return data


class Watcher:
    """Looks at the controller, which may go and come back, at another address if its folder says so."""

    def __init__(self, url: str, token: str, folder: Path | None, client: httpx.Client) -> None:
        self._where, self._client = (url, token, folder), client
        self._last: ClusterView | None = None
        self._history: HistoryView | None = None
        self._since = time.monotonic()
        self._url = ""

    def look(self) -> Frame:
        """The cluster now. Raises BadParameter if the first look fails for a reason that will not pass by itself."""
        try:
            there = remote(*self._where, client=self._client, timeout_s=TIMEOUT_S, starting_s=0.0)
            self._url = there.url
            self._last = there.get(ClusterView, "/v1/cluster")
            self._history = there.get(HistoryView, "/v1/history", since_s=1, most=1)
        except typer.BadParameter as error:
            if not isinstance(error, NoController) and self._last is None:
                raise
            silent_s = time.monotonic() - self._since
            return Frame(self._url, time.time(), self._last, self._history, str(error), silent_s)
        self._since = time.monotonic()
        return Frame(self._url, time.time(), self._last, self._history)


def top(
    once: Annotated[bool, typer.Option("--once", help="Show it once and end.")] = False,
    every: Annotated[float, typer.Option(min=0.1, max=3600.0, help="Seconds from one look to the next.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print each look as a line of JSON.")] = False,
    url: Url = "",
    token: Token = "",
    folder: Folder = None,
) -> None:
    """Watch the cluster: nodes and who holds them, jobs, what they wait for, their SLOs, and what an hour costs."""
    shown = console()
    if not (once or as_json or (shown.is_terminal and not shown.is_dumb_terminal)):
        raise typer.BadParameter("this is no terminal that can be drawn on: say --once or --json")
    way = way_to(url if folder is None else "")  # a folder may lead elsewhere, to one that speaks TLS
    with httpx.Client(transport=way) as client, _ended_by_signals():
        watcher = Watcher(url, token, folder, client)
        if once:
            _once(watcher, as_json, shown)
        elif as_json:
            for frame in _frames(watcher, every):
                typer.echo(json.dumps(frame.as_data()))
        else:
            _live(watcher, every, shown)


def _once(watcher: Watcher, as_json: bool, shown: Console) -> None:
    frame = watcher.look()
    if frame.trouble:
        raise NoController(frame.trouble)
    if as_json:
        typer.echo(json.dumps(frame.as_data()))
    else:
        shown.print(screen(frame.url, frame.cluster, frame.history, "", shown.width))


def _live(watcher: Watcher, every: float, shown: Console) -> None:
    with Live(console=shown, screen=True, auto_refresh=False) as live:
        for frame in _frames(watcher, every):
            trouble = f"{frame.trouble} (since {frame.silent_s:.0f} s)" if frame.trouble else ""
            live.update(
                screen(frame.url, frame.cluster, frame.history, trouble, shown.width, shown.height), refresh=True
            )


def _frames(watcher: Watcher, every: float) -> Iterator[Frame]:
    """Looks again and again, each time when the next look is due; looks for which there was no time are left out."""
    due = time.monotonic()
    while True:
        yield watcher.look()
        due = max(due + every, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Ctrl-C and SIGTERM are the ways to end `rollmux top`: they are no errors, and leave the terminal as it was."""

    def end(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
