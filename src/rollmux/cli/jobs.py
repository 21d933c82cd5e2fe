"""Commands that speak to a running controller: submit, status, explain, story, logs, cancel, drain, undrain."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, TypeVar
from urllib.parse import quote as quoted

import typer
from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from rollmux.cli.options import AsJson, Changes, Folder, Token, Url
from rollmux.cli.outputs import PIPED_WIDTH, console, fits_a_cell, fitted, show
from rollmux.cli.refusals import refusals, require_name
from rollmux.cli.remote import CallRefused, Remote, remote
from rollmux.client.link import job_path
from rollmux.mux.transitions import Job
from rollmux.protocol.job_file import job_data, read_job_file
from rollmux.protocol.messages import Done
from rollmux.protocol.views import ClusterView, JobView, LaneView, Quote
from rollmux.protocol.views import Text as Lines

T = TypeVar("T")

JobName = Annotated[str, typer.Argument(metavar="JOB", help="The job's name.")]
NodeName = Annotated[str, typer.Argument(metavar="NODE", help="The node's name.")]


def submit(
    file: Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job, as in examples/job.yaml.")],
    changes: Changes = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the place and the price it would get now.")] = False,
    as_json: AsJson = False,
    url: Url = "",
    token: Token = "",
    folder: Folder = None,
) -> None:
    """Submit a job. The same file may be submitted again: that changes nothing."""
    with refusals():
        submission = read_job_file(file, changes or ())
    there = remote(url, token, folder)
    if dry_run:
        found = there.post(Quote, "/v1/quote", job_data(submission))
        show(found, as_json, _quoted(found, submission.job.id))
        return
    there.post(Done, "/v1/jobs", job_data(submission))
    view = _job(there, submission.job.id)
    show(view, as_json, _placed(view))


def status(
    job: Annotated[str, typer.Argument(metavar="[JOB]", help="One job only.", show_default=False)] = "",
    as_json: AsJson = False,
    url: Url = "",
    token: Token = "",
    folder: Folder = None,
) -> None:
    """Show who holds what, who waits for what, and what an hour costs."""
    there = remote(url, token, folder)
    if job:
        view = _job(there, job)
        show(view, as_json, _table([view]), *_reasons([view]), *_likely(view))
        return
    cluster = there.get(ClusterView, "/v1/cluster")
    table = _table(cluster.jobs) if cluster.jobs else "No jobs."
    show(cluster, as_json, *earlier(cluster), table, *_reasons(cluster.jobs), _prices(cluster))


def explain(job: JobName, as_json: AsJson = False, url: Url = "", token: Token = "", folder: Folder = None) -> None:
    """Say why a job is where it is: what was tried, what it would cost, why it was not taken."""
    _lines(_of(remote(url, token, folder), job, Lines, "/explain"), as_json)


def story(job: JobName, as_json: AsJson = False, url: Url = "", token: Token = "", folder: Folder = None) -> None:
    """Tell what has happened to a job and why, of the controller's latest 100,000 events since it started.

    What was before is in its journal: `rollmux journal story`.
    """
    _lines(_of(remote(url, token, folder), job, Lines, "/story"), as_json)


def logs(
    job: JobName,
    lines: Annotated[int, typer.Option(min=1, max=10_000, help="How many of the last lines.")] = 100,
    as_json: AsJson = False,
    url: Url = "",
    token: Token = "",
    folder: Folder = None,
) -> None:
    """Show what a job has printed that the controller started."""
    printed = _of(remote(url, token, folder), job, Lines, "/log", lines=lines)
    if printed.lines or as_json:
        _lines(printed, as_json)
    else:  # on standard error: programs may read the standard output
        typer.echo(f"Nothing of job {job} is kept: it has printed nothing, or somebody else has started it.", err=True)


def cancel(job: JobName, as_json: AsJson = False, url: Url = "", token: Token = "", folder: Folder = None) -> None:
    """End a job."""
    there = remote(url, token, folder)
    with _named("job", job, there):
        done = there.post(Done, f"{job_path(job)}/cancel")
    show({"job": job, **asdict(done)}, as_json, _placed(_job(there, job)))


def drain(node: NodeName, as_json: AsJson = False, url: Url = "", token: Token = "", folder: Folder = None) -> None:
    """Put no more jobs on a node. Those that are there stay until they end.

    It stays drained if it is lost and comes back. A node that is lost already can't be drained, unless it has jobs:
    drain it when it is back.
    """
    done = _done(remote(url, token, folder), node, "drain")
    show({"node": node, **asdict(done)}, as_json, f"Node {node} takes no more jobs.")


def undrain(node: NodeName, as_json: AsJson = False, url: Url = "", token: Token = "", folder: Folder = None) -> None:
    """Put jobs on a drained node again."""
    done = _done(remote(url, token, folder), node, "undrain")
    show({"node": node, **asdict(done)}, as_json, f"Node {node} takes jobs again.")


def _done(there: Remote, node: str, verb: str) -> Done:
    with _named("node", node, there):
        return there.post(Done, f"/v1/nodes/{quoted(node, safe='')}/{verb}")


def _job(there: Remote, job: str) -> JobView:
    return _of(there, job, JobView)


def _of(there: Remote, job: str, kind: type[T], call: str = "", **query: object) -> T:
    with _named("job", job, there):
        return there.get(kind, f"{job_path(job)}{call}", **query)


@contextmanager
def _named(what: str, name: str, there: Remote) -> Iterator[None]:
    """Stands around a call about a job or a node. If there is none of this name, says which the caller may mean."""
    try:
        yield
    except CallRefused as error:
        if error.message.startswith(f"there is no {what} "):
            with suppress(CallRefused):
                cluster = there.get(ClusterView, "/v1/cluster")  # a tenant hears of no others' jobs
                names = [each.job for each in cluster.jobs] if what == "job" else [each.node for each in cluster.nodes]
                require_name(what, name, tuple(names))
        raise


def _lines(text: Lines, as_json: bool) -> None:
    show(text, as_json, "\n".join(text.lines))


def _placed(view: JobView) -> str:
    where = f" in {view.group} on {', '.join(view.rollout_nodes + view.train_nodes)}" if view.group else ""
    return f"Job {view.job}: {view.state}{where}{f', {view.reason}' if view.reason else ''}."


def _quoted(found: Quote, job: str) -> str:
    if found.submitted:
        return f"Job {job} has been submitted already, and would get no second place: `rollmux status {job}`."
    head = f"Job {job} would get no place now."
    if found.admitted:
        where = ", ".join(found.rollout_nodes + found.train_nodes)
        pace = f"an iteration would take {found.iteration_s:.1f} s, its SLO allows {found.limit_s:.1f} s"
        price = f"${found.added_usd_per_hour:.2f} more per hour, alone it would cost ${found.alone_usd_per_hour:.2f}"
        head = f"Job {job} would get {where} in {found.group}: {price}; {pace}."
    return "\n".join([head, *found.lines])


def earlier(cluster: ClusterView) -> tuple[str, ...]:
    """Says how many ended jobs the table does not show. An older controller shows all of them, and gives no number."""
    more = cluster.ended - sum(job.state == Job.ENDED.value for job in cluster.jobs)
    return (f"{more} jobs have ended before these: `rollmux status JOB`, `rollmux bill`.",) if more > 0 else ()


def _prices(cluster: ClusterView) -> str:
    return (
        f"All jobs: ${cluster.usd_per_hour:.2f} per hour shared, ${cluster.usd_per_hour_alone:.2f} alone, "
        f"${cluster.usd_per_hour_fluid:.2f} for the work itself."
        + (f"\nNOTHING CAN BE CHANGED: {cluster.broken}" if cluster.broken else "")
    )


def _likely(view: JobView) -> list[str]:
    if view.likely_s is None:
        return []
    return [f"If phases go on to vary as of late, an iteration will take {view.likely_s:.1f} s in the mean."]


def _table(jobs: Sequence[JobView]) -> Table:
    width = console().width
    wide = width >= PIPED_WIDTH
    table = Table(box=SIMPLE, pad_edge=False)
    for column in ("job", "state", *(("group",) if wide else ()), "does", "nodes"):
        table.add_column(column, overflow="fold")
    for column in ("iterations", *(("alone", "forecast", "lately") if wide else ()), "slower", "SLO"):
        table.add_column(column, justify="right", no_wrap=True)
    for view in jobs:
        paces = f"{view.solo_s:.1f} s", _seconds(view.iteration_s), _seconds(view.recent_s)
        table.add_row(
            view.job,
            view.state,
            *((view.group,) if wide else ()),
            ", ".join(map(_doing, view.lanes)) or (view.reason if fits_a_cell(view.reason) else ""),
            ", ".join(view.rollout_nodes + view.train_nodes),
            str(view.synced) if view.iterations is None else f"{view.synced} of {view.iterations}",
            *(paces if wide else ()),
            "–" if view.slowdown is None else f"{view.slowdown:.2f}x",
            f"{view.slo:.2f}",
        )
    return fitted(table, width, "alone", "lately", "group", "nodes", "SLO", "iterations", "slower", "does")


def _reasons(jobs: Sequence[JobView]) -> list[str | Text]:
    """A line for each reason that a table's column would break over many lines. In a terminal these lines break between
    words only.
    """
    told = [view for view in jobs if not fits_a_cell(view.reason) and not view.lanes]
    lines = [f"{view.job} is {view.state}: {view.reason}" for view in told]
    return [Text(line) for line in lines] if console().is_terminal else list(lines)


def _doing(lane: LaneView) -> str:
    whom = f" for {', '.join(lane.waits_for)}" if lane.waits_for else ""
    return f"{lane.kind}({lane.iteration}) {lane.state}{whom}"


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} s"
