"""A simulated process of a job: it follows the protocol of `protocol/messages.py`, but may die, hang or be cut off.

It works on no nodes but those of a lease that it was given and has not given back; what it has given back it never
takes up again, whatever comes late.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from rollmux.client.wire import ANSWER_PART
from rollmux.mux.job import PhaseKind
from rollmux.protocol import messages as msg
from rollmux.protocol.job_file import Submission
from rollmux.protocol.messages import Said
from tests.service.watch import KINDS, Work

if TYPE_CHECKING:
    from tests.service.world import World

RETRY_S = 3.0
SURE_PART = 1.0 - ANSWER_PART  # of a lease: for so long after the last word from the controller it surely holds


class Process:
    """One rank of one attempt, or one life of a script that was started by other means."""

    def __init__(
        self,
        world: "World",
        submission: Submission,
        rank: int,
        launched_as: int | None,
        ended: Callable[["Process", str], None],
        life: str = "",
    ) -> None:
        self.world, self.submission, self.rank, self.launched_as = world, submission, rank, launched_as
        self.job_id = submission.job.id
        self.instance = world.name_instance(self.job_id)
        self.owner = (self.job_id, life if launched_as is None else f"attempt {launched_as}")
        self._ended = ended
        self.alive = True
        self.silent_until = self.cut_until = 0.0
        self.speed = world.rng.choice([1.0, 1.0, 1.0, 0.8, 2.5])
        self.asks_ahead = world.rng.random() < 0.5  # what it finished it says with its next question
        self.attempt = self.iteration = self.kind = self.seen = self.calls = self.flow = 0
        self.open: dict[int, tuple[float, Callable[[Any], None]]] = {}
        self.work: Work | None = None
        self.rests: dict[int, tuple[PhaseKind, Work]] = {}  # state that it has left on the nodes of a lease
        self.done_at = self.lease_s = 0.0
        self.left_s: float | None = None  # of a phase that has paused
        self.finished: dict[int, tuple[PhaseKind, int]] = {}
        self.put_off: list[Callable[[], None]] = []  # until it wakes up
        self.void: set[int] = set()  # leases that it has given back
        self.freed: set[tuple[int, str]] = set()  # nodes of a lease that it has given back

    # -- messages ----------------------------------------------------------------------------------------------------

    def say(self, call: Any, heard: Callable[[Any], None]) -> None:
        """Until it is answered."""
        self.calls += 1
        self.open[self.calls] = self.world.now, heard
        self._send(self.calls, call)

    def _send(self, number: int, call: Any) -> None:
        if self.alive and number in self.open:
            self.world.network(lambda: self._arrives(number, call))
            self.later(RETRY_S + getattr(call, "wait_s", 0.0), lambda: self._send(number, call))

    def _arrives(self, number: int, call: Any) -> None:
        if self.cut_until <= self.world.now:
            reply = partial(self._reply, number)
            self.world.host.receive(self.job_id, call, lambda answer: self.world.network(lambda: reply(answer)))

    def _reply(self, number: int, answer: Any) -> None:
        if self.cut_until <= self.world.now:
            self.later(0.0, lambda: self._hear(number, answer))

    def _hear(self, number: int, answer: Any) -> None:
        if number in self.open:
            asked_at, heard = self.open.pop(number)
            if isinstance(answer, msg.Orders):
                for work in self._everything():
                    work.reached_at = asked_at
            heard(answer)

    def later(self, delay_s: float, act: Callable[[], None]) -> None:
        """Later, if it lives then; after its silence, if it hangs."""

        def go() -> None:
            if self.alive and self.silent_until > self.world.now:
                self.put_off.append(go)
            elif self.alive:
                act()

        self.world.after(delay_s, go)

    def hang(self, until: float) -> None:
        """It does nothing and hears nothing, and believes to hold whatever it held."""
        self.silent_until = until
        self.world.at(until, lambda: self.wake() if self.silent_until <= self.world.now else None)

    def wake(self) -> None:
        """Whatever it had put off, it does now."""
        self.silent_until = min(self.silent_until, self.world.now)
        late, self.put_off = self.put_off, []
        for act in late:
            act()

    def main(self, act: Callable[[Any], None]) -> Callable[[Any], None]:
        """Only if the process has not turned to something else since."""
        self.flow += 1
        flow = self.flow
        return lambda answer: act(answer) if flow == self.flow else None

    def soon(self, act: Callable[[], None], delay_s: float = 1.0) -> None:
        go = self.main(lambda _: act())
        self.later(delay_s, lambda: go(None))

    # -- an iteration ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        call = msg.Attach(self.instance, self.rank, self.submission.processes, self.launched_as, 3.0)
        self.say(call, self.main(self._attached))

    def _attached(self, answer: Any) -> None:
        if isinstance(answer, msg.Refusal):
            self.end("refused")
        elif answer.attempt == 0:
            self.soon(self.start)
        else:
            self.attempt, self.iteration, self.lease_s = answer.attempt, answer.synced, answer.lease_s
            self._listen()
            self.step()

    def step(self) -> None:
        if self.iteration >= (self.submission.job.iterations or 0) and not self.finished:
            self._leave("", "")
            return
        if self.iteration >= (self.submission.job.iterations or 0):
            self._back()
        wait_s = self.world.rng.uniform(0.0, 8.0)
        kind = KINDS[self.kind]
        call = msg.Ask(self.attempt, kind, self.iteration, self.rank, tuple(self.finished), wait_s, self.instance)
        self.say(call, self.main(self._turn))

    def _turn(self, answer: Any) -> None:
        if isinstance(answer, msg.Refusal):
            self._back()
            self.soon(self.step)
        elif answer.done:
            self._forget()
            self._advance()
            self.step()
        elif answer.lease is None or answer.lease.epoch in self.finished:
            self.soon(self.step)
        elif answer.lease.epoch in self.void:  # a new controller has not heard that
            if not answer.lease.resumed:
                self.say(msg.Report(Said.FAILED, answer.lease.epoch, self.rank, instance=self.instance), lambda _: None)
            self.soon(self.step)
        else:
            self._forget()
            self._begin(answer.lease)

    def _advance(self) -> None:
        self.kind = (self.kind + 1) % 3
        self.iteration += self.kind == 0
        self.left_s = None

    def _back(self) -> None:
        """It asked ahead in vain: what it thinks it has finished does not count yet, or never will."""
        for kind, iteration in self.finished.values():
            self.iteration, self.kind = min((self.iteration, self.kind), (iteration, KINDS.index(kind)))

    def _forget(self) -> None:
        """The phase before is committed, or is to be done again: either way its lease is over."""
        self.finished.clear()

    def _begin(self, lease: msg.Held) -> None:
        job, phase = self.submission.job, lease.kind
        whole_s = job.sync_s if phase is PhaseKind.SYNC else job.phase(phase).duration_s + 2 * lease.load
        left_s = self.left_s if lease.resumed and self.left_s is not None else whole_s * self.speed
        self.left_s = None
        for epoch in [epoch for epoch, (kind, _) in self.rests.items() if kind is phase]:
            self._clear(epoch)  # it is taken over
        self.work = Work(self.owner, lease.epoch, self.launched_as is not None, set(), self.world.now, self.attempt)
        self.world.watch.works_on(self.work, {n for n in lease.nodes if (lease.epoch, n) not in self.freed})
        self.done_at = self.world.now + left_s
        self.say(msg.Report(Said.STARTED, lease.epoch, self.rank, instance=self.instance), lambda _: None)
        if phase is PhaseKind.ROLLOUT and job.tail is not None:
            done, total = round(0.8 * job.tail.requests), job.tail.requests
            progress = msg.Report(Said.PROGRESSED, lease.epoch, self.rank, done, total, instance=self.instance)
            self.later(0.6 * left_s, lambda: self.say(progress, lambda _: None))
        if self.world.faults and self.world.rng.random() < 0.05:
            self.soon(lambda: self._raises(lease.epoch), left_s * self.world.rng.random())
        else:
            self.soon(lambda: self._done(lease), left_s)

    def _raises(self, epoch: int) -> None:
        """The job's own code fails: it tries the phase again, or the process ends."""
        if self.world.rng.random() < 0.7:
            self._give_up(epoch, Said.FAILED, keeps=False)
        else:
            self.stop_work()
            self._leave("raised ValueError", "raised ValueError")

    def _done(self, lease: msg.Held) -> None:
        self.world.watch.did[lease.epoch].add(self.rank)
        if lease.keep and self.work is not None:
            self.rests[lease.epoch] = lease.kind, self.world.watch.rests(self.work)
            sure_until = self.work.reached_at + SURE_PART * self.lease_s
            self.later(max(0.0, sure_until - self.world.now), lambda: self._no_longer_sure(lease.epoch))
            self.work = None
        self.stop_work()
        self.finished[lease.epoch] = (lease.kind, lease.iteration)
        if self.asks_ahead:
            self._advance()
            self.step()
        else:
            self._say_finished(lease.epoch)

    def _no_longer_sure(self, epoch: int) -> None:
        """Nobody has heard that it is done, and the lease may run out: its state does not stay."""
        if epoch in self.finished:
            self._clear(epoch)

    def _say_finished(self, epoch: int) -> None:
        self.say(
            msg.Report(Said.FINISHED, epoch, self.rank, instance=self.instance, left=epoch not in self.rests),
            self.main(lambda heard: self._finished(epoch, heard)),
        )

    def _finished(self, epoch: int, heard: Any) -> None:
        if isinstance(heard, msg.Heard) and heard.committed:
            self._forget()
            self._advance()
            self.step()
        elif isinstance(heard, msg.Heard) and heard.holds:
            self.soon(lambda: self._say_finished(epoch))
        else:
            if epoch in self.rests:
                self._move_off(epoch)
            self.soon(self.step, 0.2)  # the same phase once more, if it does not count

    # -- what the controller wants -----------------------------------------------------------------------------------

    def _listen(self) -> None:
        named = () if self.work is None else (self.work.epoch,)
        call = msg.Listen(self.attempt, named, self.rank, tuple(self.finished), self.seen, 3.0, self.instance)
        rests = {epoch: kind for epoch, (kind, _) in self.rests.items()}
        self.say(call, lambda answer: self._ordered(answer, named, rests))

    def _ordered(self, answer: Any, named: tuple[int, ...], rests: dict[int, PhaseKind]) -> None:
        self.later(self.world.rng.uniform(0.2, 1.5), self._listen)
        if isinstance(answer, msg.Refusal) or answer.version < self.seen:
            return
        if answer.stop or answer.attempt != self.attempt:
            self._told_to_stop()
            return
        self.seen = answer.version
        lost = set(named) - {held.epoch for held in answer.held}
        if self.work is not None and self.work.epoch in lost:
            self._lost(self.work.epoch)
        known = {held.epoch for held in answer.held} | {held.kind for held in answer.held if held.state != "fenced"}
        for epoch in [epoch for epoch, kind in rests.items() if not {epoch, kind} & known]:
            self._clear(epoch)
        for held in answer.held:
            self.later(self.world.rng.uniform(0.0, 2.0), partial(self._obey, held))

    def _obey(self, held: msg.Held) -> None:
        working = self.work if self.work is not None and self.work.epoch == held.epoch else None
        if working is not None and held.state in ("granted", "running"):
            kept = {node for node in held.nodes if (held.epoch, node) not in self.freed}
            self.world.watch.works_on(working, kept)
        if working is not None and held.given_up:
            self._give_up(held.epoch, Said.FAILED, keeps=False)
        elif held.state == "pausing" and held.epoch not in self.finished:
            self._give_up(held.epoch, Said.PAUSED, keeps=True)
        elif self._must_move(held):
            self._move_off(held.epoch)
        elif held.state == "fenced":
            self._give_up(held.epoch, Said.FAILED, keeps=False)
        elif held.state == "shrinking":
            self.freed |= {(held.epoch, node) for node in held.free}
            if working is not None:
                self.world.watch.leaves(working, held.free)
            self.say(msg.Report(Said.SHRUNK, held.epoch, self.rank, instance=self.instance), lambda _: None)
        elif held.state == "offloading":
            self._move_off(held.epoch)

    def _must_move(self, held: msg.Held) -> bool:
        if held.state == "pausing":  # it was done before the others of its job could pause
            return held.keep
        return held.epoch in self.rests and (held.state == "fenced" or bool(held.given_up))

    def _move_off(self, epoch: int) -> None:
        self._clear(epoch)
        self.say(msg.Report(Said.OFFLOADED, epoch, self.rank, instance=self.instance), lambda _: None)

    def _clear(self, epoch: int) -> None:
        if epoch in self.rests:
            self.world.watch.leaves(self.rests.pop(epoch)[1])

    def _give_up(self, epoch: int, said: Said, keeps: bool) -> None:
        self.void.add(epoch)
        if self.work is not None and self.work.epoch == epoch:
            self.left_s = max(0.0, self.done_at - self.world.now) if keeps else None
            self.stop_work()
            self.soon(self.step)
        self.say(msg.Report(said, epoch, self.rank, instance=self.instance), lambda _: None)

    def _lost(self, epoch: int) -> None:
        self.void.add(epoch)
        self.left_s = None
        self.stop_work()
        self.soon(self.step)

    def _told_to_stop(self) -> None:
        self.stop_work()
        if self.world.rng.random() < 0.5:
            self._leave("told to stop", "")
        else:
            self.end("")

    def _leave(self, why: str, failed: str) -> None:
        """Nothing of it is left on nodes then, for that is what it says, whoever sees its process end."""
        for epoch in list(self.rests):
            self._clear(epoch)
        self.say(msg.Leave(self.attempt, why, self.rank, self.instance), self.main(lambda _: self.end(failed)))

    # -- its end -----------------------------------------------------------------------------------------------------

    def stop_work(self) -> None:
        if self.work is not None:
            self.world.watch.leaves(self.work)
            self.work = None

    def _everything(self) -> list[Work]:
        return [work for _, work in self.rests.values()] + ([self.work] if self.work is not None else [])

    def end(self, failed: str, tell: bool = True) -> None:
        """It is gone, and with it whatever it did."""
        if self.alive:
            self.stop_work()
            for epoch in list(self.rests):
                self._clear(epoch)
            self.alive = False
            if self.cut_until <= self.world.now:
                self.world.host.hung_up(self.job_id, self.instance)
            if tell:
                self._ended(self, failed)
