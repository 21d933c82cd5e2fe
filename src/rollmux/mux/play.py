"""Playing a group's order policy with fixed durations until it repeats itself.

Time is in whole milliseconds, so that a state seen twice is truly the same and one cycle tells the steady rates.
The turns come from `order`, the same code that serves the live group.
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from operator import sub
from typing import NamedTuple

from rollmux.mux.order import Claim, Order, Pause, Turns, next_due, turns_for
from rollmux.mux.totals import total

# A group whose phases lock onto each other repeats within a few turns of its slowest job. One that drifts
# (no shared bottleneck) may take very long: after this many turns the mean of the second half is taken.
MAX_TURNS = 32

# Where one job's iterations are some thousand times as long as another's, a number of turns does not limit a play: at
# most so many iterations of all jobs are played together. A play of the shipped workloads takes up to some 2,000.
MOST_ITERATIONS = 50_000
# Fewer in decisions, where the general play has to be asked: an iteration takes it ten times as long as quicker plays.
MOST_IN_GENERAL = 10_000

# Where phases vary there is no cycle: so many turns of every job are played, and the first tenth is not counted. A play
# ends earlier where all jobs together have made ten times as many turns. Of groups of three jobs whose phases vary by
# 30 % one mean in twenty is still 8 % off after 60 turns, 4 % after 120.
VARIED_TURNS, VARIED_WARM_UP, VARIED_MOST = 120, 0.1, 10


class TailPlay(NamedTuple):
    """A tail in milliseconds: when it may begin, what moving costs, how many nodes it keeps."""

    bulk_ms: int
    move_ms: int
    keep: int


class JobPlay(NamedTuple):
    """A job as the play sees it: how long it holds its nodes, and when it may go on.

    In orders by urgency its iterations are due `aim_ms` apart, and its phases may be able to pause. A rollout wants all
    of its nodes, or `rollout_wants` of them if that is above 0.
    """

    rollout_ms: int
    train_ms: int
    sync_ms: int
    rollout_nodes: tuple[str, ...]
    train_nodes: tuple[str, ...]
    staleness: int = 0
    elastic: bool = False
    tail: TailPlay | None = None
    aim_ms: int = 0
    rollout_pause: Pause | None = None
    train_pause: Pause | None = None
    rollout_wants: int = 0


class Played(NamedTuple):
    """Steady iteration time of each job, and whether a repeating cycle was found (else a cautious mean)."""

    iteration_s: tuple[float, ...]
    exact: bool


def play(
    jobs: tuple[JobPlay, ...],
    order: Order,
    max_turns: int = MAX_TURNS,
    limits_ms: tuple[float, ...] | None = None,
    most: int | None = None,
) -> Played:
    """Each job's steady iteration time when all start together, in the order given.

    At most `most` iterations are played, or MOST_ITERATIONS. Limits matter only where it would take too long to know
    whether they are met.
    """
    playing = _Play(jobs, order)
    if most is not None:
        playing.to_play = most - len(jobs)
    return playing.run(max_turns, limits_ms)


def varied_play(
    jobs: tuple[JobPlay, ...], order: Order, taken_ms: Sequence[Sequence[tuple[int, int]]]
) -> tuple[float, ...]:
    """Each job's mean iteration time where its rollouts and trainings take these times in turn, over and over.

    The order still goes by planned times, as in a live group: nobody knows beforehand how long a phase will take.
    """
    return _VariedPlay(jobs, order, taken_ms).means()


_ROLLOUT, _TRAIN, _SYNC, _TAIL, _PAUSED = range(5)


class _Run(Claim):
    """One job's rollout or training in the play."""

    __slots__ = ("busy", "can_pause", "done_at", "job", "kind", "left", "rate", "rest", "since", "tail_at", "work")

    def __init__(self, number: int, kind: int, job: JobPlay) -> None:
        rolls = kind == _ROLLOUT
        nodes, duration_ms = (job.rollout_nodes, job.rollout_ms) if rolls else (job.train_nodes, job.train_ms)
        super().__init__(nodes, (number, kind), rolls and job.elastic, job.rollout_wants if rolls else 0)
        self.job, self.kind = number, kind
        self.rest = job.train_ms + job.sync_ms + (job.rollout_ms if rolls else 0)  # from its start to the sync's end
        self.can_pause = job.rollout_pause if rolls else job.train_pause
        self.work = duration_ms * self.wants  # node-milliseconds: an elastic start is slower in proportion
        self.busy = False  # waiting or holding
        self.left = self.since = self.rate = 0  # work left at `since`, and nodes at work from then on
        self.done_at = self.tail_at = -1


class _Play:
    """The state of one play: runs, turns, and a heap of what happens next."""

    __slots__ = (
        "done",
        "due",
        "heap",
        "jobs",
        "now",
        "rolled",
        "rollouts",
        "started",
        "tails",
        "to_play",
        "trained",
        "trains",
        "turns",
        "urgent",
    )

    def __init__(self, jobs: tuple[JobPlay, ...], order: Order) -> None:
        self.jobs = jobs
        self.turns: Turns[_Run] = turns_for(order)
        self.urgent = order is Order.URGENCY
        self.now = 0
        self.heap: list[tuple[int, int, int]] = []
        self.rollouts: list[_Run] = []
        self.trains: list[_Run] = []
        for i, job in enumerate(jobs):
            self.rollouts.append(_Run(i, _ROLLOUT, job))
            self.trains.append(_Run(i, _TRAIN, job))
            self.turns.enter(self.rollouts[i])
            self.turns.enter(self.trains[i])
        self.tails: list[_Run] = []  # rollouts that would move their tail if somebody could use the nodes
        self.started = [0] * len(jobs)  # rollouts asked for
        self.rolled = [0] * len(jobs)  # rollouts done
        self.trained = [0] * len(jobs)  # trainings asked for
        self.done: list[list[int]] = [[] for _ in jobs]  # when each iteration was complete
        self.to_play = MOST_ITERATIONS - len(jobs)  # each job's start counts as an iteration, as in quicker plays
        self.due = [job.aim_ms for job in jobs]  # when the iteration under way is due

    def run(self, max_turns: int, limits_ms: tuple[float, ...] | None = None) -> Played:
        solo = [job.rollout_ms + job.train_ms + job.sync_ms for job in self.jobs]
        slowest = solo.index(max(solo))
        seen: dict[object, tuple[int, list[int]]] = {}
        done, heap, turns = self.done, self.heap, 0
        for job in range(len(self.jobs)):
            self._go_on(job)
        seen[self._state()] = (0, [0] * len(done))
        while turns < max_turns:
            self.now = now = heap[0][0]
            while heap and heap[0][0] == now:
                _, job, kind = heappop(heap)
                self._happen(job, kind)
                if self.to_play <= 0:
                    return cut_short([[0, *times] for times in done], now, slowest, solo[slowest], limits_ms)
            if len(done[slowest]) > turns:
                turns = len(done[slowest])
                state = self._state()
                if state in seen:
                    return self._cycle(*seen[state])
                seen[state] = (now, [len(times) for times in done])
        return cautious_mean([lasting(times, self.now) for times in self.done])

    def _happen(self, job: int, kind: int) -> None:
        now = self.now
        if kind == _SYNC:
            self._synced(job)
        elif kind == _TAIL:
            if self.rollouts[job].tail_at == now:
                self.tails.append(self.rollouts[job])
                self._move_tails()
            return
        elif kind >= _PAUSED:
            self._paused((self.rollouts, self.trains)[kind - _PAUSED][job])
            return
        elif kind == _ROLLOUT:
            if self.rollouts[job].done_at != now:
                return  # growth or a tail has moved its end
            self._release(self.rollouts[job])
            self.rolled[job] += 1
        else:
            if self.trains[job].done_at != now:
                return  # it has paused
            self._release(self.trains[job])
            sync_ms = self.jobs[job].sync_ms
            if sync_ms:
                heappush(self.heap, (now + sync_ms, job, _SYNC))
                return
            self._synced(job)
        self._go_on(job)

    def _synced(self, job: int) -> None:
        self.done[job].append(self.now)
        self.to_play -= 1
        if self.urgent:
            self.due[job] = next_due(self.due[job], self.now, self.jobs[job].aim_ms)

    def _go_on(self, job: int) -> None:
        """Requests whatever the job may do next."""
        synced = len(self.done[job])
        if self.trained[job] == synced < self.rolled[job]:
            self.trained[job] += 1
            self._request(self.trains[job])
        rollout = self.rollouts[job]
        if not rollout.busy and self.started[job] <= synced + self.jobs[job].staleness:
            self.started[job] += 1
            self._request(rollout)

    def _request(self, run: _Run) -> None:
        run.busy, run.left, run.rate = True, run.work, 0
        if self.urgent:
            aim_ms = self.jobs[run.job].aim_ms
            ahead = self.started[run.job] - 1 - len(self.done[run.job]) if run.kind == _ROLLOUT else 0
            run.latest = self.due[run.job] + ahead * aim_ms - run.rest
        if self.turns.request(run):
            self._hold(run)
        else:
            self._ask_way(run)
        self._move_tails()

    def _ask_way(self, run: _Run) -> None:
        for holder in self.turns.to_pause(run, self.now):
            if holder.pause is not None:  # else its tail has just moved, as the pause of another holder let it
                self._make_way(holder)

    def _make_way(self, run: _Run) -> None:
        """The run pauses: its nodes are free as soon as its state is off them."""
        assert run.pause is not None
        run.left -= run.rate * (self.now - run.since)
        run.left += run.pause.on_ms * run.wants
        run.pausing, run.rate, run.done_at, run.tail_at = True, 0, -1, -1
        if run in self.tails:
            self.tails.remove(run)
        if run.pause.off_ms:
            heappush(self.heap, (self.now + run.pause.off_ms, run.job, _PAUSED + run.kind))
        else:
            self._paused(run)

    def _paused(self, run: _Run) -> None:
        run.pause, run.pausing = None, False
        for other, _ in self.turns.give_way(run):
            self._hold(other)
        if not run.held:
            self._ask_way(run)
        self._move_tails()

    def _hold(self, run: _Run) -> None:
        """The run has just got nodes: its first, or more of them."""
        now = self.now
        if not run.rate and len(run.held) == run.wants:
            run.pause = run.can_pause  # a rollout that has yet to grow, or has grown, can't pause
        run.left -= run.rate * (now - run.since)
        run.since, run.rate = now, len(run.held)
        run.done_at = run.ends_at = now - (-run.left // run.rate)
        heappush(self.heap, (run.done_at, run.job, run.kind))
        tail = self.jobs[run.job].tail
        if tail is not None and run.kind == _ROLLOUT and tail.keep < run.wants:
            before = run.left - run.work + tail.bulk_ms * run.wants
            if before > 0 or run.tail_at < 0:
                run.tail_at = now - (-max(before, 0) // run.rate)
                heappush(self.heap, (run.tail_at, run.job, _TAIL))

    def _release(self, run: _Run) -> None:
        run.busy, run.done_at, run.tail_at = False, -1, -1
        if run in self.tails:
            self.tails.remove(run)
        run.pause, run.pausing = None, False
        for other, _ in self.turns.release(run):
            self._hold(other)
        self._move_tails()

    def _move_tails(self) -> None:
        for run in list(self.tails):
            tail = self.jobs[run.job].tail
            freed = self.turns.freed_by_tail(run, tail.keep) if tail is not None else ()
            if freed:
                self.tails.remove(run)
                run.pause = None
                run.done_at += tail.move_ms if tail is not None else 0
                heappush(self.heap, (run.done_at, run.job, run.kind))
                for other, _ in self.turns.release(run, freed):
                    self._hold(other)

    def _state(self) -> object:
        """All that decides the future, with times counted from now."""
        now = self.now
        runs = tuple(
            (run.held, max(run.done_at - now, 0), max(run.tail_at - now, -1), run.tail) for run in self.turns.claims
        )
        paused = tuple((run.place, run.left, run.pausing) for run in self.turns.claims if run.busy and not run.rate)
        pausing = tuple(sorted((at - now, job, kind) for at, job, kind in self.heap if kind >= _PAUSED))
        urgent = tuple((run.latest - now, run.place) for run in self.turns.claims if self.urgent and run.busy)
        due = tuple(due - now for due in self.due if self.urgent)
        growing = tuple(
            (run.place, run.left - run.rate * (now - run.since))
            for run in self.turns.claims
            if 0 < len(run.held) < run.wants
        )
        waiting = tuple(tuple(run.place for run in queue) for queue in self.turns.queues.values())
        syncing = tuple(sorted((at - now, job) for at, job, kind in self.heap if kind == _SYNC))
        ahead = tuple(
            (started - len(done), rolled - len(done), trained - len(done))
            for started, rolled, trained, done in zip(self.started, self.rolled, self.trained, self.done, strict=True)
        )
        return runs, growing, waiting, syncing, ahead, paused, pausing, urgent, due, self.turns.memory()

    def _cycle(self, then: int, counts: list[int]) -> Played:
        period = self.now - then
        return Played(
            tuple(period / 1000 / (len(times) - n) for times, n in zip(self.done, counts, strict=True)), exact=True
        )


class _VariedPlay(_Play):
    """A play in which a phase may take another time than planned, and another one in each iteration."""

    __slots__ = ("taken_ms",)

    def __init__(self, jobs: tuple[JobPlay, ...], order: Order, taken_ms: Sequence[Sequence[tuple[int, int]]]) -> None:
        super().__init__(jobs, order)
        self.taken_ms = taken_ms

    def means(self) -> tuple[float, ...]:
        done, heap = self.done, self.heap
        for job in range(len(self.jobs)):
            self._go_on(job)
        most = VARIED_MOST * VARIED_TURNS * len(self.jobs)
        while min(map(len, done)) < VARIED_TURNS and total(map(len, done)) < most:
            self.now = now = heap[0][0]
            while heap and heap[0][0] == now:
                _, job, kind = heappop(heap)
                self._happen(job, kind)
        counted = [self._counted(times) for times in done]
        return tuple([(times[-1] - times[0]) / (len(times) - 1) / 1000 for times in counted])

    def _counted(self, times: list[int]) -> list[int]:
        """A job's completions behind the warm-up; where these are too few for a mean, all of them since the start."""
        warm = [time for time in times if time >= self.now * VARIED_WARM_UP]
        return warm if len(warm) > 1 else lasting([0, *times], self.now)

    def _request(self, run: _Run) -> None:
        asked = self.started if run.kind == _ROLLOUT else self.trained
        taken_ms = self.taken_ms[run.job]
        run.work = taken_ms[(asked[run.job] - 1) % len(taken_ms)][run.kind] * run.wants
        super()._request(run)

    def _hold(self, run: _Run) -> None:
        super()._hold(run)
        job = self.jobs[run.job]
        planned_ms = job.rollout_ms if run.kind == _ROLLOUT else job.train_ms
        run.ends_at += (planned_ms * run.wants - run.work) // run.rate  # a claim that waits can only go by the plan


def lasting(times: list[int], now: int) -> list[int]:
    """A job's completions, two at least: for a job that others keep waiting, `now` stands for those still to come."""
    return times if len(times) > 1 else [*(times or [0]), now]


def cut_short(
    done: list[list[int]], now: int, slowest: int, solo_ms: int, limits_ms: tuple[float, ...] | None
) -> Played:
    """Iteration times of a play that took too many: nobody knows if the slowest job keeps up, so it is late."""
    means = cautious_means([lasting(times, now) for times in done])
    least_ms = solo_ms if limits_ms is None else max(solo_ms, 2 * limits_ms[slowest])
    means[slowest] = max(means[slowest], least_ms / 1000)
    return Played(tuple(means), exact=False)


def cautious_mean(done: list[list[int]]) -> Played:
    """Iteration times from completions without a cycle."""
    return Played(tuple(cautious_means(done)), exact=False)


def cautious_means(done: list[list[int]]) -> list[float]:
    """For each job the mean of the n iterations of its second half, plus one part in n of their worst excess."""
    means = []
    for times in done:
        half = times[min(len(times) // 2, len(times) - 2) :]
        gaps = len(half) - 1
        mean = (half[-1] - half[0]) / gaps
        if gaps > 1:  # else it has no excess
            mean += (max(map(sub, half[1:], half)) - mean) / gaps
        means.append(mean / 1000)
    return means
