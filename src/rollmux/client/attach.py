"""From the environment to a job at work: submits the job if the script wants that, and waits for the job's place."""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from rollmux.client.errors import reason_of, sendable
from rollmux.client.link import FIRST_WAIT_S, Link, Saying, job_path
from rollmux.client.mux import LEAVE_PATIENCE_S, Mux, make_way
from rollmux.client.shown import show_log
from rollmux.client.timings import Timings
from rollmux.client.wire import Wire
from rollmux.errors import InvalidSpec, Problem, RollmuxError
from rollmux.protocol.addresses import is_address
from rollmux.protocol.messages import Attach, Attached, Done, Leave

# A waiting script asks no more often than this.
LEAST_WAIT_S = 0.1
# The keys of a job that only a launcher needs. A script that connects by itself is the job already, so these are left
# out.
_LAUNCHED = ("command", "env", "folder", "ranks_per_process")


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
    """This process's part in the cluster. If the environment names no controller, all runs straight through.

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
        attached = _attached(wire, name, place, wait_s, instance)
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
    """What the arguments say, and the environment where they say nothing."""
    each = _number("ROLLMUX_RANKS_PER_PROCESS") or 1
    if rank is None:
        number = _number("ROLLMUX_RANK")
        rank = _number("RANK") or 0 if number is None else number * each + _below(number, each)
    if processes is None:
        started = _number("ROLLMUX_PROCESSES")
        processes = _number("WORLD_SIZE") or 1 if started is None else started * each
    named = job if isinstance(job, str) and not _is_file(job) else None
    return Place(
        url if url is not None else os.environ.get("ROLLMUX_URL", ""),
        (token if token is not None else os.environ.get("ROLLMUX_TOKEN", "")).strip(),
        named if named is not None else os.environ.get("ROLLMUX_JOB", ""),
        attempt if attempt is not None else _number("ROLLMUX_ATTEMPT"),
        rank,
        processes,
    )


def _below(number: int, each: int) -> int:
    """Which of the ranks below one process of the controller's this is, where torchrun, say, has started several.

    Two ranks with the same number would take the rank's place from each other.
    """
    place, there = _local_rank(), _number("LOCAL_WORLD_SIZE", "LOCAL_SIZE")
    if each == 1:
        _require_alone(number, place)
        return 0
    if there not in (None, each):
        remedy = "make ranks_per_process in the job's file and torchrun's --nproc-per-node the same"
        raise InvalidSpec(
            "environment", (Problem("ranks below this process", there, f"{each}, as the job says", remedy),)
        )
    if place is None or place >= each:
        limit = f"from 0 to {each - 1} where each process of the controller's starts {each} ranks"
        remedy = "let torchrun start them, or another that says so, or use connect(rank=..., processes=...)"
        raise InvalidSpec("environment", (Problem("LOCAL_RANK", place, limit, remedy),))
    return place


def _local_rank() -> int | None:
    """This rank as torchrun, say, counts those here. LOCAL_RANK may be 0 for all, if each sees only one GPU."""
    rank, there = _number("RANK"), _number("LOCAL_WORLD_SIZE")
    return rank % there if rank is not None and there else _number("LOCAL_RANK")


def _require_alone(number: int, place: int | None) -> None:
    """If the job says nothing of ranks, each process of the controller's is one: only the first below it may be it."""
    started, world, rank = (_number(name) for name in ("ROLLMUX_PROCESSES", "WORLD_SIZE", "RANK"))
    # Without LOCAL_WORLD_SIZE there is no torchrun: some of the job's processes may have a world of their own.
    is_another = _number("LOCAL_WORLD_SIZE") is not None and rank not in (None, number)
    if started and world and place and (started < world or is_another):
        limit = f"0 where each of the {started} that the controller has started is one process of the job"
        remedy = (
            "say in the job's file how many each of them starts (`ranks_per_process`), or connect in the first alone"
        )
        raise InvalidSpec("environment", (Problem("LOCAL_RANK", place, limit, remedy),))


def _require_address(url: str) -> None:
    """Raises InvalidSpec for no address: a call to it would be repeated for as long as a controller may be away."""
    if not is_address(url):
        remedy = "write it with http:// or https://"
        raise InvalidSpec("connection", (Problem("ROLLMUX_URL", url, "like http://machine:8421", remedy),))


def _require_token(token: str) -> None:
    """Raises InvalidSpec for a token that a header can't hold. The error does not show it: it may be half a secret."""
    if not (token.isascii() and token.isprintable()):
        remedy = "copy it as it was shown"
        raise InvalidSpec("connection", (Problem("ROLLMUX_TOKEN", "...", "letters, digits and signs", remedy),))


def _number(*names: str) -> int | None:
    """The first of these variables that the environment has, as a number."""
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
    data, subject = job, "job"
    if isinstance(job, str | Path):
        from rollmux.protocol.plain_yaml import read_plain  # noqa: PLC0415  a YAML reader only where there is YAML

        subject = f"job file {str(job)!r}"
        data = read_plain(Path(job), subject)
    if isinstance(data, Mapping) and not isinstance(data.get("name"), str):
        from rollmux.protocol.job_file import read_job  # noqa: PLC0415  it knows YAML, too

        read_job(data, subject)  # raises with all that is wrong: without a name the controller can't be asked
    if not isinstance(data, Mapping) or not isinstance(data.get("name"), str):
        remedy = (
            "set ROLLMUX_JOB, or give connect(job=...) a name, a dict or the path of a YAML file; to run without the "
            "controller, unset ROLLMUX_URL"
        )
        raise InvalidSpec("job", (Problem("job", job, "a job with a name", remedy),))
    mine = {key: value for key, value in data.items() if key not in _LAUNCHED}
    try:
        wire.post("/v1/jobs", {**mine, "processes": processes}, Done)
    except (TypeError, ValueError):  # a value is no JSON, such as nan or a number of NumPy's
        from rollmux.protocol.job_file import read_job  # noqa: PLC0415  as above

        read_job(data, subject)  # raises with which value it is
        raise
    return str(data["name"])


def _attached(wire: Wire, name: str, place: Place, wait_s: float, instance: str) -> Attached:
    """Waits for the job's place. If the script is ended meanwhile, by Ctrl-C say, its job leaves the line too."""
    try:
        return _attach(wire, name, place, wait_s, instance)
    except RollmuxError:
        raise  # the controller has said so itself, or has not answered
    except BaseException as error:
        if place.attempt is None:
            leave = Leave(0, sendable(reason_of(error)), place.rank, instance)
            with suppress(RollmuxError):
                wire.send(f"{job_path(name)}/leave", leave, Done, patience_s=LEAVE_PATIENCE_S)
        raise


def _attach(wire: Wire, name: str, place: Place, wait_s: float, instance: str) -> Attached:
    """Waits for the job's place, however long that takes, and says why it waits."""
    said, parked_s = Saying("waiting for a place"), min(wait_s, FIRST_WAIT_S)
    while True:
        call = Attach(instance, place.rank, place.processes, place.attempt, parked_s)
        attached = wire.send(f"{job_path(name)}/attach", call, Attached, wait_s=parked_s)
        if attached.attempt:
            return attached
        said.once(attached.reason)
        parked_s = wait_s
