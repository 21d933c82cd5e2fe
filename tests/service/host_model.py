"""The shell of the simulated controller: it can die before, within and after every write.

Invariant (I11): a reply and an errand leave only after the append of all that they can have seen.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollmux.errors import IllegalEvent, RollmuxError
from rollmux.mux import commands as cmd
from rollmux.mux import events as ev
from rollmux.mux.hardware import Cluster
from rollmux.mux.transitions import Job
from rollmux.protocol import messages as msg
from rollmux.protocol.job_file import Submission
from rollmux.service.controller import Controller, Errand, NoSuchJob, Refused
from rollmux.service.journal import Batch, Image
from rollmux.service.live import gone
from rollmux.service.recovery import errands_after, recover
from tests.service.memory_journal import DiskFull

if TYPE_CHECKING:
    from tests.service.world import World

Reply = Callable[[Any], None]
IMAGE_EVERY = 150


@dataclass(slots=True, eq=False)
class Parked:
    job_id: str
    call: Any
    reply: Reply
    until: float


class HostModel:
    """One controller after the other, on one journal."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.life = 0
        self.up = False
        self.begin()

    def begin(self) -> None:
        """A new life, from what is durable."""
        world = self.world
        self.controller, begins_at = self._recovered(world.edited_cluster() if self.life else world.cluster)
        self.origin = begins_at - world.now
        self.life += 1
        self.up, self.read_only, self.writing = True, False, False
        self.imaged = self.controller.machine.state.ledger.seq
        self.parked: list[Parked] = []
        self.outbox: list[tuple[str, Any, Reply]] = []
        self.queues: dict[str, list[Errand]] = defaultdict(list)
        self.flying: tuple[Batch, Controller] | None = None
        world.replays_to(self.controller)
        world.watch.began(self.controller)
        self._reconcile()
        self.controller.errands += errands_after(self.controller)
        self._write_soon()
        self._tick()

    def _recovered(self, cluster: Cluster) -> tuple[Controller, float]:
        """With a file of the cluster that may have been edited; where that can't be now, with the one before."""
        world = self.world
        try:
            found = recover(world.journal, cluster, world.policy(), world.rules)
        except (DiskFull, RollmuxError) as error:
            if world.cluster == cluster or not (world.journal.full or "can't become that now" in str(error)):
                raise
            return self._recovered(world.cluster)
        world.become(cluster)
        return found

    def _reconcile(self) -> None:
        """Launcher and provider say what there is: what should not be is ended, what should be is missed."""
        state, running = self.controller.machine.state, self.world.launcher.running()
        for job_id, attempt in running:
            record = state.jobs.get(job_id)
            if record is None or record.attempt != attempt:
                self._errand(cmd.Stop(job_id, attempt, "it is over"))
        for record in list(state.jobs.values()):
            launched = bool(self.controller.live(record.job.id).submission.command)
            if launched and record.state is Job.RUNNING and (record.job.id, record.attempt) not in running:
                self.tell(ev.JobFailed(record.job.id, record.attempt, "its processes are gone"))
        for node, pool in self.world.provider.nodes.items():
            self.tell(ev.NodeJoined(node, pool))

    @property
    def now(self) -> float:
        return self.origin + self.world.now

    def later(self, delay_s: float, act: Callable[[], None]) -> None:
        """Later in this life, if it lasts."""
        life = self.life
        self.world.after(delay_s, lambda: act() if self.up and self.life == life else None)

    # -- calls -------------------------------------------------------------------------------------------------------

    def receive(self, job_id: str, call: Any, reply: Reply) -> None:
        if not self.up or self.read_only:
            return
        answer = self._answer(job_id, call)
        wait_s = getattr(call, "wait_s", 0.0)
        if wait_s and not _settled(call, answer):
            parked = Parked(job_id, call, reply, self.world.now + wait_s)
            self.parked.append(parked)
            self.later(wait_s, lambda: self._look_again(parked))
        else:
            self.outbox.append((job_id, answer, reply))
        self._write_soon()

    def hung_up(self, job_id: str, instance: str) -> None:
        """A process has ended, and with it its connections: what it has sent may arrive all the same."""
        broken_off = [each for each in self.parked if each.call.instance == instance]
        self.parked = [each for each in self.parked if each not in broken_off]
        if broken_off and self.up and all(each.job_id != job_id for each in self.parked):
            self.controller.processes.hung_up(self.now, job_id, broken_off[-1].call)

    def _look_again(self, parked: Parked) -> None:
        """There is news, or the time is over. As in the real host, the rule is applied once more."""
        if parked not in self.parked or self.read_only:
            return
        answer = self._answer(parked.job_id, parked.call)
        if _settled(parked.call, answer) or self.world.now >= parked.until - 1e-9:
            self.parked.remove(parked)
            self.outbox.append((parked.job_id, answer, parked.reply))
        self._write_soon()

    def _answer(self, job_id: str, call: Any) -> Any:
        controller, now = self.controller, self.now
        rules: dict[type, Callable[[], Any]] = {
            msg.Attach: lambda: controller.processes.attach(now, job_id, call),
            msg.Ask: lambda: controller.processes.ask(now, job_id, call),
            msg.Report: lambda: controller.processes.report(now, job_id, call),
            msg.Listen: lambda: controller.processes.listen(now, job_id, call),
            msg.Leave: lambda: controller.processes.leave(now, job_id, call),
            msg.Profile: lambda: controller.processes.profile(now, job_id, call),
            Submission: lambda: controller.submit(now, "owner", call),
            ev.JobCancelled: lambda: controller.cancel(now, job_id),
        }
        try:
            answer = rules[type(call)]()
        except (IllegalEvent, NoSuchJob, Refused) as error:
            answer = msg.Refusal(f"{type(error).__name__}: {error}")
        self.world.watch.step(controller)
        return answer

    def tell(self, event: ev.Event) -> None:
        """From beside the calls. What can't be now is let go."""
        if self.read_only:
            return
        try:
            self.controller.tell(self.now, event)
        except IllegalEvent:
            return
        self.world.watch.step(self.controller)
        self._write_soon()

    def hear(self, event_of: Callable[[Controller], ev.Event | None], heard: Callable[[], None]) -> None:
        """A launcher or a provider reports: `heard` is called when that is durable."""
        if self.up and not self.read_only:
            event = event_of(self.controller)
            if event is not None:
                self.tell(event)
            self.outbox.append(("", None, lambda _: heard()))
            self._write_soon()

    def _tick(self) -> None:
        if not self.read_only:
            self.controller.tick(self.now)
            self.world.watch.step(self.controller)
            if self.controller.pending:
                self._write_soon()
        self.later(0.5, self._tick)

    # -- durability --------------------------------------------------------------------------------------------------

    def _write_soon(self) -> None:
        if not self.writing and not self.read_only:
            self.writing = True
            self.later(self.world.rng.uniform(0.0, 0.02), self._write)

    def _write(self) -> None:
        batch, errands, woken = self.controller.take()
        replies, self.outbox = self.outbox, []
        self.flying = batch, self.controller
        self.later(self.world.rng.uniform(0.0, 0.1), lambda: self._written(batch, replies, errands, sorted(woken)))

    def _written(
        self, batch: Batch, replies: list[tuple[str, Any, Reply]], errands: list[Errand], woken: list[str]
    ) -> None:
        dies = self.world.dies_here()
        if dies == "before":
            return self.crash()
        try:
            self.world.journal.append(batch)
        except DiskFull:
            self.read_only = True
            self.later(self.world.rng.uniform(1.0, 10.0), self.crash)
            return None
        self.world.watch.durable(batch, self.controller.machine.log, self.origin)
        self.writing, self.flying = False, None
        if dies == "after":
            return self.crash()
        for job_id, answer, reply in replies[: len(replies) // 2 if dies == "amid" else None]:
            self.world.watch.told(job_id, answer)
            reply(answer)
        for errand in errands[: len(errands) // 2 if dies == "amid" else None]:
            self._errand(errand)
        if dies == "amid":
            return self.crash()
        self._go_on(woken)
        return None

    def _go_on(self, woken: list[str]) -> None:
        for parked in [each for each in self.parked if each.job_id in woken]:
            self._look_again(parked)
        machine = self.controller.machine
        seq = machine.state.ledger.seq
        if not self.controller.pending and seq - self.imaged >= IMAGE_EVERY:
            self.world.follow()
            self.world.journal.keep(Image(seq, machine.state.now, self.controller.image()))
            self.world.journal.trim()
            self.imaged = seq
        if self.controller.pending or self.outbox or self.controller.errands:
            self._write_soon()

    def crash(self) -> None:
        """All that was not durable is lost; a write that was under way may have become durable."""
        if not self.up:
            return
        self.up = False
        if (
            self.flying is not None
            and not self.read_only
            and self.world.rng.random() < 0.5
            and not self.world.journal.full
        ):
            batch, controller = self.flying
            self.world.journal.append(batch)
            self.world.watch.durable(batch, controller.machine.log, self.origin)
        self.world.replays_to(self.controller)
        self.world.after(self.world.rng.uniform(0.5, 15.0), self.begin)

    # -- errands -----------------------------------------------------------------------------------------------------

    def _errand(self, errand: Errand) -> None:
        match errand:
            case cmd.Provision():
                self.world.provider.get(errand.node, errand.pool)
            case cmd.ReleaseNode():
                self.world.provider.give_back(errand.node)
            case _:
                queue = self.queues[errand.job_id]
                queue.append(errand)
                if len(queue) == 1:
                    self._next_errand(errand.job_id)

    def _next_errand(self, job_id: str) -> None:
        """What is done for one job is done in order."""
        errand = self.queues[job_id][0]
        life = self.life
        key = errand.job_id, errand.attempt  # type: ignore[union-attr]
        submission = self.world.submissions[job_id]

        def done(event: ev.Event | None) -> None:
            if self.up and self.life == life:
                if event is not None:
                    self.tell(event)
                self.queues[job_id].pop(0)
                if self.queues[job_id]:
                    self._next_errand(job_id)

        record = self.controller.machine.state.jobs.get(job_id)
        if not submission.command:
            done(None)
        elif isinstance(errand, cmd.Stop):
            self.world.launcher.stop(key, lambda: done(self._stopped(key)))
        elif record is not None and record.attempt == key[1] and record.state is Job.STARTING:
            self.world.launcher.start(key, lambda: done(ev.JobStarted(*key)))
        else:
            done(None)

    def _stopped(self, key: tuple[str, int]) -> ev.Event | None:
        record = self.controller.machine.state.jobs.get(key[0])
        is_so = record is not None and record.attempt == key[1] and record.state is Job.STOPPING
        return ev.JobStopped(*key) if is_so else None


def exited(key: tuple[str, int], failed: str) -> Callable[[Controller], ev.Event | None]:
    """What the end of an attempt's processes means to the controller that hears of it."""

    def event_of(controller: Controller) -> ev.Event | None:
        record = controller.machine.state.jobs.get(key[0])
        if record is None or record.attempt != key[1]:
            return None
        return gone(record, failed or ("" if record.state is Job.RUNNING else "it ended before it had begun"))

    return event_of


def _settled(call: Any, answer: Any) -> bool:
    match answer:
        case msg.Turn():
            return answer.done or answer.lease is not None
        case msg.Orders():
            return bool(answer.stop) or answer.version != call.seen
        case msg.Attached():
            return answer.attempt > 0
    return True
