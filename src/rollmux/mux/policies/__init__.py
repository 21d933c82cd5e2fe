"""Placement policies: pure functions of a job and a snapshot."""

from math import inf
from typing import Protocol

from rollmux.mux.forecast import Forecaster
from rollmux.mux.job import JobSpec
from rollmux.mux.plan import Decision
from rollmux.mux.snapshot import Snapshot


class Policy(Protocol):
    """Where a job should go. The same job and snapshot always give the same decision.

    A place that adds `below_usd` an hour or more is of no use to the caller: a policy need not look for it.
    """

    @property
    def name(self) -> str: ...

    @property
    def forecaster(self) -> Forecaster: ...

    def place(self, job: JobSpec, snapshot: Snapshot, below_usd: float = inf) -> Decision: ...
