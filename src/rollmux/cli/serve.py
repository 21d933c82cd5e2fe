"""`rollmux serve`: the controller of a cluster, until it is told to end."""

import logging
import os
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rollmux import system
from rollmux.cli import options
from rollmux.cli.clusters import load_cluster_file
from rollmux.cli.options import Folder, Port, folder_of
from rollmux.cli.refusals import all_refusals, require_name
from rollmux.mux.cluster_state import Rules
from rollmux.mux.transitions import Job
from rollmux.mux.weave import Timing
from rollmux.protocol.addresses import is_address
from rollmux.protocol.cluster_file import ClusterFile
from rollmux.sim.policies import CONTENDERS

if TYPE_CHECKING:
    from rollmux.service.launcher import Launcher
    from rollmux.service.serve import Service

POLICIES = ("rollmux", "paper")
LAUNCHERS = ("process", "ray")
# The variable in which Ray's own tools look for the address of a dashboard.
ADDRESS = "RAY_API_SERVER_ADDRESS"


log = logging.getLogger("rollmux.service")


class LogForm(Enum):
    """How the controller writes what it has to say."""

    TEXT = "text"
    JSON = "json"


def serve(
    cluster: options.ClusterFile = None,
    policy: Annotated[str, typer.Option(help=f"Where jobs go: {', '.join(POLICIES)}.")] = "rollmux",
    folder: Folder = None,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Port = 8421,
    advertise: Annotated[
        str,
        typer.Option(metavar="URL", help="Where jobs find it [default: the host; its name if that is 0.0.0.0 or ::]."),
    ] = "",
    lease_s: Annotated[
        float, typer.Option(min=1.0, max=3600.0, help="How long a silent process keeps a lease.")
    ] = 15.0,
    drain_s: Annotated[
        float,
        typer.Option(
            min=0.1,
            max=3600.0,
            help="How long it then has to end before others get its nodes. State that stayed on nodes after its phase "
            "has twice that and the job's offload_s to leave them, but no longer than the phase takes.",
        ),
    ] = 10.0,
    certificate: Annotated[Path | None, typer.Option(help="For TLS: a file with the certificate.")] = None,
    key: Annotated[Path | None, typer.Option(help="For TLS: a file with its key.")] = None,
    launcher: Annotated[str, typer.Option(help="What starts jobs: process (on this machine) or ray.")] = "process",
    ray_address: Annotated[str, typer.Option(help="Of Ray's dashboard.", envvar=ADDRESS)] = "http://127.0.0.1:8265",
    journal: options.JournalUrl = "",
    keep_records: Annotated[
        int, typer.Option(min=0, help="How many of the last events are kept for `rollmux journal`, at least.")
    ] = 1_000_000,
    log_format: Annotated[LogForm, typer.Option(help="Log lines for people, or a JSON object a line.")] = LogForm.TEXT,
) -> None:
    """Run the controller: jobs are submitted to it, share nodes by its leases, and survive its end."""
    from rollmux.service import serve as service  # noqa: PLC0415  other commands start faster without it
    from rollmux.service.journal.place import opened  # noqa: PLC0415
    from rollmux.service.logs import configure  # noqa: PLC0415
    from rollmux.service.tokens import write_private  # noqa: PLC0415

    require_name("policy", policy, POLICIES)
    require_name("launcher", launcher, LAUNCHERS)
    if (certificate is None) != (key is None):
        raise typer.BadParameter("TLS needs both --certificate and --key")
    _require_url("--advertise", advertise)
    configure(log_format is LogForm.JSON)
    place = folder_of(folder)
    file = load_cluster_file(cluster)
    wanted = service.Wanted(
        file.cluster,
        CONTENDERS[policy].make(CONTENDERS[policy].max_group, 0),
        place,
        Rules(timing=Timing(lease_s, drain_s)),
        host,
        port,
        advertise.rstrip("/"),
        certificate,
        key,
        file.means,
    )
    with all_refusals():
        running = service.Service(wanted, _launcher(launcher, place, file, ray_address), opened(journal, keep_records))
        service.admin_token(place, running.tokens)
    warn_if_moved(place / "url", running)
    write_private(place / "url", running.local_url.encode())
    if log_format is LogForm.TEXT:
        _greet(
            f"Controller at {running.url}, folder {place}. Commands on this machine find it there.",
            f"To watch it, open {running.local_url}/ in a browser; it asks for the token in {place / 'admin.token'}.",
        )
    if launcher == "ray" and not advertise and host in ("127.0.0.1", "::1", "localhost"):
        log.warning("jobs on other machines can't reach %s: give --host an address of this one", running.url)
    service.run(running)


def _greet(*lines: str) -> None:
    """Tells the one who started the controller. If standard output can't be written, it serves on, as without a log."""
    try:
        for line in lines:
            typer.echo(line)
    except OSError as error:
        log.warning("standard output can't be written (%s), and is done without", error.strerror)
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())  # takes what is left in its buffer


def warn_if_moved(url: Path, running: "Service") -> None:
    """Warns if running jobs look for the controller elsewhere: they are told only at their start where it is."""
    before = url.read_text(encoding="utf-8") if url.exists() else running.local_url
    jobs = [record.job.id for record in running.controller.machine.state.jobs.values() if record.state is Job.RUNNING]
    if jobs and before != running.local_url:
        some = ", ".join(jobs[:3]) + (f" and {len(jobs) - 3} more" if len(jobs) > 3 else "")
        told = "look for it at %s, where it was when they were started: serve there, or start them anew"
        log.warning(f"%s {told}", some, before)


def _require_url(option: str, url: str) -> None:
    if url and not is_address(url):
        raise typer.BadParameter(f"{option} {url}: write it like http://machine:8421")


def _launcher(name: str, folder: Path, file: ClusterFile, ray_address: str) -> "Launcher":
    if name == "ray":
        return _on_ray(folder, file, ray_address)
    from rollmux.service.local.launcher import ProcessLauncher  # noqa: PLC0415

    means = file.means
    if not system.IS_LINUX and any(each.cores is not None or each.memory_bytes is not None for each in means.values()):
        held = "cores and memory of nodes, which only Linux holds jobs to"
        raise typer.BadParameter(f"the cluster file gives {held}: leave them out, or serve on Linux")
    return ProcessLauncher(folder, means)


def _on_ray(folder: Path, file: ClusterFile, address: str) -> "Launcher":
    from rollmux.service.ray.http_gateway import HttpGateway, token  # noqa: PLC0415
    from rollmux.service.ray.launcher import RayLauncher  # noqa: PLC0415

    rented = [pool.name for pool in file.cluster.pools if pool.on_demand]
    if rented:
        what = f"Ray's nodes are there or not, and the cluster's file has on_demand: true for {' and '.join(rented)}"
        raise typer.BadParameter(f"{what}: give a fixed number, as max_nodes with on_demand: false")
    if not is_address(address):
        raise typer.BadParameter(f"--ray-address {address!r} is not that of a dashboard: write http://HOST:8265")
    token(os.environ)  # raises at once if the token is missing
    return RayLauncher(folder, HttpGateway(address, lambda: token(os.environ)), file.means)
