"""The commands and their options; what they do lies in the modules beside this one."""

import typer

from rollmux.cli.demo import demo
from rollmux.cli.doctor import doctor
from rollmux.cli.job_sim import job_sim
from rollmux.cli.jobs import COMMANDS
from rollmux.cli.journal import journal_app
from rollmux.cli.models import model_app
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
app.command()(demo)
app.command()(simulate)
app.command()(plan)
app.command()(sweep)
app.command()(job_sim)
app.command()(train)
app.add_typer(model_app, name="model")
app.add_typer(workload_app, name="workload")
app.add_typer(token_app, name="token")
app.add_typer(journal_app, name="journal")
app.command()(serve)
for command in (env, *COMMANDS, top, bill, trace, doctor):
    app.command()(command)


@app.command()
def states() -> None:
    """Print the states of phases and jobs, as in docs/states.md."""
    typer.echo(states_page(), nl=False)
