"""What is shown of the demo: while it runs, and at its end."""

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from rollmux.cli.woven.figures import Figures


def show(found: Figures, console: Console) -> None:
    """A row for each job, and what it comes to."""
    table = Table(box=SIMPLE, pad_edge=False)
    table.add_column("job", no_wrap=True)
    for column in ("step alone", "woven", "slower", "SLO", "reward", "", "as alone"):
        table.add_column(column, justify="right", no_wrap=True)
    for job in found.jobs:
        table.add_row(
            job.job,
            f"{job.alone_s:.2f} s",
            f"{job.woven_s:.2f} s",
            f"{job.slowdown:.2f}x",
            f"{job.slo:g} {'met' if job.slowdown <= job.slo else 'missed'}",
            f"{job.first_reward:.2f}",
            f"→ {job.last_reward:.2f}",
            f"{job.steps} of {job.steps} steps" if job.same_rewards else "no",
        )
    console.print(table)
    console.print(f"Nodes idle: {found.idle_alone:.0%} of the time alone, {found.idle_woven:.0%} woven.")
    if found.switch_s is not None:
        console.print(f"A state is on its node after {1000 * found.switch_s:.0f} ms.")
    console.print(f"Work for a node-hour: {found.gain:.2f} times as much as on nodes of their own.")
