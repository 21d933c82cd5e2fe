"""Which process of a job does what. A launcher spreads processes over the nodes of a place, rollout nodes first."""

from dataclasses import dataclass

from rollmux.checks import Checks
from rollmux.client import Mux
from rollmux.trainer.settings import JobFile


@dataclass(frozen=True, slots=True)
class Roles:
    """The role of this process. A job has one process that does everything; or one for each node, and the last leads.

    The others follow: first `engines` processes with an engine, on rollout nodes, then `replicas` of the learner.
    """

    rank: int
    engines: int
    replicas: int

    @classmethod
    def of(cls, job: JobFile, mux: Mux) -> "Roles":
        """InvalidSpec if the processes, nodes and workers don't go together."""
        kin = mux.kin
        if kin.processes == 1:
            return cls(0, 0, 0)
        engines, trains, checks = len(mux.rollout_nodes), len(mux.train_nodes), Checks("job")
        if kin.processes != engines + trains:
            limit = f"1, or one for each node ({engines} rollout and {trains} training nodes)"
            checks.report("processes", kin.processes, limit, "change processes, or the nodes, of the submission")
        elif job.rollout.workers != engines:
            checks.report("rollout.workers", job.rollout.workers, f"{engines}, one for each rollout node", "write that")
        if job.update.early:
            checks.report("update.early", job.update.early, "0 where a job has several processes", "leave it out")
        if trains > 1 and job.update.replicas > 1:
            limit = "1 where there are several training nodes: each has one"
            checks.report("update.replicas", job.update.replicas, limit, "leave it out")
        checks.require()
        return cls(kin.rank, engines, trains - 1)

    @property
    def followers(self) -> int:
        return self.engines + self.replicas

    @property
    def leads(self) -> bool:
        return self.rank == self.followers

    @property
    def draws(self) -> bool:
        """Whether this process follows with an engine."""
        return self.rank < self.engines
