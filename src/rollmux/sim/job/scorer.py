"""Scores responses: beside the rollout as they come, or one kind of reward after the other when all are there."""

from collections.abc import Iterable
from math import inf

from rollmux.packer.prompt import Request
from rollmux.packer.timeouts import Limits, TimeoutPolicy, ended
from rollmux.sim.job.judging import part_of_time
from rollmux.sim.job.rewards import CEILING_S, Pool, Program
from rollmux.sim.job.setup import Reward, Setup, Source


class Scorer:
    """The reward side of one round. Without `timeouts` every test may run to the ceiling."""

    def __init__(self, setup: Setup, source: Source, timeouts: TimeoutPolicy | None, judge_batch: int = 1) -> None:
        scoring = setup.scoring
        self.setup, self.source, self.timeouts = setup, source, timeouts
        self.judge_s = scoring.judge_s * part_of_time(setup.device, judge_batch)
        self.pools: dict[Reward, Pool[Request]] = {
            Reward.RULE: Pool(1),
            Reward.SANDBOX: Pool(scoring.sandbox_workers),
            Reward.JUDGE: Pool(setup.servers),
        }
        self.programs: dict[Request, tuple[Program, float]] = {}  # programs with their time limits

    def submit(self, request: Request, program: Program, now: float) -> None:
        """Scores one response beside the others."""
        limit_s = self._limit_s(request)
        self.programs[request] = program, limit_s
        self.pools[self._kind(request)].submit(request, self._work_s(request, program, limit_s), now)

    def _kind(self, request: Request) -> Reward:
        return self.setup.by_name[request.prompt.domain].reward

    def _work_s(self, request: Request, program: Program, limit_s: float) -> float:
        kind, scoring = self._kind(request), self.setup.scoring
        if kind is Reward.RULE:
            return scoring.rule_s
        return self.judge_s if kind is Reward.JUDGE else min(program.seconds, limit_s)

    def _limit_s(self, request: Request) -> float:
        """The time limit of a response's tests. A new case learns first how long its reference solution takes."""
        if self.timeouts is None or self._kind(request) is not Reward.SANDBOX:
            return CEILING_S
        case = str(request.prompt.id)
        limits = self.timeouts.limits(case)
        if limits == self.timeouts.settings.widest:
            seconds = self.source.reference_s(request.prompt)
            self.timeouts.learn(case, seconds, seconds)
            limits = self.timeouts.limits(case)
        return limits.cpu_s

    def cancel(self, request: Request, now: float) -> bool:
        return self.programs.pop(request, None) is not None and self.pools[self._kind(request)].cancel(request, now)

    def next_at(self) -> float:
        return min(pool.next_at() for pool in self.pools.values())

    def advance(self, now: float) -> list[tuple[Request, float]]:
        """The requests that have a score at this time, with their scores."""
        scored = []
        for kind, pool in self.pools.items():
            if pool.next_at() <= now:
                for request in pool.advance(now):
                    scored.append((request, self._score(request, kind)))
        return scored

    def _score(self, request: Request, kind: Reward) -> float:
        program, limit_s = self.programs.pop(request)
        if kind is Reward.SANDBOX and self.timeouts is not None:
            trial = str(request.prompt.id), program.seconds, program.correct
            audit = self.timeouts.judge(ended(trial, Limits(limit_s, limit_s))).audit
            if audit is not None:
                self.timeouts.audited(ended(trial, audit))
        return float(program.correct and program.seconds <= limit_s)

    def one_kind_after_the_other(
        self, responses: Iterable[tuple[Request, Program]], now: float
    ) -> tuple[float, list[tuple[Request, float]]]:
        """The time at which all of these are scored, and the scores: first rules, then tests, then the judge, which
        takes the actor's place."""
        waiting, scores = list(responses), list[tuple[Request, float]]()
        for kind, pool in self.pools.items():
            some = [(request, program) for request, program in waiting if self._kind(request) is kind]
            if some and kind is Reward.JUDGE:
                now += self.setup.scoring.judge_load_s
            for request, program in some:
                self.submit(request, program, now)
            while (then := pool.next_at()) < inf:
                now = then
                scores += [(request, self._score(request, kind)) for request in pool.advance(now)]
        return now, scores
