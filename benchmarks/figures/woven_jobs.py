"""Jobs that only take time: how long they take under a real controller, and in virtual time."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log, sqrt
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from benchmarks.figures import timed_job
from rollmux.cli.remote import Remote
from rollmux.cli.woven.figures import FINISHED, Measured, NotSideBySide, step_ends
from rollmux.cli.woven.floor import controller
from rollmux.cli.woven.runs import LOOK_S, JobFailed, log_of
from rollmux.errors import RollmuxError
from rollmux.mux import ClusterMachine, Forecaster, Group, JobSpec, PhaseKind, RollmuxPolicy
from rollmux.mux.events import NodeJoined
from rollmux.mux.forecast import Taken, likely_s
from rollmux.mux.hardware import Cluster
from rollmux.mux.transitions import Job
from rollmux.protocol.cluster_file import read_cluster_file
from rollmux.protocol.history import HistoryView
from rollmux.protocol.job_file import read_job
from rollmux.protocol.messages import Done
from rollmux.protocol.views import ClusterView, JobView
from rollmux.sim.cast import Cast

ROLLOUT_NODES, TRAIN_NODES = 2, 1
ALL_S = 100_000
PLACED_S, GIVE_UP_S = 20.0, 600.0
ROLLOUT, TRAIN, SYNC = (kind.value for kind in PhaseKind)
UNKNOWN_S, SLO_ALONE = 10.0, 10.0  # what is said of a job before it was ever measured; alone it is in nobody's way
SYNC_S, LOAD_S, OFFLOAD_S, PAUSE_S = 0.02, 0.04, 0.02, 0.03


@dataclass(frozen=True, slots=True)
class Shape:
    """A job by what its phases take in the mean."""

    name: str
    rollout_s: float
    train_s: float
    rollout_nodes: int
    slo: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What a job does: how long each rollout and each training takes."""

    shape: Shape
    rollout_s: tuple[float, ...]
    train_s: tuple[float, ...]

    @property
    def name(self) -> str:
        return self.shape.name

    @staticmethod
    def drawn(shape: Shape, steps: int, spread: float, seed: int) -> "Plan":
        """Phases of a skewed distribution around their means, `spread` being its standard deviation over its mean."""
        sigma = sqrt(log(1 + spread * spread))
        rng = Random(f"{seed}/{shape.name}")
        rollouts, trains = (
            tuple(mean_s * exp(rng.gauss(-sigma * sigma / 2, sigma)) for _ in range(steps))
            for mean_s in (shape.rollout_s, shape.train_s)
        )
        return Plan(shape, rollouts, trains)

    def first(self, steps: int) -> "Plan":
        return Plan(self.shape, self.rollout_s[:steps], self.train_s[:steps])

    def submission(
        self, folder: Path, phases_s: Mapping[str, float], slo: float, *, profile: int = 0
    ) -> dict[str, Any]:
        """What the controller is told: phases take so long. Everything that the job reads is in the folder."""
        folder.mkdir(parents=True)
        file = folder / "plan.json"
        moving = {"load_s": LOAD_S, "offload_s": OFFLOAD_S}
        told = {"rollout_s": self.rollout_s, "train_s": self.train_s, "sync_s": SYNC_S, **moving}
        file.write_text(json.dumps(told), encoding="utf-8")
        phase = {"pause_s": PAUSE_S, **moving}
        return {
            "name": self.name,
            "slo": slo,
            "max_attempts": 1,  # one that began again would have measured that
            "rollout": {"nodes": self.shape.rollout_nodes, "duration_s": phases_s[ROLLOUT], **phase},
            "train": {"nodes": 1, "duration_s": phases_s[TRAIN], **phase},
            "sync_s": phases_s[SYNC],
            "command": [sys.executable, timed_job.__file__, str(file)],
            "folder": str(folder),
        }


UNKNOWN = {ROLLOUT: UNKNOWN_S, TRAIN: UNKNOWN_S, SYNC: 0.0}


@dataclass(frozen=True, slots=True)
class Run:
    """What a controller saw of some jobs, and what it last said of each while all were there."""

    cluster: Cluster
    specs: tuple[JobSpec, ...]
    history: HistoryView
    views: Mapping[str, JobView]

    def phases_s(self, job: str, kind: str) -> list[float]:
        """What each phase took once its state was there."""
        return Measured(self.history, {}, 0.0, ALL_S).phase_s(job, kind)

    def taken(self, job: str) -> tuple[Taken, ...]:
        """What each iteration would hold its nodes for beside others, where state has to be moved."""
        rollouts, trains, syncs = (self.phases_s(job, kind) for kind in (ROLLOUT, TRAIN, SYNC))
        switch_s = LOAD_S + OFFLOAD_S
        return tuple(Taken(r + switch_s, t + switch_s, s) for r, t, s in zip(rollouts, trains, syncs, strict=True))

    def paces_s(self) -> dict[str, float]:
        return paces_s({spec.id: step_ends(self.history, spec.id) for spec in self.specs})


def paces_s(ends: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Each job's mean time from step to step, from when all have made one until one has made its last."""
    from_s, to_s = max(each[0] for each in ends.values()), min(each[-1] for each in ends.values())
    found = {}
    for job, each in ends.items():
        steps = [later - sooner for sooner, later in pairwise(each) if sooner >= from_s and later <= to_s]
        if not steps:
            raise NotSideBySide(f"{job} has made no step beside the others; give more steps")
        found[job] = fmean(steps)
    return found


def run(folder: Path, submissions: Sequence[Mapping[str, Any]]) -> Run:
    """These jobs under a controller of their own until one of them has ended; all must share one group."""
    specs = tuple(read_job(submission).job for submission in submissions)
    here = folder / "service"
    with controller(here, ROLLOUT_NODES, TRAIN_NODES) as there:
        for submission in submissions:
            there.post(Done, "/v1/jobs", submission)
        _require_one_group(there)
        views = _until_one_ends(there)
        history = there.get(HistoryView, "/v1/history", since_s=ALL_S)
    return Run(read_cluster_file(here / "cluster.yaml").cluster, specs, history, views)


def _require_one_group(there: Remote) -> None:
    give_up = time.monotonic() + PLACED_S
    while True:
        jobs = there.get(ClusterView, "/v1/cluster").jobs
        if all(job.state == Job.RUNNING.value for job in jobs):
            break
        if time.monotonic() > give_up:
            states = "; ".join(f"{job.job} is {job.state} {job.reason}" for job in jobs)
            raise NotSideBySide(f"not all jobs have a place: {states}")
        time.sleep(0.1)
    if len({job.group for job in jobs}) > 1:
        raise NotSideBySide(f"the jobs are in several groups: {', '.join(f'{job.job} in {job.group}' for job in jobs)}")


def _until_one_ends(there: Remote) -> dict[str, JobView]:
    views: dict[str, JobView] = {}
    give_up = time.monotonic() + GIVE_UP_S
    while time.monotonic() < give_up:
        jobs = there.get(ClusterView, "/v1/cluster").jobs
        ended = [job for job in jobs if job.state == Job.ENDED.value]
        if any(job.reason != FINISHED for job in ended):
            raise JobFailed("\n".join(f"{job.job}: {job.reason}\n{log_of(there, job.job)}" for job in ended))
        if ended:
            return views
        seen = {job.job: there.get(JobView, f"/v1/jobs/{job.job}") for job in jobs}
        if all(view.state == Job.RUNNING.value for view in seen.values()):
            views = seen
        time.sleep(LOOK_S)
    raise RollmuxError(f"no job has ended after {GIVE_UP_S:.0f} s")


@dataclass(frozen=True, slots=True)
class Virtual:
    """The same jobs in virtual time: their paces, and the group that the placement makes of them."""

    group: Group
    paces_s: Mapping[str, float]

    def forecast_s(self, phases_s: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        """The forecast of the same group if its phases always took so long."""
        group = self.group
        for job, seconds in phases_s.items():
            spec = group.member(job).job
            group = group.with_job(spec.measured(seconds[ROLLOUT], seconds[TRAIN], seconds[SYNC]))
        return self._by_name(Forecaster().forecast(group).iteration_s)

    def likely_s(self, taken: Mapping[str, Sequence[Taken]]) -> dict[str, float]:
        """The forecast where phases vary as these did."""
        return self._by_name(likely_s(self.group, taken))

    def _by_name(self, paces_s: Sequence[float]) -> dict[str, float]:
        return dict(zip((member.job.id for member in self.group.members), paces_s, strict=True))


def simulated(cluster: Cluster, specs: Sequence[JobSpec], plans: Sequence[Plan]) -> Virtual:
    """The machine that a controller runs, with jobs that take exactly the times of their plans."""
    by_name = {plan.name: plan for plan in plans}

    def takes(job: JobSpec, kind: PhaseKind, iteration: int) -> float:
        plan = by_name[job.id]
        if kind is PhaseKind.SYNC:
            return job.sync_s
        seconds = plan.rollout_s if kind is PhaseKind.ROLLOUT else plan.train_s
        return seconds[iteration % len(seconds)]

    cast = Cast(ClusterMachine(cluster, RollmuxPolicy()), takes=takes)
    for pool in cluster.pools:
        for node in pool.fixed_nodes:
            cast.tell(NodeJoined(node, pool.name))
    for spec in specs:
        cast.submit(0.0, spec)
    cast.run(0.0)
    if len({record.group_id for record in cast.machine.state.jobs.values()}) > 1:
        raise NotSideBySide("in virtual time the jobs are not in one group")
    steps = len(plans[0].rollout_s)
    while not any(cast.done(spec.id) >= steps for spec in specs):
        cast.run(cast.now + 10.0)
    until_s = min(ends[steps - 1] for ends in cast.completed.values() if len(ends) >= steps)
    paces = paces_s({job: [end for end in ends if end <= until_s] for job, ends in cast.completed.items()})
    (group,) = cast.machine.state.groups.values()
    return Virtual(group, paces)
