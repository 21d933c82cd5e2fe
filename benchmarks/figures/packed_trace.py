"""The production-like trace with and without packed rounds: the replays, and the results that are kept of them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rollmux.mux.hardware import PAPER_CLUSTER
from rollmux.mux.job import PhaseKind
from rollmux.sim.generate import GENERATORS
from rollmux.sim.job.shipped import SETUPS
from rollmux.sim.job.system import ROLLMUX
from rollmux.sim.packed import ByName, Packing, packed_workload
from rollmux.sim.profile import Profile, recorded
from rollmux.sim.replay import Fidelity, Settings, replay
from rollmux.sim.workload import HOUR_S, Workload

# How profiles are taken: which system, and whether the synchronous job's rollout holds its rewards.
COUNTED = "rewards in the rollout"
APART = "rewards apart"
NO_RACE = "no race of responses"
SYSTEMS = {
    COUNTED: (ROLLMUX, True),
    APART: (ROLLMUX, False),
    NO_RACE: (replace(ROLLMUX, eta_responses=1.0), True),
}
AS_IT_IS = "as it is"  # jobs that are not packed


@dataclass(frozen=True, slots=True)
class Recording:
    """One profile to record."""

    variant: str
    setup: str
    cycles: int
    seed: int


def record_profile(run: Recording) -> Profile:
    """Plays the job of a setup."""
    system, rewards = SYSTEMS[run.variant]
    return recorded(SETUPS[run.setup], system, run.cycles, run.seed, rewards=rewards)


@dataclass(frozen=True)
class PackedRun:
    """One policy on the trace of one seed, packed by the profiles if there are any."""

    policy: str
    seed: int
    variant: str = AS_IT_IS
    profiles: Mapping[str, Profile] | None = None
    promised: bool = False  # SLOs against the synchronous job
    phases: bool = False
    stagger: bool = False
    jobs: int | None = None
    hours: float | None = None

    @property
    def key(self) -> tuple[str, str, bool, bool, bool]:
        """What is told apart, the seed aside."""
        return self.policy, self.variant, self.promised, self.phases, self.stagger

    def workload(self) -> Workload:
        """The trace as this run replays it."""
        drawn = GENERATORS["production"](self.seed, self.jobs, self.hours)
        if self.profiles is None:
            return drawn
        return packed_workload(drawn, ByName(self.profiles), promised=self.promised)


@dataclass(frozen=True, slots=True)
class Bill:
    """What a run pays, what no schedule of its work could undercut, and what became of its SLOs."""

    usd: float
    whole_node_usd: float
    rollout_usd: float  # of the work itself, by pool
    train_usd: float
    slo: float
    worst: float
    moves: int

    @property
    def fluid_usd(self) -> float:
        return self.rollout_usd + self.train_usd


def run_packed(run: PackedRun) -> Bill:
    """Replays the trace in work accounting."""
    workload = run.workload()
    packing = None if run.profiles is None else Packing(ByName(run.profiles), run.stagger)
    fidelity = Fidelity.PHASE if run.phases else Fidelity.PACE
    outcome = replay(workload, run.policy, Settings(fidelity=fidelity, seed=run.seed, packing=packing))
    return Bill(
        outcome.usd_total,
        outcome.whole_node_usd,
        work_usd(workload, PhaseKind.ROLLOUT),
        work_usd(workload, PhaseKind.TRAIN),
        outcome.slo_attainment,
        max(job.over_slo for job in outcome.jobs),
        outcome.moves,
    )


def work_usd(workload: Workload, kind: PhaseKind) -> float:
    """The price of all phases of this kind, were no node ever idle."""
    pool = PAPER_CLUSTER.rollout if kind is PhaseKind.ROLLOUT else PAPER_CLUSTER.train
    node_s = sum(
        arrival.iterations * arrival.job.phase(kind).planned_s * arrival.job.phase(kind).nodes
        for arrival in workload.arrivals
    )
    return node_s / HOUR_S * pool.node_type.usd_per_hour
