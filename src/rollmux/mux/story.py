"""What happened to a job and why, from the log: each line names the earlier line that it answers."""

from collections.abc import Callable, Iterable

from rollmux.mux.cluster_machine import Entry
from rollmux.mux.commands import Command, Grant
from rollmux.mux.events import ClusterChanged, Event, JobSubmitted, PhaseRequested
from rollmux.mux.hardware import Pool


def story(log: Iterable[Entry], job_id: str, name: Callable[[str], str] = str) -> list[str]:
    """The job's history, oldest first: events, and below each the commands to this job that followed from it.

    `name` gives the words by which a job may be mentioned. If these are not its id, only the kind of event is told.
    """
    lines = []
    for entry in log:
        commands = [command for command in entry.commands if _job_of(command) == job_id]
        own = _job_of(entry.event) == job_id
        if own or commands:
            because = f", after {entry.cause}" if entry.cause else ""
            lines.append(f"{entry.seq} at {entry.at:.3f} s{because}: {_heard(entry.event, name)}")
            lines += [f"    {entry.seq}.{i}: {_tell(c)}" for i, c in enumerate(entry.commands) if c in commands]
    return lines


def _job_of(message: Event | Command) -> str | None:
    if isinstance(message, JobSubmitted):
        return message.job.id
    if isinstance(message, Grant):
        return message.lease.job_id
    return getattr(message, "job_id", None)


def _heard(event: Event, name: Callable[[str], str]) -> str:
    job_id = _job_of(event)
    if job_id is None or name(job_id) == job_id:
        return _tell(event)
    return f"{type(event).__name__} of {name(job_id)}"


def _tell(message: Event | Command) -> str:
    name = type(message).__name__
    if isinstance(message, JobSubmitted):
        return f"{name} {message.job.id}"
    if isinstance(message, PhaseRequested):
        return f"{name} {message.job_id} {message.kind.value}({message.iteration}), attempt {message.attempt}"
    if isinstance(message, Grant):
        lease = message.lease
        nodes = f" on {', '.join(lease.nodes)}" if lease.nodes else ""
        return f"{name} {lease.job_id} {lease.kind.value}({lease.iteration}){nodes}, lease {lease.epoch}"
    if isinstance(message, ClusterChanged):
        gone = f", without {', '.join(message.gone)}" if message.gone else ""
        return f"{name} {', '.join(map(_pool, message.cluster.pools))}{gone}"
    said = {field: getattr(message, field) for field in message.__dataclass_fields__ if field != "job_id"}
    parts = [f"{field}={_shown(value)}" for field, value in said.items() if value is not None]
    who = getattr(message, "job_id", "")
    return " ".join([name, *([who] if who else []), *parts])


def _shown(value: object) -> str:
    """A measure is shown with the digits that say something; the journal keeps all of them."""
    if not isinstance(value, float):
        return repr(value)
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"


def _pool(pool: Pool) -> str:
    """The parts of a pool that most changes of a cluster change."""
    count = "any number" if pool.max_nodes is None else str(pool.max_nodes)
    return f"{pool.name}: {count} of {pool.node_type.name} for ${pool.node_type.usd_per_hour:g}/h each"
