"""Which process of a job does what. A launcher spreads processes over the nodes of a place, rollout nodes first."""

from dataclasses import dataclass

from rollmux.checks import Checks
from rollmux.client import Mux
from rollmux.trainer.settings import JobFile


@dataclass(frozen=True, slots=True)
class Roles:
    """One process for each rollout node, and the last for the training node; or one process that does everything."""

    rank: int
    followers: int

    @classmethod
    def of(cls, job: JobFile, mux: Mux) -> "Roles":
        """InvalidSpec if the processes, nodes and workers don't go together."""
        kin = mux.kin
        if kin.processes == 1:
            return cls(0, 0)
        nodes, checks = len(mux.rollout_nodes), Checks("job")
        if kin.processes != nodes + 1 or len(mux.train_nodes) != 1:
            given = f"{nodes} rollout and {len(mux.train_nodes)} training nodes"
            limit = f"1, or one for each rollout node and one for a single training node ({given})"
            checks.report("processes", kin.processes, limit, "change processes, or the nodes, of the submission")
        elif job.rollout.workers != nodes:
            checks.report("rollout.workers", job.rollout.workers, f"{nodes}, one for each rollout node", "write that")
        if job.update.early:
            checks.report("update.early", job.update.early, "0 where a job has several processes", "leave it out")
        checks.require()
        return cls(kin.rank, nodes)

    @property
    def leads(self) -> bool:
        return self.rank == self.followers
