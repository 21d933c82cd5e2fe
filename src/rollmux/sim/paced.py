"""Jobs that go at their forecast pace: the fast way to replay a workload.

Between two changes of a group its jobs repeat a cycle that the forecast knows, so only placements are played, and no
single phase. This is as exact as that steady pace: the first iterations after a change may differ. A job whose pace is
slower than its limit is watched after each of its iterations, as all jobs are when phases are played.
"""

from math import inf

from rollmux.mux import commands as cmd
from rollmux.mux import events as ev
from rollmux.mux.cluster_machine import ClusterMachine
from rollmux.mux.group import Group
from rollmux.mux.job import JobSpec
from rollmux.mux.seat import Progress
from rollmux.mux.transitions import JobOn
from rollmux.sim.cast import AT_ONCE, Actor, Cast, Delays, Observer


class Pace(Actor):
    """One attempt of a job: the iterations done at `since`, and how long each takes from then on."""

    __slots__ = ("done", "ends_at", "iteration_s", "looked_at", "number", "running", "since")

    def __init__(self, job: JobSpec, rank: int, attempt: int, synced: int) -> None:
        super().__init__(job, rank, attempt, synced)
        self.done = float(synced)
        self.since, self.iteration_s = 0.0, inf
        self.running = False
        self.number = 0  # the number of the latest change of pace
        self.ends_at = self.looked_at = inf  # its end at this pace, and the next look at that, which is no later

    def done_at(self, now: float) -> float:
        """Iterations done by now, with the part of the present one that is done."""
        return self.done + (now - self.since) / self.iteration_s

    def stay(self, now: float) -> None:
        """The attempt goes no further."""
        self.done, self.since, self.iteration_s, self.running = self.done_at(now), now, inf, False

    def lose_part(self) -> None:
        """The attempt ended amid an iteration, which is to be done again."""
        self.done = float(int(self.done + 1e-9))


class PacedProgress(Progress):
    """How far a job is, computed from its pace whenever the machine reads it. What the machine writes is ignored."""

    __slots__ = ("actor", "cast")

    def __init__(self, actor: Pace, cast: Cast) -> None:
        self.actor, self.cast = actor, cast
        super().__init__()

    def _done(self) -> int:
        actor = self.actor
        return int(actor.done + (self.cast.now - actor.since) / actor.iteration_s + 1e-9)  # `done_at`, without a call

    def _since(self) -> float | None:
        actor, now = self.actor, self.cast.now
        if not actor.running:
            return None
        done = actor.done + (now - actor.since) / actor.iteration_s + 1e-9
        return now - (done - int(done)) * actor.iteration_s

    def _recent_s(self) -> float:
        return self.actor.iteration_s

    def _written(self, _: float | None) -> None:
        return

    rolled = property(_done, _written)
    trained = property(_done, _written)
    synced = property(_done, _written)
    since = property(_since, _written)
    recent_s = property(_recent_s, _written)
    slowest_s = property(_recent_s, _written)


class PacedCast(Cast):
    """A cast whose jobs ask for no phase."""

    actor_type = Pace

    def __init__(self, machine: ClusterMachine, delays: Delays = AT_ONCE, observer: Observer | None = None) -> None:
        super().__init__(machine, delays, observer=observer)
        self._news = machine.state.groups.news = dict.fromkeys(machine.state.groups)
        self._latest: dict[str, Pace] = {}

    def done(self, job_id: str) -> int:
        actor = self._latest.get(job_id)
        return int(actor.done + 1e-9) if actor is not None else 0

    def iteration_s(self, job_id: str) -> float:
        actor = self._latest.get(job_id)  # the part of its last iteration counts too
        return (actor.since - self.started[job_id]) / actor.done if actor is not None and actor.done else 0.0

    def tell(self, event: ev.Event) -> None:
        super().tell(event)
        self._follow()

    def _enter(self, actor: Actor) -> None:
        assert isinstance(actor, Pace)
        self.machine.state.jobs[actor.job.id].progress = PacedProgress(actor, self)

    def _leave_stage(self, job_id: str) -> bool:
        actor = self.actors.get(job_id)
        if isinstance(actor, Pace):
            actor.stay(self.now)
            if self.machine.state.jobs[job_id].then is JobOn.GONE_REPLACE:
                actor.lose_part()
        return super()._leave_stage(job_id)

    def fail(self, job_id: str, reason: str) -> None:
        super().fail(job_id, reason)
        self._latest[job_id].lose_part()

    def _finish(self, actor: Actor) -> None:
        if isinstance(actor, Pace):
            actor.done, actor.since = actor.done_at(self.now), self.now
        super()._finish(actor)

    def _follow(self) -> None:
        """Sets new paces for the jobs of every group that has changed."""
        groups, news = self.machine.state.groups, self._news
        for name in news:
            group = groups.get(name)
            if group is not None:
                self._set_paces(group)
        news.clear()

    def _go_on(self, actor: Actor) -> None:
        """The job has started."""
        record = self.machine.state.jobs.get(actor.job.id)
        if record is not None and isinstance(actor, Pace) and self.actors.get(actor.job.id) is actor:
            actor.running, actor.since = True, self.now
            before = self._latest.get(actor.job.id)
            if before is not None:  # it was stopped between two iterations, a moment that is not played here
                actor.done = max(actor.done, before.done)
            self._latest[actor.job.id] = actor
            self._set_paces(self.machine.state.groups[record.group_id])

    def _set_paces(self, group: Group) -> None:
        state = self.machine.state
        forecast = state.policy.forecaster.forecast(group)
        for member, iteration_s in zip(group.members, forecast.iteration_s, strict=True):
            actor = self.actors.get(member.job.id)
            if isinstance(actor, Pace) and actor.running and state.jobs[member.job.id].group_id == group.id:
                self._set_pace(actor, iteration_s)
                if iteration_s > member.limit_s:
                    self._watch(actor)

    def _watch(self, actor: Pace) -> None:
        """Watches a job after each of its iterations, as long as its pace is the same."""
        number, machine = actor.number, self.machine

        def synced() -> None:
            record = machine.state.jobs.get(actor.job.id)
            if record is None or actor.number != number or self.actors.get(actor.job.id) is not actor:
                return
            commands: list[cmd.Command] = []
            machine.mover.watch(self.now, record, commands)
            self._carry_out(ev.Tick(), tuple(commands), 0.0)
            self._follow()
            if actor.number == number:
                self._watch(actor)

        done = actor.done_at(self.now)
        left = int(done + 1e-9) + 1 - done
        self._later(self.now + left * actor.iteration_s, actor.rank, 1, synced)

    def _set_pace(self, actor: Pace, iteration_s: float) -> None:
        actor.done, actor.since, actor.iteration_s = actor.done_at(self.now), self.now, iteration_s
        actor.number += 1
        if actor.job.iterations is None:
            return
        left = max(0.0, actor.job.iterations - actor.done)  # rounding may have done a little more than all
        actor.ends_at = self.now + left * iteration_s
        if actor.ends_at < actor.looked_at:  # paces change often: the look that is planned finds a later end
            self._plan_finish(actor)

    def _plan_finish(self, actor: Pace) -> None:
        at = actor.looked_at = actor.ends_at

        def end() -> None:
            if actor.looked_at != at or self.actors.get(actor.job.id) is not actor:
                return
            if actor.ends_at > at:
                self._plan_finish(actor)
            else:
                self._finish(actor)

        self._later(at, actor.rank, 2, end)
