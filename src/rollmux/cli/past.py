"""`rollmux trace` and `rollmux bill`: what a controller has seen lately, and what its jobs have cost."""

import re
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE
from rich.table import Table

from rollmux.cli.options import AsJson, Folder, Token, Url
from rollmux.cli.outputs import HERE, PIPED_WIDTH, console, fits_a_cell, fitted, require_writable, show, write_text
from rollmux.cli.refusals import require_name
from rollmux.cli.remote import remote
from rollmux.protocol.history import BillView, HistoryView, JobBill
from rollmux.report.live import spans_of
from rollmux.report.trace import trace_of

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
# How far back a controller may be asked.
LONGEST_S = 100_000


def trace(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Where to write it (- for here).")] = HERE,
    since: Annotated[str, typer.Option(metavar="TIME", help="How far back: 90s, 15m, 1h, 1d.")] = "1h",
    as_json: AsJson = False,
    url: Url = "",
    token: Token = "",
    folder: Folder = None,
) -> None:
    """Write what the nodes have done lately as a Chrome trace, which https://ui.perfetto.dev opens."""
    since_s = _seconds(since)
    require_writable("--out", out)
    there = remote(url, token, folder)
    history = there.get(HistoryView, "/v1/history", since_s=round(since_s))
    about = {"url": there.url, "unix_s_at_0": time.time() - history.now, "record": history.seq}
    write_text(trace_of(there.url, spans_of(history), about) + "\n", out)
    if history.whole_from_s > max(history.since_s, 0.0):  # before 0 there was no controller
        known_s = history.now - history.whole_from_s
        typer.echo(f"Phases that ended more than {known_s:.0f} s ago are not remembered.", err=True)
    if out != HERE:  # else only the trace is printed, which is JSON anyway
        phases = len(history.spans)
        show({"written": str(out), "phases": phases}, as_json, f"Written: {out}, {phases} phases.")


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    seconds = float(found[1]) * _UNITS_S[found[2]] if found else 0.0
    if not 1 <= seconds <= LONGEST_S:
        raise typer.BadParameter(f"--since {text}: write it like 90s, 15m, 1h or 1d, at most {LONGEST_S} s")
    return seconds


def bill(
    job: Annotated[str, typer.Argument(metavar="[JOB]", help="One job only.", show_default=False)] = "",
    as_json: AsJson = False,
    url: Url = "",
    token: Token = "",
    folder: Folder = None,
) -> None:
    """Show what each job has held and cost, and what the same work would have cost it on nodes of its own."""
    found = remote(url, token, folder).get(BillView, "/v1/bill")
    if not job:
        show(found, as_json, _table(found.jobs), _total(found))
        return
    require_name("job", job, tuple(each.job for each in found.jobs))
    mine = next(each for each in found.jobs if each.job == job)
    show(mine, as_json, _table((mine,)))


def _table(jobs: tuple[JobBill, ...]) -> Table:
    width = console().width
    wide = width >= PIPED_WIDTH
    table = Table(box=SIMPLE, pad_edge=False)
    for column in ("job", *(("tenant",) if wide else ()), "state"):
        table.add_column(column, overflow="fold")
    for column in (
        *(("iterations", "GPU hours") if wide else ()),
        *("cost", "alone", "saved", "per hour"),
        *(("slower", "SLO") if wide else ()),
    ):
        table.add_column(column, justify="right", no_wrap=True)
    for each in jobs:
        held = "\n".join(f"{pool.gpu_hours:.1f} {pool.pool}" for pool in each.held)
        done = f"{each.iterations_done}" if each.iterations is None else f"{each.iterations_done} of {each.iterations}"
        slower = "–" if each.slowdown is None else f"{each.slowdown:.2f}x"
        table.add_row(
            each.job,
            *((each.tenant,) if wide else ()),
            each.how if each.how and fits_a_cell(each.how) else each.state,  # `rollmux status` tells why a job failed
            *((done, held or "–") if wide else ()),
            _usd(each.usd),
            _usd(each.alone_usd),
            f"{1 - each.usd / each.alone_usd:.0%}" if each.alone_usd else "–",
            _usd(each.usd_per_hour),
            *((slower, f"{each.slo:.2f}") if wide else ()),
        )
    return fitted(table, width, "per hour", "saved", "alone", "state")


def _total(found: BillView) -> str:
    """The sums. The whole cluster's cost stands beside them, for a tenant's own jobs may be only a part of it."""
    mine, alone = sum(job.usd for job in found.jobs), sum(job.alone_usd for job in found.jobs)
    forgotten = f", {_usd(found.forgotten_usd)} of jobs that are remembered no more" if found.forgotten_usd else ""
    return (
        f"{_usd(mine)} for work that costs {_usd(alone)} with each job on its own; "
        f"the whole cluster: {_usd(found.usd)}{forgotten}, {_usd(found.usd_per_hour)} an hour now."
    )


def _usd(value: float) -> str:
    return f"${value:,.2f}" if value >= 1 or not value else f"${value:.4f}"
