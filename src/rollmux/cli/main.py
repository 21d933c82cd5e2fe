"""The commands and their options; what they do lies in the modules beside this one."""

import json
from typing import Annotated

import typer
from rich.console import Console

from rollmux.cli.demo import POLICIES, as_data, play_demo, show
from rollmux.cli.doctor import doctor
from rollmux.cli.job_sim import job_sim
from rollmux.cli.jobs import COMMANDS
from rollmux.cli.journal import journal_app
from rollmux.cli.past import bill, trace
from rollmux.cli.plan import plan
from rollmux.cli.remote import env
from rollmux.cli.serve import serve
from rollmux.cli.simulate import simulate
from rollmux.cli.states import states_page
from rollmux.cli.sweep import sweep
from rollmux.cli.tokens import token_app
from rollmux.cli.top import top
from rollmux.cli.train import train
from rollmux.cli.workload import workload_app

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Many RL post-training jobs on shared machines.")
app.command()(simulate)
app.command()(plan)
app.command()(sweep)
app.command()(job_sim)
app.command()(train)
app.add_typer(workload_app, name="workload")
app.add_typer(token_app, name="token")
app.add_typer(journal_app, name="journal")
app.command()(serve)
for command in (env, *COMMANDS, top, bill, trace, doctor):
    app.command()(command)


@app.command()
def demo(
    policy: Annotated[str, typer.Option(help=f"Where jobs go: {' or '.join(POLICIES)}.")] = "rollmux",
    hours: Annotated[float, typer.Option(min=1.0, max=1000.0, help="Virtual time to run for.")] = 24.0,
    slo: Annotated[float, typer.Option(min=1.0, max=100.0, help="Slowdown that each job tolerates.")] = 1.5,
    explain: Annotated[str, typer.Option(metavar="JOB", help="Show what was tried for this job, and why.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print data instead of tables.")] = False,
) -> None:
    """Weave the ten most frequent production jobs of the RollMux paper, in virtual time."""
    if policy not in POLICIES:
        raise typer.BadParameter(f"there is no policy {policy!r}; choose {' or '.join(POLICIES)}")
    result = play_demo(policy, hours, slo)
    if explain and explain not in result.explanations:
        raise typer.BadParameter(f"there is no job {explain!r}; choose one of {', '.join(result.explanations)}")
    if as_json:
        typer.echo(json.dumps(as_data(result), indent=1))
    elif explain:
        typer.echo(result.explanations[explain])
    else:
        show(result, Console())


@app.command()
def states() -> None:
    """Print the states of phases and jobs, as in docs/states.md."""
    typer.echo(states_page(), nl=False)
