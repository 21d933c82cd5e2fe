"""Options that several commands have: each is declared here once. Options of simulations are in `simulated.py`."""

import os
from pathlib import Path
from typing import Annotated

import typer

ClusterFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The cluster, as YAML; otherwise the paper's, elastic.")
]
JournalUrl = Annotated[
    str,
    typer.Option(
        "--journal",
        metavar="URL",
        envvar="ROLLMUX_JOURNAL",
        show_default=False,
        help="A journal on a server, as postgresql://user@host/db; otherwise a file in the folder.",
    ),
]
Url = Annotated[str, typer.Option("--url", envvar="ROLLMUX_URL", help="Where the controller is.", show_default=False)]
Token = Annotated[
    str, typer.Option("--token", envvar="ROLLMUX_TOKEN", help="Who calls.", show_default=False, show_envvar=True)
]
Folder = Annotated[
    Path | None,
    typer.Option("--folder", envvar="ROLLMUX_FOLDER", help="The controller's folder [default: ~/.rollmux]."),
]
Port = Annotated[
    int, typer.Option(min=0, max=65535, envvar="ROLLMUX_PORT", help="The controller's port; 0 takes one that is free.")
]
Changes = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE", help="As if it stood in the file; dots lead to a part's key.", show_default=False
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print data instead of text.")]
JsonOut = Annotated[
    Path | None, typer.Option("--json", metavar="OUT", help="Write the figures as data; - prints only that.")
]


def folder_of(folder: Path | None) -> Path:
    """The folder of the controller on this machine."""
    try:
        return (folder or Path(os.environ.get("ROLLMUX_FOLDER") or "~/.rollmux")).expanduser()
    except RuntimeError as error:  # HOME is not set, and the system does not know the user
        raise typer.BadParameter("no home folder is known: give --folder, or set ROLLMUX_FOLDER") from error
