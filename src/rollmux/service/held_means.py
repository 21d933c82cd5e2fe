"""What nodes had of their machines when a controller was last started.

Invariant: a node that jobs share keeps its cores and GPUs. Its jobs were begun with these, and another node's jobs
would be given them too. The machine of the node may change: what ran there is gone with the machine, or the machine is
the same under another name.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from rollmux.errors import RollmuxError
from rollmux.mux.cluster_state import ClusterState
from rollmux.protocol.node_means import Means
from rollmux.service.tokens import write_private

FILE = "nodes.json"
_KEPT = ("cores", "devices")


def require_kept(folder: Path, means: Mapping[str, Means], state: ClusterState) -> None:
    """Raises RollmuxError if a node that jobs share had other cores or GPUs. A node without an entry had all."""
    before, wrong = _before(folder / FILE), []
    for node, record in state.book.nodes.items():
        group = state.groups.get(record.group_id or "")
        if group is None or node not in before:
            continue
        jobs = ", ".join(dict.fromkeys(member.job.id for member in group.members))
        now = _plain(means.get(node, Means()))
        wrong += [
            f"{key} of node {node}, which is shared by {jobs}, were {_shown(had)} and are {_shown(now[key])}"
            for key, had in before[node].items()
            if had != now[key]
        ]
    if wrong:
        remedy = "leave entries of `nodes` in their places, and drain a node before it is given something else"
        raise RollmuxError(f"{'; '.join(wrong)}: {remedy}")


def keep(folder: Path, means: Mapping[str, Means], state: ClusterState) -> None:
    """Writes down what nodes have, for the next start."""
    found = {node: _plain(means.get(node, Means())) for node in {**state.book.nodes, **means}}
    write_private(folder / FILE, json.dumps(found, indent=1).encode())


def _before(path: Path) -> dict[str, dict[str, object]]:
    """What was kept, by node; nothing if no controller has kept any."""
    try:
        found: dict[str, dict[str, object]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError as error:
        remedy = "put back what it was, or remove it where no job runs"
        raise RollmuxError(f"{path}, which says what nodes have of their machines, is damaged: {remedy}") from error
    return found


def _plain(means: Means) -> dict[str, object]:
    return {key: None if (found := getattr(means, key)) is None else [*found] for key in _KEPT}


def _shown(some: object) -> str:
    return ", ".join(map(str, some)) if isinstance(some, list) else "all of its machine"
