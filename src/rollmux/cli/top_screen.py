"""The screen of `rollmux top`: one look at a cluster as text, as high as the terminal allows."""

from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rollmux.cli.outputs import fitted
from rollmux.mux.transitions import Job, Phase
from rollmux.protocol.history import HistoryView, PoolView
from rollmux.protocol.views import ClusterView, JobView, LaneView, NodeView

# Lines that are not rows: headings, prices, the frames of two tables, the notes of what is left out, a line of trouble.
_OTHER_LINES = 14
# The width of a terminal that has room for every column.
WIDE = 110
# And of one in which a job's sentences take about two lines, not four.
USUAL = 80
# In a narrower one some columns are left out, these first: what is left has names that can be read.
_SPARE_OF_NODES = ("pool", "group", "state")
_SPARE_OF_JOBS = ("alone", "lately", "iterations", "group", "SLO left", "waits for", "does")

Since = Mapping[tuple[str, str], float]


def screen(
    url: str,
    cluster: ClusterView | None,
    history: HistoryView | None,
    trouble: str,
    width: int,
    height: int | None = None,
) -> RenderableType:
    """The whole screen. If the controller is silent, the last state is dim, and the reason stands above it."""
    if cluster is None:
        return Group(_head(url, "no answer yet"), Text(trouble, style="bold red"))
    rows = max(6, height - _OTHER_LINES) if height is not None else len(cluster.nodes) + len(cluster.jobs)
    lines_each = 1 if width >= WIDE or height is None else 2 if width >= USUAL else 4
    jobs = [job for job in cluster.jobs if job.state != Job.ENDED.value]
    of_nodes = min(len(cluster.nodes), max(rows // 3, rows - len(jobs)))
    parts: list[RenderableType] = [
        _head(url if width >= USUAL else "", _counts(cluster, jobs)),
        _prices(cluster),
        _use(history.pools if history is not None else ()),
        _nodes(cluster.nodes, of_nodes, width),
        _jobs(sorted(jobs, key=_order), _since(history), max(3, (rows - of_nodes) // lines_each), width)
        if jobs
        else Text("No jobs."),
    ]
    if cluster.broken:
        parts.insert(1, Text(f"NOTHING CAN BE CHANGED: {cluster.broken}", style="bold red"))
    if not trouble:
        return Group(*parts)
    old = Table.grid()
    old.style = "dim"
    for part in parts:
        old.add_row(part)
    return Group(Text(trouble, style="bold red"), old)


def _head(url: str, counts: str) -> Text:
    where = f" at {url}" if url else ""
    return Text.assemble(("RollMux", "bold"), f"{where}: {counts}", no_wrap=True, overflow="ellipsis")


def _counts(cluster: ClusterView, jobs: Sequence[JobView]) -> str:
    waiting = sum(job.state == Job.QUEUED.value for job in jobs)
    busy = sum(bool(node.holders) for node in cluster.nodes)
    ended = max(cluster.ended, len(cluster.jobs) - len(jobs))  # an older controller gives all ended jobs, and no number
    alarms = f", {len(cluster.alarms)} alarms" if cluster.alarms else ""
    return (
        f"{len(jobs) - waiting} jobs have a place, {waiting} are in line, {ended} have ended; "
        f"{busy} of {len(cluster.nodes)} nodes at work{alarms}"
    )


def _prices(cluster: ClusterView) -> Text:
    alone = cluster.usd_per_hour_alone
    saved = f" ({1 - cluster.usd_per_hour / alone:.0%} saved)" if alone else ""
    text = (
        f"All jobs: ${cluster.usd_per_hour:.2f} an hour shared, ${alone:.2f} alone{saved}, "
        f"${cluster.usd_per_hour_fluid:.2f} for the work"
    )
    return Text(text, no_wrap=True, overflow="ellipsis")


def _use(pools: Sequence[PoolView]) -> Text:
    """How the hours of each pool's nodes with jobs were used."""
    parts = []
    for pool in pools:
        pinned_s = pool.busy_s + pool.switch_s + pool.lost_s + pool.idle_s
        if pinned_s:
            did = {"busy": pool.busy_s, "switching": pool.switch_s, "lost": pool.lost_s}
            shares = [f"{seconds / pinned_s:.0%} {what}" for what, seconds in did.items() if seconds or what == "busy"]
            parts.append(f"{pool.pool} {', '.join(shares)}")
    text = f"Nodes with jobs have been: {'; '.join(parts)}" if parts else ""
    return Text(text, no_wrap=True, overflow="ellipsis")


def _since(history: HistoryView | None) -> Since:
    """For how long each phase has waited."""
    if history is None:
        return {}
    return {(wait.job, wait.kind): history.now - wait.since_s for wait in history.waits}


def _nodes(nodes: Sequence[NodeView], most: int, width: int) -> Table:
    table = _table("group", "node", "pool", "state", "held by")
    for node in sorted(nodes, key=lambda node: (not node.group, node.group, node.pool, node.node))[:most]:
        state = f"{node.state}, drained" if node.cordoned else node.state
        style = "" if node.holders else "dim"
        table.add_row(node.group, node.node, node.pool, state, ", ".join(node.holders) or "–", style=style)
    _say_what_is_left_out(table, len(nodes) - most)
    return fitted(table, width, *_SPARE_OF_NODES)


def _jobs(jobs: Sequence[JobView], since: Since, most: int, width: int) -> Table:
    wide = width >= WIDE
    table = _table(*(("group", "job", "state") if wide else ("job",)), "does", "waits for")
    for column in ("iterations", *(("alone",) if wide else ()), "lately", "SLO left"):
        table.add_column(column, justify="right", no_wrap=True)
    for job in jobs[:most]:
        does = "\n".join(_doing(lane) for lane in job.lanes if not _is_waiting(lane))
        left = job.slo_headroom
        table.add_row(
            *((job.group, job.job, job.state) if wide else (job.job,)),
            does or ("–" if wide else job.state),
            _waiting(job, since),
            f"{job.synced}" if job.iterations is None else f"{job.synced}/{job.iterations}",
            *((f"{job.solo_s:.1f} s",) if wide else ()),
            "–" if job.recent_s is None else f"{job.recent_s:.1f} s",
            Text("–" if left is None else f"{left:.0%}", style="bold red" if left is not None and left < 0 else ""),
        )
    _say_what_is_left_out(table, len(jobs) - most)
    return fitted(table, width, *_SPARE_OF_JOBS)


def _table(*columns: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _say_what_is_left_out(table: Table, count: int) -> None:
    if count > 0:
        table.add_row("…", f"{count} more")


def _order(job: JobView) -> tuple[bool, str, str]:
    return job.state == Job.QUEUED.value, job.group, job.job


def _doing(lane: LaneView) -> str:
    since = "" if lane.for_s is None else f" for {lane.for_s:.0f} s"
    return f"{lane.kind}({lane.iteration}) {lane.state}{since}"


def _is_waiting(lane: LaneView) -> bool:
    return lane.state == Phase.WAITING.value


def _waiting(job: JobView, since: Since) -> str:
    """What the job waits for: a place, or a phase's turn; since when, and how long still, if that is known."""
    lines = []
    for lane in filter(_is_waiting, job.lanes):
        waited_s = since.get((job.job, lane.kind))
        already = "" if waited_s is None else f" for {waited_s:.0f} s"
        whom = ", ".join(lane.waits_for) or "its turn"
        lines.append(f"{lane.kind}({lane.iteration}): {whom}{already}{_about(lane.expected_s)}")
    if job.reason:
        lines.append(f"{job.reason}{_about(job.expected_wait_s)}")
    return "\n".join(lines)


def _about(seconds: float | None) -> str:
    return "" if seconds is None or seconds < 1 else f", about {seconds:.0f} s more"
