"""`rollmux serve`: the controller of a cluster, until it is told to end."""

from enum import Enum
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from rollmux.cli import options
from rollmux.cli.inputs import load_cluster
from rollmux.cli.refusals import require_name
from rollmux.cli.remote import Folder, Port, folder_of
from rollmux.errors import RollmuxError
from rollmux.mux.cluster_state import Rules
from rollmux.mux.weave import Timing
from rollmux.sim.policies import CONTENDERS

POLICIES = ("rollmux", "paper")


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
    lease_s: Annotated[float, typer.Option(min=1.0, max=3600.0, help="How long a silent holder keeps a lease.")] = 15.0,
    drain_s: Annotated[float, typer.Option(min=0.1, max=3600.0, help="How long it then has to vanish.")] = 10.0,
    certificate: Annotated[Path | None, typer.Option(help="For TLS: a file with the certificate.")] = None,
    key: Annotated[Path | None, typer.Option(help="For TLS: a file with its key.")] = None,
    log_format: Annotated[LogForm, typer.Option(help="Log lines for people, or a JSON object a line.")] = LogForm.TEXT,
) -> None:
    """Run the controller: jobs are submitted to it, share nodes by its leases, and survive its end."""
    from rollmux.service import serve as service  # noqa: PLC0415  other commands start faster without it
    from rollmux.service.local.launcher import ProcessLauncher  # noqa: PLC0415
    from rollmux.service.logs import configure  # noqa: PLC0415
    from rollmux.service.tokens import write_private  # noqa: PLC0415

    require_name("policy", policy, POLICIES)
    if (certificate is None) != (key is None):
        raise typer.BadParameter("TLS needs both --certificate and --key")
    _require_url("--advertise", advertise)
    configure(log_format is LogForm.JSON)
    place = folder_of(folder)
    wanted = service.Wanted(
        load_cluster(cluster),
        CONTENDERS[policy].make(CONTENDERS[policy].max_group, 0),
        place,
        Rules(timing=Timing(lease_s, drain_s)),
        host,
        port,
        advertise.rstrip("/"),
        certificate,
        key,
    )
    try:
        running = service.Service(wanted, ProcessLauncher(place))
    except (RollmuxError, OSError) as error:
        raise typer.BadParameter(str(error)) from error
    service.admin_token(place, running.tokens)
    write_private(place / "url", running.local_url.encode())
    if log_format is LogForm.TEXT:
        typer.echo(f"Controller at {running.url}, folder {place}. Commands on this machine find it there.")
        typer.echo(
            f"To watch it, open {running.local_url}/ in a browser; it asks for the token in {place / 'admin.token'}."
        )
    service.run(running)


def _require_url(option: str, url: str) -> None:
    parts = urlsplit(url)
    if url and not (parts.scheme in ("http", "https") and parts.hostname):
        raise typer.BadParameter(f"{option} {url}: write it like http://machine:8421")
