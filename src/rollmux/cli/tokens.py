"""`rollmux token`: who may call the controller of this machine's folder, and as whom."""

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from rollmux.cli.options import AsJson, Folder, folder_of
from rollmux.cli.outputs import show
from rollmux.cli.refusals import all_refusals, nearest
from rollmux.cli.remote import elsewhere

token_app = typer.Typer(no_args_is_help=True, help="Say who may call the controller: tokens for tenants and admins.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The token's name, to revoke it by.")]


@token_app.command()
def create(
    name: Name,
    tenant: Annotated[str, typer.Option(help="Whose jobs it may see and touch; the token's name if not given.")] = "",
    admin: Annotated[bool, typer.Option("--admin", help="It may do everything.")] = False,
    days: Annotated[float | None, typer.Option(help="How long it is good for; otherwise for ever.")] = None,
    as_json: AsJson = False,
    folder: Folder = None,
) -> None:
    """Make a token and print it, once: only its hash is kept. A running controller knows it at once."""
    from rollmux.service.tokens import DAY_S, Role, Tokens  # noqa: PLC0415  other commands start faster without

    if admin and tenant:
        raise typer.BadParameter("--admin and --tenant: an admin's token is no tenant's, give one of the two")
    role, whose = (Role.ADMIN, "") if admin else (Role.TENANT, tenant or name)
    with all_refusals():
        tokens = Tokens(_meant(folder), time.time)
        made = tokens.create(name, role, whose, None if days is None else days * DAY_S)
    try:
        show({"name": name, "role": role.value, "tenant": whose, "token": made}, as_json, made)
    except OSError:
        tokens.revoke(name)  # it could not be printed, so nobody has seen it
        raise


@token_app.command("list")
def list_tokens(as_json: AsJson = False, folder: Folder = None) -> None:
    """List the tokens' names and rights. The tokens themselves are kept nowhere."""
    from rollmux.service.tokens import Tokens  # noqa: PLC0415

    with all_refusals():
        found = Tokens(_meant(folder), time.time).names()
    show(found, as_json, *map(_described, found))


@token_app.command()
def revoke(name: Name, as_json: AsJson = False, folder: Folder = None) -> None:
    """End a token, at once."""
    from rollmux.service.tokens import Tokens  # noqa: PLC0415

    with all_refusals():
        tokens = Tokens(_meant(folder), time.time)
        found = tokens.revoke(name)
    if not found:
        known = tuple(str(each["name"]) for each in tokens.names())
        raise typer.BadParameter(f"there is no token {name!r}{nearest(name, known)}")
    show({"name": name, "ok": True}, as_json, f"Token {name} is no good any more.")


def _meant(folder: Path | None) -> Path:
    """The controller's folder. Raises BadParameter if it is not there, or if none is named and the environment names
    another controller."""
    url = os.environ.get("ROLLMUX_URL", "")
    if said := elsewhere(url, folder):
        raise typer.BadParameter(
            f"{url}, which ROLLMUX_URL names, is {said}; tokens are kept in a controller's folder: "
            "run this on its machine with --folder, or say --folder for this one"
        )
    place = folder_of(folder)
    if not place.exists():
        raise typer.BadParameter(f"there is no folder {place}: `rollmux serve` makes it; or give another --folder")
    return place


def _described(entry: dict[str, object]) -> str:
    whose = f" of {entry['tenant']}" if entry["tenant"] else ""
    until = "" if entry["expires"] is None else f", until {time.ctime(float(str(entry['expires'])))}"
    return f"{entry['name']}: {entry['role']}{whose}{until}"
