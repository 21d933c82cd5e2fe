"""What the demo shows at its end."""

from collections.abc import Sequence
from statistics import fmean

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from rollmux.cli.outputs import fitted
from rollmux.cli.woven.figures import Figures

CURVE, BARS = 8, "▁▂▃▄▅▆▇█"
# Sharing nodes makes no job faster: a slowdown below this is more than chance.
TOO_FAST = 0.95


def show(found: Figures, console: Console) -> None:
    """Prints a row for each job, and the figures of all."""
    table = Table(box=SIMPLE, pad_edge=False)
    table.add_column("job", no_wrap=True)
    for column in ("alone", "woven", "slower", "SLO", "reward", "as alone"):
        table.add_column(column, justify="right", no_wrap=True)
    for job in found.jobs:
        table.add_row(
            job.job,
            f"{job.alone_s:.2f} s",
            f"{job.woven_s:.2f} s",
            f"{job.slowdown:.2f}x",
            f"{job.slo:g} {'met' if job.slowdown <= job.slo else 'missed'}",
            curve(job.rewards),
            f"{job.steps} steps" if job.same_rewards else "no",
        )
    console.print(fitted(table, console.width, "as alone", "reward", "SLO", "alone", "woven"))
    console.print(
        f"Nodes idle: {found.idle_alone:.0%} of the time alone, {found.idle_woven:.0%} woven.", highlight=False
    )
    if found.switch_s is not None:
        console.print(f"A state is on its node after {1000 * found.switch_s:.0f} ms.", highlight=False)
    gain = (
        f"Work for a node-hour: {found.gain:.2f} times as much as on nodes of their own by the median step, "
        f"{found.mean_gain:.2f} by the mean."
    )
    console.print(gain, highlight=False)
    if any(job.slowdown < TOO_FAST for job in found.jobs):
        console.print(
            "Nobody is faster woven: the machine had something else to do while they ran alone. Run it again.",
            highlight=False,
        )


def curve(values: Sequence[float]) -> str:
    """The means of the first and the last part, and between them a bar, from 0 to 1, for the mean of each part."""
    count = min(CURVE, len(values))
    parts = [values[len(values) * place // count : len(values) * (place + 1) // count] for place in range(count)]
    means = [fmean(part) for part in parts]
    bars = "".join(BARS[min(len(BARS) - 1, int(max(0.0, mean) * len(BARS)))] for mean in means)
    return f"{means[0]:.2f} {bars} {means[-1]:.2f}" if means else ""
