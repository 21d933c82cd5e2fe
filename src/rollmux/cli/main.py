"""The commands by name; each lies in a module beside this one, which is imported when the command is called."""

import sys
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

from rollmux import __version__
from rollmux.cli.refusals import why_not

# In the order of `rollmux --help`.
_WHERE = {
    "demo": "demo:demo",
    "simulate": "simulate:simulate",
    "plan": "plan:plan",
    "sweep": "sweep:sweep",
    "job-sim": "job_sim:job_sim",
    "train": "train:train",
    "evaluate": "evaluate:evaluate",
    "serve": "serve:serve",
    "env": "remote:env",
    "submit": "jobs:submit",
    "status": "jobs:status",
    "explain": "jobs:explain",
    "story": "jobs:story",
    "logs": "jobs:logs",
    "cancel": "jobs:cancel",
    "drain": "jobs:drain",
    "undrain": "jobs:undrain",
    "top": "top:top",
    "bill": "past:bill",
    "trace": "past:trace",
    "doctor": "doctor:doctor",
    "states": "states:states",
    "model": "models:model_app",
    "workload": "workload:workload_app",
    "token": "tokens:token_app",
    "journal": "journal:journal_app",
}


class _Imported(TyperGroup):
    """Imports only the command that is called: to import all of them takes a second."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = dict.fromkeys(_WHERE)  # type: ignore[assignment]  # only the names are needed

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _WHERE:
            return None
        module, attribute = _WHERE[cmd_name].split(":")
        found = getattr(import_module(f"rollmux.cli.{module}"), attribute)
        around = typer.Typer()
        if isinstance(found, typer.Typer):
            around.add_typer(found, name=cmd_name)
        else:
            around.command(cmd_name)(found)
        return _literal(get_group(around).commands[cmd_name])

    def main(self, *args: Any, **kwargs: Any) -> Any:
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # letters that its encoding lacks become ?, and are no error
        try:
            return super().main(*args, **kwargs)
        except OSError as error:
            if sys.flags.dev_mode:
                raise
            typer.echo(f"Error: {why_not(error)} (PYTHONDEVMODE=1 shows where)", err=True)
            sys.exit(1)


def _literal(command: Any) -> Any:
    """The command with help texts in which brackets are brackets: rich would take them for its markup."""
    for each in (*command.params, command):
        each.help = each.help and each.help.replace("[", r"\[")
    for below in getattr(command, "commands", {}).values():
        _literal(below)
    return command


app = typer.Typer(cls=_Imported, add_completion=False, no_args_is_help=True)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rollmux {__version__}")
        raise typer.Exit


@app.callback()
def _rollmux(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version, and end.")
    ] = False,
) -> None:
    """Many RL post-training jobs on shared machines."""
