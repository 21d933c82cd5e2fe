"""`rollmux serve`: the controller of a cluster, until it is told to end."""

import logging
from pathlib import Path
from typing import Annotated

import typer

from rollmux.cli import options
from rollmux.cli.inputs import load_cluster
from rollmux.cli.refusals import require_name
from rollmux.cli.remote import Folder, folder_of
from rollmux.errors import RollmuxError
from rollmux.mux.cluster_state import Rules
from rollmux.mux.weave import Timing
from rollmux.sim.policies import CONTENDERS

POLICIES = ("rollmux", "paper")


def serve(
    cluster: options.ClusterFile = None,
    policy: Annotated[str, typer.Option(help=f"Where jobs go: {', '.join(POLICIES)}.")] = "rollmux",
    folder: Folder = None,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes one that is free.")] = 8421,
    lease_s: Annotated[float, typer.Option(min=1.0, max=3600.0, help="How long a silent holder keeps a lease.")] = 15.0,
    drain_s: Annotated[float, typer.Option(min=0.1, max=3600.0, help="How long it then has to vanish.")] = 10.0,
    certificate: Annotated[Path | None, typer.Option(help="For TLS: a file with the certificate.")] = None,
    key: Annotated[Path | None, typer.Option(help="For TLS: a file with its key.")] = None,
) -> None:
    """Run the controller: jobs are submitted to it, share nodes by its leases, and survive its end."""
    from rollmux.service import serve as service  # noqa: PLC0415  other commands start faster without it
    from rollmux.service.local.launcher import ProcessLauncher  # noqa: PLC0415

    require_name("policy", policy, POLICIES)
    if (certificate is None) != (key is None):
        raise typer.BadParameter("TLS needs both --certificate and --key")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    place = folder_of(folder)
    wanted = service.Wanted(
        load_cluster(cluster),
        CONTENDERS[policy].make(CONTENDERS[policy].max_group, 0),
        place,
        Rules(timing=Timing(lease_s, drain_s)),
        host,
        port,
        certificate,
        key,
    )
    try:
        running = service.Service(wanted, ProcessLauncher(place))
    except RollmuxError as error:
        raise typer.BadParameter(str(error)) from error
    service.admin_token(place, running.tokens)
    (place / "url").write_text(running.url, encoding="utf-8")
    typer.echo(f"Controller at {running.url}, folder {place}. Commands on this machine find it there.")
    typer.echo(f"To watch it, open {running.url}/ in a browser; it asks for the token in {place / 'admin.token'}.")
    service.run(running)
