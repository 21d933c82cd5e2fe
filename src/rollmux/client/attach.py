"""From the environment to a job at work: submits it where that is wanted, and waits until it has its place."""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from rollmux.client.link import FIRST_WAIT_S, Link, Saying, job_path
from rollmux.client.mux import Mux, make_way
from rollmux.client.shown import show_log
from rollmux.client.timings import Timings
from rollmux.client.wire import Wire
from rollmux.errors import InvalidSpec, Problem
from rollmux.protocol.addresses import is_address
from rollmux.protocol.messages import Attach, Attached, Done

# Whoever waits asks no more often.
LEAST_WAIT_S = 0.1
# What a launcher needs to know. Who connects by itself is the job already: nothing is to be launched.
_LAUNCHED = ("command", "env", "folder")


@dataclass(frozen=True, slots=True)
class Place:
    """Who this process is, and where the controller is."""

    url: str
    token: str
    job: str
    attempt: int | None
    rank: int
    processes: int


def connect(
    url: str | None = None,
    token: str | None = None,
    job: str | Path | Mapping[str, Any] | None = None,
    *,
    attempt: int | None = None,
    rank: int | None = None,
    processes: int | None = None,
    wait_s: float = 10.0,
    patience_s: float = 3600.0,
    profile: int = 3,
    transport: httpx.BaseTransport | None = None,
) -> Mux:
    """This process's part in the cluster; where there is no controller in the environment, all runs straight through.

    `job` is a name, or a whole job (data, or the path of a YAML file) that is submitted first unless the environment
    names one. Waits for the job's place. `patience_s` is how long a controller may be away before Unreachable is
    raised, `profile` how many iterations are measured (0: none), `wait_s` how long one call may be parked.
    """
    if profile < 0:
        raise InvalidSpec("connection", (Problem("profile", profile, "at least 0", "give 0 to measure nothing"),))
    place = _place(url, token, job, attempt, rank, processes)
    if not place.url:
        return Mux(None, Timings(0), owner=False)
    _require_address(place.url)
    _require_token(place.token)
    show_log()
    wire = Wire(place.url, place.token, patience_s, transport)
    wait_s = max(LEAST_WAIT_S, wait_s)
    instance = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
    try:
        name = place.job or _submit(wire, job, place.processes)
        make_way(name, place.rank)
        attached = _attach(wire, name, place, wait_s, instance)
    except BaseException:
        wire.close()
        raise
    timings = Timings(profile if place.rank == 0 else 0)
    link = Link(wire, name, attached, place.rank, wait_s, timings, place.processes, instance)
    return Mux(link, timings, owner=place.attempt is None)


def _place(
    url: str | None,
    token: str | None,
    job: object,
    attempt: int | None,
    rank: int | None,
    processes: int | None,
) -> Place:
    """What was said, and for the rest the environment."""
    if rank is None and processes is None:
        _require_ranks_of_the_launcher()
    named = job if isinstance(job, str) and not _is_file(job) else None
    return Place(
        url if url is not None else os.environ.get("ROLLMUX_URL", ""),
        (token if token is not None else os.environ.get("ROLLMUX_TOKEN", "")).strip(),
        named if named is not None else os.environ.get("ROLLMUX_JOB", ""),
        attempt if attempt is not None else _number("ROLLMUX_ATTEMPT"),
        rank if rank is not None else _number("ROLLMUX_RANK", "RANK") or 0,
        processes if processes is not None else _number("ROLLMUX_PROCESSES", "WORLD_SIZE") or 1,
    )


def _require_ranks_of_the_launcher() -> None:
    """Several below one that the controller has started would each be that one, and take its place from the others."""
    started, world, place = (_number(name) for name in ("ROLLMUX_PROCESSES", "WORLD_SIZE", "LOCAL_RANK"))
    if started and world and place and started < world:
        limit = f"0 where the controller has started {started} of the {world} processes"
        remedy = (
            "let it start all of them, without torchrun (`processes` in the job's file), or connect in the first alone"
        )
        raise InvalidSpec("environment", (Problem("LOCAL_RANK", place, limit, remedy),))


def _require_address(url: str) -> None:
    """A call to something else would be repeated for as long as a controller may be away."""
    if not is_address(url):
        remedy = "write it with http:// or https://"
        raise InvalidSpec("connection", (Problem("ROLLMUX_URL", url, "like http://machine:8421", remedy),))


def _require_token(token: str) -> None:
    """Nor does a header hold everything. What it is may be half a secret: it is not told."""
    if not (token.isascii() and token.isprintable()):
        remedy = "copy it as it was shown"
        raise InvalidSpec("connection", (Problem("ROLLMUX_TOKEN", "...", "letters, digits and signs", remedy),))


def _number(*names: str) -> int | None:
    """The first of these that the environment has."""
    for name in names:
        text = os.environ.get(name)
        if text:
            if not text.isdecimal():
                raise InvalidSpec("environment", (Problem(name, text, "a whole number", "mend it or leave it out"),))
            return int(text)
    return None


def _is_file(job: object) -> bool:
    return isinstance(job, Path) or (isinstance(job, str) and job.endswith((".yaml", ".yml", ".json")))


def _submit(wire: Wire, job: object, processes: int) -> str:
    """Submits the job, which may have been done before, and returns its name."""
    data = job
    if isinstance(job, str | Path):
        from rollmux.protocol.plain_yaml import read_plain  # noqa: PLC0415  a YAML reader only where there is YAML

        data = read_plain(Path(job), f"job file {str(job)!r}")
    if not isinstance(data, Mapping) or not isinstance(data.get("name"), str):
        remedy = "set ROLLMUX_JOB, or give connect(job=...) a name, a dict or the path of a YAML file"
        raise InvalidSpec("job", (Problem("job", job, "a job with a name", remedy),))
    mine = {key: value for key, value in data.items() if key not in _LAUNCHED}
    wire.post("/v1/jobs", {**mine, "processes": processes}, Done)
    return str(data["name"])


def _attach(wire: Wire, name: str, place: Place, wait_s: float, instance: str) -> Attached:
    """Waits for the job's place, however long that takes, and says why."""
    said, parked_s = Saying("waiting for a place"), min(wait_s, FIRST_WAIT_S)
    while True:
        call = Attach(instance, place.rank, place.processes, place.attempt, parked_s)
        attached = wire.send(f"{job_path(name)}/attach", call, Attached, wait_s=parked_s)
        if attached.attempt:
            return attached
        said.once(attached.reason)
        parked_s = wait_s
