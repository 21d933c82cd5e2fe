"""What is there beside the controller and outlives it: the launcher's processes, and the nodes that were rented.

Both report until they are heard, late or more than once, to whichever life of the controller is there.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from rollmux.mux import events as ev
from tests.service.host_model import exited
from tests.service.job_model import Process

if TYPE_CHECKING:
    from tests.service.world import World

Key = tuple[str, int]
STOPPED = "stopped"


class Launcher:
    """Runs attempts: all ranks of one live and end together."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.runs: dict[Key, list[Process]] = {}
        self.over: set[Key] = set()

    def running(self) -> list[Key]:
        return list(self.runs)

    def start(self, key: Key, done: Callable[[], None]) -> None:
        """Done when its processes are up. One that runs, or is over, is left alone."""

        def up() -> None:
            if key not in self.runs and key not in self.over:
                submission = self.world.submissions[key[0]]
                ranks = range(submission.processes)
                self.runs[key] = [Process(self.world, submission, rank, key[1], self._ended) for rank in ranks]
                for process in self.runs[key]:
                    process.start()
            done()

        self.world.after(self.world.rng.uniform(0.1, 3.0), up)

    def stop(self, key: Key, done: Callable[[], None]) -> None:
        """Done when nothing of it runs any more, which takes less than the drain time."""

        def down() -> None:
            self._end(key)
            done()

        self.world.after(self.world.rng.uniform(0.1, 5.0), down)

    def _end(self, key: Key) -> None:
        self.over.add(key)
        for process in self.runs.pop(key, []):
            process.end(STOPPED, tell=False)

    def _ended(self, process: Process, failed: str) -> None:
        """A rank is gone. If it failed, the others are ended too; the last one's end is the attempt's."""
        key = process.job_id, process.launched_as or 0
        ranks = self.runs.get(key, [])
        if failed or not any(each.alive for each in ranks):
            self.world.after(self.world.rng.uniform(0.0, 1.0), lambda: self._all_ended(key, failed))

    def _all_ended(self, key: Key, failed: str) -> None:
        if key in self.runs:
            self._end(key)
            self.world.report(lambda heard: self.world.host.hear(exited(key, failed), heard))


class Provider:
    """Rents nodes out, or has some that are simply there."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.nodes: dict[str, str] = {}
        self.wanted: set[str] = set()

    def get(self, node: str, pool: str) -> None:
        """The node comes in a while, and says so. It may have been asked for before."""
        self.wanted.add(node)
        self.world.after(self.world.rng.uniform(0.5, 10.0), lambda: self.add(node, pool))

    def add(self, node: str, pool: str) -> None:
        if node in self.wanted and node not in self.nodes:
            self.nodes[node] = pool
            self._say(ev.NodeJoined(node, pool))

    def lose(self, node: str) -> None:
        """The node is gone for a while."""
        pool = self.nodes.pop(node)
        self._say(ev.NodeLost(node))
        self.world.after(self.world.rng.uniform(30.0, 90.0), lambda: self.add(node, pool))

    def give_back(self, node: str) -> None:
        self.wanted.discard(node)
        self.nodes.pop(node, None)

    def _say(self, event: ev.NodeJoined | ev.NodeLost) -> None:
        """Until it is heard, or something else holds of the node."""
        here = isinstance(event, ev.NodeJoined)
        self.world.report(
            lambda heard: self.world.host.hear(
                lambda _: event if (event.node in self.nodes) is here and event.node in self.wanted else None, heard
            )
        )


class Owner:
    """Submits a job until that is answered; where the job has no command, runs its script until the job is over."""

    def __init__(self, world: "World", job_id: str) -> None:
        self.world, self.job_id = world, job_id
        self.accepted = False
        self.ranks: list[Process] = []

    def submit(self) -> None:
        submission = self.world.submissions[self.job_id]
        if not self.accepted:
            self.world.network(lambda: self.world.host.receive(self.job_id, submission, self._answered))
            self.world.after(4.0, self.submit)

    def cancel(self) -> None:
        """Repeated until the job is over, as owners do."""
        if self.accepted and self.job_id not in self.world.host.controller.machine.state.ended:
            call = ev.JobCancelled(self.job_id)
            self.world.network(lambda: self.world.host.receive(self.job_id, call, lambda _: None))
            self.world.after(5.0, self.cancel)

    def kill_early(self) -> None:
        """A script that has not done anything yet is killed, and for a while nobody looks after it."""
        if self.ranks and not any(process.work or process.kind or process.iteration for process in self.ranks):
            for process in self.ranks:
                process.end("killed by signal 9", tell=False)
            self.ranks = []
            self.world.after(self.world.rng.uniform(20.0, 60.0), self._run)

    def _answered(self, answer: object) -> None:
        self.world.network(self._accepted)

    def _accepted(self) -> None:
        if not self.accepted:
            self.accepted = True
            if not self.world.submissions[self.job_id].command:
                self._run()

    def _run(self) -> None:
        """A new life of the script, unless it would be in vain."""
        if self.job_id not in self.world.host.controller.machine.state.ended:
            submission, life = self.world.submissions[self.job_id], self.world.name_instance(self.job_id)
            ranks = range(submission.processes)
            self.ranks = [Process(self.world, submission, rank, None, self._ended, life) for rank in ranks]
            for process in self.ranks:
                process.start()

    def _ended(self, process: Process, failed: str) -> None:
        """If a rank fails, the others are ended too."""
        ranks = self.ranks
        if failed:
            self.world.after(self.world.rng.uniform(0.0, 1.0), lambda: self._end(ranks))
        elif not any(each.alive for each in ranks):
            self._end(ranks)

    def _end(self, ranks: list[Process]) -> None:
        if ranks is self.ranks:
            self.ranks = []
            for process in ranks:
                process.end(STOPPED, tell=False)
            self._again()

    def _again(self) -> None:
        self.world.after(self.world.rng.uniform(0.5, 8.0), self._run)
