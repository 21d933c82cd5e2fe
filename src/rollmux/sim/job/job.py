"""A job's steps, one after the other: a round, its training and the sync, under one system."""

from collections import deque
from dataclasses import dataclass
from itertools import accumulate
from math import inf

from rollmux.packer.batching import Batching
from rollmux.packer.commands import Batch, RoundKind
from rollmux.packer.length_bias import LengthBias
from rollmux.packer.stream import StreamPolicy, StreamSettings
from rollmux.packer.tail_batcher import TailBatcher
from rollmux.packer.timeouts import TimeoutPolicy
from rollmux.sim.job.rollout import Rollout, RoundPlayer
from rollmux.sim.job.scorer import Scorer
from rollmux.sim.job.setup import Setup, Source
from rollmux.sim.job.sizes import RESIZE_S, Sizes
from rollmux.sim.job.system import Sizing, System

# From freeing devices to learning on them: the engine's state goes, the trainer's comes, its groups are made anew.
# Calibrated, as is the next, on what streaming gains over a step of the 7B and the 14B job in the paper, which has it
# in three ways that don't agree; docs/design/job_simulator.md has them beside ours.
STREAM_START_S = 20.0
# Half of the devices learn from whatever prompts are done, in small and uneven pieces: so much of their usual speed.
STREAM_REACHED = 0.6
# By which quantile a length is projected: over the many requests of a replica, too long and too short even out.
PROJECTED = 0.5
# Lengths that are remembered of earlier rounds, to plan with.
REMEMBERED = 8192


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a job: what it took, in seconds that follow each other, and what came of it."""

    kind: RoundKind
    rollout_s: float
    reward_s: float  # after the last token
    train_s: float  # after the last reward
    sync_s: float
    tp: int
    launched: int
    preemptions: int
    hidden_s: float  # training that went on beside the rollout
    trained_tokens: int
    wasted_tokens: int
    batch: Batch

    @property
    def step_s(self) -> float:
        return self.rollout_s + self.reward_s + self.train_s + self.sync_s


class Job:
    """Runs steps of one job under one system."""

    def __init__(self, setup: Setup, system: System, seed: int) -> None:
        self.setup, self.system = setup, system
        self.source = Source(setup, seed)
        self.batcher = TailBatcher(
            Batching(
                setup.prompts, setup.responses, system.eta_prompts, system.eta_responses, system.race, setup.quotas
            )
        )
        self.timeouts = TimeoutPolicy() if system.adaptive_timeouts else None
        self.stream = StreamPolicy(StreamSettings(setup.cap, quantile=PROJECTED)) if system.stream else None
        self.sizes = Sizes(setup, system.sizing) if system.sizing is not Sizing.FIXED else None
        self.tp = setup.tp
        # Half of what is inferred is the old policy's, half the reference's.
        infer, skipped = setup.training.infer_part, setup.training.infer_part / 2 if system.one_update else 0.0
        self.infer_part = (infer - skipped) / (1 - skipped)
        self.token_s = setup.train_token_s * (1 - skipped)
        # Of responses of late: for short rounds all of them, as those meet all prompts; for long rounds their own.
        self.lengths: dict[bool, deque[int]] = {long: deque(maxlen=REMEMBERED) for long in (False, True)}
        self.bias = LengthBias()  # with the whole lengths of those that were aborted, which only a simulator knows

    def step(self) -> Step:
        """The next one."""
        setup, system = self.setup, self.system
        is_long = self.batcher.next_kind is RoundKind.LONG
        tp = setup.tp if self.sizes is None else self.sizes.choose(long=is_long)
        resize_s = RESIZE_S if tp != self.tp else 0.0
        self.tp = tp
        rollout = RoundPlayer(
            setup,
            self.source,
            self.batcher,
            Scorer(setup, self.source, self.timeouts, system.judge_batch),
            tp,
            wake_s=setup.wake_s + resize_s,
            beside=system.beside,
            stream=self.stream if is_long or system.stream_short else None,
            known_lengths=tuple(self.lengths[is_long]),
        ).play()
        batch = rollout.batch
        assert batch is not None
        lengths = [response.tokens for prompt in batch.prompts for response in prompt.responses]
        for known in self.lengths.values() if is_long else [self.lengths[False]]:
            known.extend(lengths)
        if self.sizes is not None:
            self.sizes.observe(rollout, lengths, long=is_long)
        self._count_lengths(batch)
        tokens = sum(lengths) + len(lengths) * setup.prompt_tokens
        hidden_s = self._hidden_s(rollout, batch, tokens)
        return Step(
            kind=batch.kind,
            rollout_s=rollout.generated_s,
            reward_s=rollout.complete_s - rollout.generated_s,
            train_s=setup.training.fixed_s + tokens * self.token_s - hidden_s,
            sync_s=setup.sync_s,
            tp=tp,
            launched=rollout.launched,
            preemptions=rollout.preemptions,
            hidden_s=hidden_s,
            trained_tokens=tokens,
            wasted_tokens=batch.wasted_tokens,
            batch=batch,
        )

    def _count_lengths(self, batch: Batch) -> None:
        for trained in batch.prompts:
            prompt = trained.prompt
            launched = range(trained.launched)
            self.bias.offered(prompt.domain, [self.source.response(prompt, each, batch.round)[0] for each in launched])
            self.bias.trained(prompt.domain, [response.tokens for response in trained.responses])

    def _hidden_s(self, rollout: Rollout, batch: Batch, tokens: int) -> float:
        """How much of the update's arithmetic goes on before the round is over."""
        if self.system.infer_early:
            idle_s = sum(rollout.generated_s - since for since in rollout.idle_s) / len(rollout.idle_s)
            return min(idle_s, self.infer_part * tokens * self.token_s)
        joins = self._joins(rollout)
        return streamed_s(joins, rollout.complete_s, self._learnt(rollout, batch)) if joins else 0.0

    def _joins(self, rollout: Rollout) -> list[tuple[float, float]]:
        """When devices begin to learn beside the rollout, and the part of the usual speed that they add."""
        if rollout.freed_s == inf:
            return []
        each = STREAM_REACHED / len(rollout.idle_s)
        joins = [(rollout.freed_s + STREAM_START_S, each * len(rollout.freed))]
        if self.system.stream_wide:
            kept = [since for i, since in enumerate(rollout.idle_s) if i not in rollout.freed]
            joins += [(max(since, rollout.freed_s) + STREAM_START_S, each) for since in kept]
        return sorted(join for join in joins if join[0] < rollout.complete_s)

    def _learnt(self, rollout: Rollout, batch: Batch) -> list[tuple[float, float]]:
        """What there is to learn from, from when on, and how long it takes all devices.

        A gradient needs the advantages of a whole prompt, log-probabilities only the response.
        """
        setup, scored = self.setup, rollout.scored_s
        infer = self.infer_part if self.system.stream_wide else 0.0
        work = []
        for prompt in batch.prompts:
            sizes = [(scored[r.request], (r.tokens + setup.prompt_tokens) * self.token_s) for r in prompt.responses]
            work.append((max(at for at, _ in sizes), (1 - infer) * sum(size for _, size in sizes)))
            if infer:
                work += [(at, infer * size) for at, size in sizes]
        return sorted(work)


def streamed_s(joins: list[tuple[float, float]], until: float, work: list[tuple[float, float]]) -> float:
    """How much of the work is done before the end: each piece from when it is there, one after the other.

    `joins` say when how much speed is added, `work` when a piece comes and how long it takes at full speed.
    """
    marks = [at for at, _ in joins] + [until]
    speeds = list(accumulate(speed for _, speed in joins))
    now, stage, done = joins[0][0], 0, 0.0
    for at, size in work:
        now, left = max(now, at), size
        while left > 0 and now < until:
            while stage + 1 < len(speeds) and marks[stage + 1] <= now:
                stage += 1
            spent = min(left, (marks[stage + 1] - now) * speeds[stage])
            left -= spent
            done += spent
            now = now + spent / speeds[stage] if left <= 0 else marks[stage + 1]
    return done
