"""The cluster tier: pure values, forecasts, placement and the weave state machine. Standard library only.

A clock, a file or a random number would make a history impossible to repeat: time comes in with each event.

Each name below loads its module when it is first used: a job that attaches itself needs hardly any of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rollmux.mux.cluster_machine import ClusterMachine, Entry
    from rollmux.mux.cluster_state import Checks, Rules
    from rollmux.mux.commands import Command, Lease
    from rollmux.mux.events import Event, JobSubmitted
    from rollmux.mux.forecast import Forecast, Forecaster
    from rollmux.mux.group import Group
    from rollmux.mux.hardware import PAPER_CLUSTER, Cluster, NodeType, Pool, elastic, finite
    from rollmux.mux.job import JobSpec, PhaseKind, PhaseSpec, Tail
    from rollmux.mux.order import Order
    from rollmux.mux.placed import Member, Placement
    from rollmux.mux.plan import Decision, Plan
    from rollmux.mux.policies import Policy
    from rollmux.mux.policies.paper import PaperPolicy
    from rollmux.mux.policies.rollmux import RollmuxPolicy
    from rollmux.mux.snapshot import Snapshot
    from rollmux.mux.weave import Timing

__all__ = [
    "PAPER_CLUSTER",
    "Checks",
    "Cluster",
    "ClusterMachine",
    "Command",
    "Decision",
    "Entry",
    "Event",
    "Forecast",
    "Forecaster",
    "Group",
    "JobSpec",
    "JobSubmitted",
    "Lease",
    "Member",
    "NodeType",
    "Order",
    "PaperPolicy",
    "PhaseKind",
    "PhaseSpec",
    "Placement",
    "Plan",
    "Policy",
    "Pool",
    "RollmuxPolicy",
    "Rules",
    "Snapshot",
    "Tail",
    "Timing",
    "elastic",
    "finite",
]

_HOMES = {
    "cluster_machine": ("ClusterMachine", "Entry"),
    "cluster_state": ("Checks", "Rules"),
    "commands": ("Command", "Lease"),
    "events": ("Event", "JobSubmitted"),
    "forecast": ("Forecast", "Forecaster"),
    "group": ("Group",),
    "hardware": ("PAPER_CLUSTER", "Cluster", "NodeType", "Pool", "elastic", "finite"),
    "job": ("JobSpec", "PhaseKind", "PhaseSpec", "Tail"),
    "order": ("Order",),
    "placed": ("Member", "Placement"),
    "plan": ("Decision", "Plan"),
    "policies": ("Policy",),
    "policies.paper": ("PaperPolicy",),
    "policies.rollmux": ("RollmuxPolicy",),
    "snapshot": ("Snapshot",),
    "weave": ("Timing",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _HOME_OF:
        return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
