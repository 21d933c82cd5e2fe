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

# The time from freeing devices until they learn: the engine's state goes, the trainer's comes, groups are made anew.
# This and the next figure are calibrated on the gain of streaming in a step of the paper's 7B and 14B jobs. The paper
# has this gain in three ways that don't agree; docs/design/job_simulator.md has them beside ours.
STREAM_START_S = 20.0
# The part of their usual speed that the freed half of the devices reaches: prompts come in small and uneven pieces.
STREAM_REACHED = 0.6
# The quantile by which a length is projected: over the many requests of a replica, errors even out.
PROJECTED = 0.5
# How many lengths of earlier rounds are remembered, to plan with.
REMEMBERED = 8192


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a job: the times of its parts, one after the other, and its results."""

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
        # Half of the log-probabilities are the old policy's, half the reference's.
        infer, skipped = setup.training.infer_part, setup.training.infer_part / 2 if system.one_update else 0.0
        self.infer_part = (infer - skipped) / (1 - skipped)
        self.token_s = setup.train_token_s * (1 - skipped)
        # Lengths of the latest responses. A short round may meet any prompt, so it has all; a long round only those of
        # long rounds.
        self.lengths: dict[bool, deque[int]] = {long: deque(maxlen=REMEMBERED) for long in (False, True)}
        self.bias = LengthBias()  # knows the whole lengths of aborted responses, as only a simulator can

    def step(self) -> Step:
        """Plays the next step."""
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
        """How many seconds of the update's arithmetic are done before the round is over."""
        if self.system.infer_early:
            idle_s = sum(rollout.generated_s - since for since in rollout.idle_s) / len(rollout.idle_s)
            return min(idle_s, self.infer_part * tokens * self.token_s)
        joins = self._joins(rollout)
        return streamed_s(joins, rollout.complete_s, self._learnt(rollout, batch)) if joins else 0.0

    def _joins(self, rollout: Rollout) -> list[tuple[float, float]]:
        """When devices begin to learn beside the rollout, and the part of the full speed that each adds."""
        if rollout.freed_s == inf:
            return []
        each = STREAM_REACHED / len(rollout.idle_s)
        joins = [(rollout.freed_s + STREAM_START_S, each * len(rollout.freed))]
        if self.system.stream_wide:
            kept = [since for i, since in enumerate(rollout.idle_s) if i not in rollout.freed]
            joins += [(max(since, rollout.freed_s) + STREAM_START_S, each) for since in kept]
        return sorted(join for join in joins if join[0] < rollout.complete_s)

    def _learnt(self, rollout: Rollout, batch: Batch) -> list[tuple[float, float]]:
        """The pieces of learning: when each can begin, and how long it takes all devices.

        A gradient needs the advantages, so the rewards of the whole prompt; log-probabilities need only the response.
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
    """How much of the work is done before `until`, if its pieces are done one after the other as they come.

    `joins` say when speed is added, and how much; `work` says when a piece comes, and how long it takes at full speed.
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
