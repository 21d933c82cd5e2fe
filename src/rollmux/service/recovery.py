"""Makes a controller from its journal: the state as it was, and the errands of which nobody knows if they were run.

Invariant (I11): each record that is played again leads to what it led to before; otherwise the controller won't start.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from rollmux.errors import IllegalEvent, InvalidSpec, RollmuxError
from rollmux.mux import commands as cmd
from rollmux.mux import events as ev
from rollmux.mux import image as images
from rollmux.mux.changes import why_not_become
from rollmux.mux.cluster_machine import ClusterMachine, Entry
from rollmux.mux.cluster_state import ClusterState, Rules
from rollmux.mux.codec import decode, encode
from rollmux.mux.hardware import Cluster
from rollmux.mux.job_record import JobRecord
from rollmux.mux.node_book import NodeState
from rollmux.mux.policies import Policy
from rollmux.mux.transitions import Job
from rollmux.protocol.job_file import Submission, read_job
from rollmux.service.controller import HISTORY, Controller, Errand
from rollmux.service.history import History
from rollmux.service.journal import (
    ANOTHER_VERSION,
    UNREADABLE,
    VERSION,
    Image,
    Journal,
    JournalDamaged,
    Owned,
    Record,
    checksum,
)

T = TypeVar("T")

NEW_JOURNAL = (
    "begin a journal of its own: another --folder (all commands read ROLLMUX_FOLDER), in PostgreSQL another schema"
)

log = logging.getLogger("rollmux.service")


def recover(
    journal: Journal,
    cluster: Cluster,
    policy: Policy,
    rules: Rules,
    look: Callable[[ClusterState], object] = lambda state: None,
) -> tuple[Controller, float]:
    """The controller that goes on from this journal, and the machine time from which it does.

    The policy has to be the one that the journal was begun with. The cluster may have changed, as far as jobs can go on
    in it, and so may the rules. `look` sees the state before the cluster changes, and may raise.
    """
    head, wanted = journal.head(), _head(cluster, policy, rules)
    if not head:
        journal.begin(wanted)
        head = journal.head()
    _require_same(head, wanted)
    played_by = _begun_with(Rules, head, "rules")
    machine, history, now = _play(journal, _begun_with(Cluster, head, "cluster"), policy, played_by)
    if played_by != rules:
        machine, history = _under_new_rules(journal, machine, history, now, policy, rules)
    state, owned, forgotten, came = machine.state, [], [], set()
    for each in journal.owned():
        if each.job_id not in state.jobs and each.job_id not in state.ended:
            forgotten.append(each.job_id)
        elif (submission := _submission(each, is_over=each.job_id in state.ended)) is not None:
            owned.append((each.tenant, submission))
            came |= {each.job_id} if each.came else set()
    controller = Controller(machine, owned, history, forgotten, came)
    look(machine.state)
    _become(controller, journal, cluster, now)
    return controller, now


def _submission(owned: Owned, *, is_over: bool) -> Submission | None:
    """A job as it was submitted. Another version may have taken what this one would refuse: None if the job is over."""
    try:
        return read_job(owned.data)
    except InvalidSpec as error:
        if is_over:
            return None
        why = "; ".join(map(str, error.problems))
        raise JournalDamaged(f"job {owned.job_id!r} can't go on in this version ({why}): {ANOTHER_VERSION}") from error


def _become(controller: Controller, journal: Journal, cluster: Cluster, now: float) -> None:
    """Changes the cluster to this one, which is written to the journal before anybody hears of it."""
    state = controller.machine.state
    before, fixed = state.cluster, cluster.fixed_nodes
    counted = {pool.name for pool in cluster.pools if not pool.on_demand and pool.max_nodes is not None}
    gone = tuple(node for node, each in state.book.nodes.items() if each.pool in counted and node not in fixed)
    if cluster == before and not gone:
        return
    if problems := why_not_become(state, cluster, gone):
        raise RollmuxError(
            f"the journal's cluster can't become that now: {'; '.join(problems)}. Start with the file as it was; for "
            f"another cluster {NEW_JOURNAL}"
        )
    controller.tell(now, ev.ClusterChanged(cluster, gone))
    batch, _, _ = controller.take()  # `errands_after` has its errands: none is run before the launcher has begun
    journal.append(batch)
    changes = ", ".join(_apart("cluster", encode(Cluster, before), encode(Cluster, cluster)))
    log.info("the cluster is not what it was: %s", changes or f"without {', '.join(gone)}")


def _apart(path: str, before: Any, after: Any) -> Iterator[str]:
    """The values that differ, each with its path: a cluster is long, and often one number of it has changed."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in before:
            yield from _apart(f"{path}.{key}", before[key], after[key])
    elif before != after:
        yield f"{path} was {before} and is {after}"


def replayed(journal: Journal, policy_of: Callable[[str], Policy]) -> tuple[ClusterMachine, Iterator[Entry]]:
    """A machine as it was where the history begins, and every record since, each played on it as it is read."""
    head = journal.head()
    if not head:
        raise JournalDamaged("the journal is empty: no controller has written to it")
    rules = replace(_begun_with(Rules, head, "rules"), log_limit=0)
    cluster, begins = _begun_with(Cluster, head, "cluster"), journal.begins()
    policy = policy_of(head["policy"])
    machine = ClusterMachine(cluster, policy, rules)
    if begins:
        saved = journal.image(begins)
        if saved is None:
            raise JournalDamaged(f"the image after record {begins}, with which the history begins, can't be read")
        _require_version(saved)
        state, _ = _parts(saved)
        machine = images.restore(state, cluster, policy, rules)
    return machine, (_entry(machine, record) for record in journal.records(begins))


def _entry(machine: ClusterMachine, record: Record) -> Entry:
    commands = _again(machine, record)
    return Entry(record.seq, record.at, record.event, commands, machine.cause)


def errands_after(controller: Controller) -> list[Errand]:
    """Launches, stops and nodes that were wanted when the controller ended. Each may have been carried out already."""
    state = controller.machine.state
    # Nodes that were asked for and have not come yet. A lost node had come before: it is not asked for twice.
    coming = [(name, node) for name, node in state.book.nodes.items() if node.state is NodeState.COMING]
    nodes = [cmd.Provision(name, node.pool) for name, node in coming]
    jobs = [errand for record in state.jobs.values() for errand in _errands_of(record)]
    return [*nodes, *jobs]


def _errands_of(record: JobRecord) -> list[Errand]:
    if record.state is Job.STARTING and record.placement is not None:
        return [cmd.Launch(record.job.id, record.attempt, record.placement)]
    if record.state is Job.STOPPING:
        return [cmd.Stop(record.job.id, record.attempt, "it was to end before the controller was started anew")]
    return []


def _head(cluster: Cluster, policy: Policy, rules: Rules) -> dict[str, Any]:
    """What a journal is begun with. Its records lead to the same state again only if all of these are the same."""
    return {
        "journal": VERSION,
        "cluster": encode(Cluster, cluster),
        "policy": policy.name,
        "rules": encode(Rules, rules),
    }


def _require_same(head: dict[str, Any], wanted: dict[str, Any]) -> None:
    for name in ("journal", "policy"):
        if head.get(name) != wanted[name]:
            raise RollmuxError(
                f"the journal was begun with another {name} (it was {head.get(name)} and is {wanted[name]}): "
                f"start with that {name}; for another {NEW_JOURNAL}"
            )


def _begun_with(kind: type[T], head: dict[str, Any], name: str) -> T:
    try:
        return decode(kind, head[name])
    except UNREADABLE as error:
        raise JournalDamaged(
            f"the {name} that the journal was begun with can't be read ({error}): {ANOTHER_VERSION}"
        ) from error


def _play(journal: Journal, cluster: Cluster, policy: Policy, rules: Rules) -> tuple[ClusterMachine, History, float]:
    """Plays every record after the latest image. If that has no history, the books begin where it was made."""
    saved = journal.image()
    machine, seq, now, kept = ClusterMachine(cluster, policy, rules), 0, 0.0, None
    if saved is not None and journal.begins():
        _require_version(saved)
    if saved is not None and saved.state.get("version") in images.READ:  # else all records are played
        state, kept = _parts(saved)
        machine, seq, now = images.restore(state, cluster, policy, rules), saved.seq, saved.at
    history = History(machine.state, kept)
    for record in journal.records(seq):
        history.heard(record.at, record.event, _again(machine, record))
        now = record.at
    return machine, history, now


def _parts(saved: Image) -> tuple[images.MachineImage, Any]:
    """The machine's state, and the history if the image has one."""
    state = dict(saved.state)
    kept = state.pop(HISTORY, None)
    return images.from_json(state), kept


def _require_version(saved: Image) -> None:
    if (version := saved.state.get("version")) not in images.READ:
        raise JournalDamaged(
            f"the image after record {saved.seq} is of version {version}, this program reads "
            f"{' and '.join(map(str, images.READ))}, and the records before it are not kept: start the version that "
            "wrote it, and change it once all jobs have ended"
        )


def _again(machine: ClusterMachine, record: Record) -> tuple[cmd.Command, ...]:
    try:
        commands = machine.handle(record.at, record.event)
        told = checksum(commands)
    except IllegalEvent as error:
        raise _other_version(record, str(error)) from error
    if machine.state.ledger.seq != record.seq:
        raise _other_version(record, "here it changes nothing")
    if told != record.told:
        raise _other_version(record, "here it leads to something else")
    return commands


def _other_version(record: Record, why: str) -> JournalDamaged:
    return JournalDamaged(
        f"record {record.seq} of the journal, {type(record.event).__name__}, can't be played again ({why}): "
        f"{ANOTHER_VERSION}"
    )


def _under_new_rules(
    journal: Journal, machine: ClusterMachine, history: History, now: float, policy: Policy, rules: Rules
) -> tuple[ClusterMachine, History]:
    """The same state under other rules. The journal begins anew here: older records are never played under these."""
    saved, cluster, kept = images.image(machine), machine.state.cluster, history.saved()
    if saved.seq:
        journal.keep(Image(saved.seq, now, {**images.to_json(saved), HISTORY: kept}))
    journal.begin(_head(cluster, policy, rules), saved.seq)
    again = images.restore(saved, cluster, policy, rules)
    return again, History(again.state, kept)
