"""The cluster tier: pure values, forecasts, placement and the weave state machine. Standard library only.

A clock, a file or a random number would make a history impossible to repeat: time comes in with each event.
"""

from rollmux.mux.cluster_machine import ClusterMachine, Entry
from rollmux.mux.cluster_state import Checks, Rules
from rollmux.mux.commands import Command, Lease
from rollmux.mux.events import Event, JobSubmitted
from rollmux.mux.explain import explain
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
from rollmux.mux.story import story
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
    "explain",
    "finite",
    "story",
]
