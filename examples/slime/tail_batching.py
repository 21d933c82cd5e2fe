"""slime's rollout by tail batching, and the data source that keeps the prompts that wait for a long round.

Invariants: each response that a rollout returns was drawn whole, in that rollout; each prompt that is drawn is returned
once, even if the job was stopped and goes on from a checkpoint; when a rollout returns, the servers are idle.
"""

import asyncio
import copy
import uuid
from argparse import Namespace
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from slime.rollout import sglang_rollout
from slime.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput
from slime.rollout.data_source import RolloutDataSource
from slime.rollout.filter_hub.base_types import MetricGatherer, call_dynamic_filter
from slime.rollout.rm_hub import async_rm, batched_async_rm
from slime.utils.async_utils import run
from slime.utils.misc import load_function
from slime.utils.types import Sample

from rollmux.packer import (
    Abort,
    Batch,
    Batching,
    Draw,
    Event,
    Launch,
    Prompt,
    PromptDrawn,
    Race,
    Request,
    Response,
    ResponseFailed,
    ResponseGenerated,
    ResponseRewarded,
    RoundComplete,
    RoundStarted,
    TailBatcher,
)

Drawn = Any  # a response: a Sample, or a list of them where --custom-generate-function-path splits it

MOST_FAILURES = 10  # in a rollout, for each response that is trained: more can't be an accident
LOST = (Sample.Status.ABORTED, Sample.Status.FAILED)


def batching(args: Namespace) -> Batching:
    """The batching that slime's own arguments give, and `tail_batching` in the file of --custom-config-path."""
    settings: dict[str, Any] = {"eta_responses": 1.0} | (getattr(args, "tail_batching", None) or {})
    race = Race(settings.pop("race", Race.REWARDED.value))
    eta_prompts = args.over_sampling_batch_size / args.rollout_batch_size
    return Batching(args.rollout_batch_size, args.n_samples_per_prompt, eta_prompts, race=race, **settings)


class Source(RolloutDataSource):  # type: ignore[misc]  # slime has no types
    """slime's data source, with the batcher and the prompts that it has put off: all are saved together."""

    def __init__(self, args: Namespace) -> None:
        super().__init__(args)
        if args.partial_rollout:
            raise ValueError("--partial-rollout trains what older weights have drawn: leave it out")
        path = args.dynamic_sampling_filter_path
        self._filter = None if path is None else load_function(path)
        self._keep = None if path is None else self._is_worth_it
        self._batching = batching(args)
        self.batcher = TailBatcher(self._batching, self._keep)
        self.answers: dict[Request, Drawn] = {}  # responses of the rollout under way, as they are generated
        self.refused: list[list[Drawn]] = []  # groups that the filter refused
        self.reasons = MetricGatherer()
        self._firsts: dict[Prompt, Sample] = {}  # the data's samples of prompts that are not done
        self._places = {id(sample): place for place, sample in enumerate(self.dataset.origin_samples)}

    def begin(self, rollout_id: int) -> Event:
        """Starts a rollout, and forgets all of the last one."""
        self.answers, self.refused, self.reasons = {}, [], MetricGatherer()
        rollouts = self.args.num_rollout
        if rollouts is None:
            rollouts = len(self) // self.args.rollout_batch_size * self.args.num_epoch
        if rollout_id >= rollouts:
            raise ValueError(f"rollout {rollout_id} comes after the last one that was ordered")
        return RoundStarted(rollouts - rollout_id)

    def draw(self) -> Event:
        """Draws the next prompt of the data."""
        ((first, *_),) = self.get_samples(1)
        prompt = Prompt(self.epoch_id, self._places[id(self.dataset.samples[self.sample_offset - 1])])
        self._firsts[prompt] = first
        return PromptDrawn(prompt)

    def sample(self, request: Request) -> Sample:
        """A new sample to be generated, with an index that no other sample of the job has."""
        sample = copy.deepcopy(self._firsts[request.prompt])
        if request.sample < self.args.n_samples_per_prompt:
            sample.index += request.sample
        else:  # beyond the group's number: launched for a race, or again after a failure
            sample.index = self.sample_index
            self.sample_index += 1
        sample.session_id = str(uuid.uuid4())
        return sample

    def end(self, batch: Batch) -> list[list[Drawn]]:
        """The groups of a batch; forgets prompts that are done."""
        groups = [[self.answers[each.request] for each in trained.responses] for trained in batch.prompts]
        trained, failed = ([each.prompt for each in ended] for ended in (batch.prompts, batch.failed_prompts))
        for prompt in (*trained, *failed, *batch.filtered):
            del self._firsts[prompt]
        return groups

    def save(self, rollout_id: int) -> None:
        waiting = [[each.epoch, each.id, first.group_index, first.index] for each, first in self._firsts.items()]
        self.metadata["tail_batching"] = {"batcher": self.batcher.state(), "waiting": waiting}
        super().save(rollout_id)

    def load(self, rollout_id: int | None = None) -> None:
        super().load(rollout_id)
        saved = self.metadata.get("tail_batching")
        if saved is None:  # the job begins, or ran without tail batching so far
            return
        self.batcher = TailBatcher.from_state(self._batching, saved["batcher"], self._keep)
        for epoch, place, group_index, index in saved["waiting"]:
            first = self._firsts[Prompt(epoch, place)] = copy.deepcopy(self.dataset.origin_samples[place])
            first.group_index, first.index = group_index, index

    def _is_worth_it(self, responses: tuple[Response, ...]) -> bool:
        group = [self.answers[each.request] for each in responses]
        found = call_dynamic_filter(self._filter, self.args, group)
        if not found.keep:
            self.reasons.on_dynamic_filter_drop(reason=found.reason)
            self.refused.append(group)
        return bool(found.keep)


class Rollout:
    """The batcher says what is wanted, slime's engines generate it, and its rewards score it."""

    def __init__(self, args: Namespace, source: Source) -> None:
        self._args, self._source = args, source
        self._state = sglang_rollout.GenerateState(args)
        self._unscored = copy.copy(args)
        self._unscored.group_rm = True  # slime then leaves the reward to us: we tell the end of generation first
        self._tasks: dict[Request, asyncio.Task[Any]] = {}
        self._wanted: dict[asyncio.Task[Any], tuple[tuple[Request, ...], Callable[[Any], list[Event]]]] = {}
        self._scored: set[Prompt] = set()  # those of which a whole group is, or was, with its reward function
        self._batch: Batch | None = None
        self._failures = 0

    async def run(self, rollout_id: int) -> Batch:
        self._tell(self._source.begin(rollout_id))
        while self._batch is None:
            done, self._state.pendings = await asyncio.wait(self._state.pendings, return_when=asyncio.FIRST_COMPLETED)
            over = [(*self._wanted.pop(task), task) for task in done if task in self._wanted]
            over.sort(key=lambda each: each[0])  # the batcher's order for simultaneous events
            self._tell(*(event for _, then, task in over for event in then(task.result())))
        return self._batch

    def _tell(self, *events: Event) -> None:
        while events:
            follows: list[Event] = []
            for command in self._source.batcher.handle(*events):
                match command:
                    case Draw(count=count):
                        follows += [self._source.draw() for _ in range(count)]
                    case Launch(request=request):
                        self._launch(request)
                    case Abort(requests=requests):
                        self._abort(requests)
                    case RoundComplete(batch=batch):
                        self._batch = batch
            events = tuple(follows)

    def _launch(self, request: Request) -> None:
        args, settings = self._args, self._state.sampling_params.copy()
        if getattr(args, "sglang_enable_deterministic_inference", False):
            settings["sampling_seed"] = args.rollout_seed + request.sample
        generation = sglang_rollout.generate_and_rm(self._unscored, self._source.sample(request), settings)
        self._start((request,), generation, partial(self._generated, request))

    def _abort(self, requests: tuple[Request, ...]) -> None:
        """Gives responses up in slime's way: a server stops generating once its caller hangs up."""
        for request in requests:
            self._source.answers.pop(request, None)
            task = self._tasks.get(request)
            if task is not None and self._wanted.pop(task, None) is not None:
                task.cancel()

    def _start(
        self, requests: tuple[Request, ...], work: Coroutine[Any, Any, Any], then: Callable[[Any], list[Event]]
    ) -> None:
        task = asyncio.create_task(work)
        self._state.pendings.add(task)
        self._wanted[task] = requests, then
        self._tasks |= dict.fromkeys(requests, task)

    def _generated(self, request: Request, drawn: Drawn) -> list[Event]:
        samples = drawn if isinstance(drawn, list) else [drawn]
        if not samples:
            return [self._failed(request, "the response has no sample")]
        tokens = sum(each.response_length for each in samples)
        for each in samples:
            if each.status in LOST:
                return [self._failed(request, f"the response was {each.status.value}", tokens)]
        self._source.answers[request] = drawn
        if self._args.group_rm:
            self._score_group(request.prompt)
        else:
            self._score((request,))
        return [ResponseGenerated(request, tokens)]

    def _score_group(self, prompt: Prompt) -> None:
        """Has the first whole group of the prompt's responses scored, if none is yet."""
        group = [each for each in self._source.answers if each.prompt == prompt]
        wanted = self._args.n_samples_per_prompt
        if prompt not in self._scored and len(group) >= wanted:
            self._scored.add(prompt)
            self._score(tuple(group[:wanted]))

    def _score(self, requests: tuple[Request, ...]) -> None:
        self._start(requests, self._rewards(requests), lambda _: self._rewarded(requests))

    async def _rewards(self, requests: tuple[Request, ...]) -> None:
        group = [self._source.answers[each] for each in requests]
        drawn = group if self._args.group_rm else group[0]
        if not isinstance(drawn, list):
            drawn.reward = await async_rm(self._args, drawn) if drawn.reward is None else drawn.reward
            return
        unscored = [each for each in drawn if self._args.group_rm or each.reward is None]
        for each, reward in zip(unscored, await batched_async_rm(self._args, unscored), strict=True):
            each.reward = reward

    def _rewarded(self, requests: tuple[Request, ...]) -> list[Event]:
        """The rewards of a group are of use only together."""
        drawn = [self._source.answers[each] for each in requests]
        samples = [each[0] if isinstance(each, list) else each for each in drawn]
        if all(sample.reward is not None for sample in samples):
            rewards = [float(sample.get_reward_value(self._args)) for sample in samples]
            return list(map(ResponseRewarded, requests, rewards))
        for each in requests:
            del self._source.answers[each]
        if self._args.group_rm:
            self._scored.discard(requests[0].prompt)
            self._score_group(requests[0].prompt)
        return [self._failed(each, "there was no reward") for each in requests]

    def _failed(self, request: Request, why: str, tokens: int = 0) -> Event:
        self._failures += 1
        if self._failures > MOST_FAILURES * self._args.rollout_batch_size * self._args.n_samples_per_prompt:
            raise RuntimeError(f"{MOST_FAILURES} times as many failures as responses in one rollout, the last: {why}")
        return ResponseFailed(request, why, tokens)


async def _rollout(args: Namespace, rollout_id: int, source: Source) -> RolloutFnTrainOutput:
    try:
        batch = await Rollout(args, source).run(rollout_id)
    finally:
        await sglang_rollout.abort(args, rollout_id)
        sglang_rollout.GenerateState(args).reset()
    groups = source.end(batch)
    if args.rollout_sample_filter_path is not None:
        load_function(args.rollout_sample_filter_path)(args, groups)
    if args.rollout_all_samples_process_path is not None:
        load_function(args.rollout_all_samples_process_path)(args, [*groups, *source.refused], source.get_samples)
    return RolloutFnTrainOutput(samples=groups, metrics=source.reasons.collect() | metrics(batch, source))


def metrics(batch: Batch, source: Source) -> dict[str, float]:
    """The figures of a round for slime's tracker."""
    figures = batch.figures() | {"waiting": float(source.batcher.queued)}
    return {f"rollout/tail_batching/{name}": value for name, value in figures.items()}


def generate_rollout(
    args: Namespace, rollout_id: int, data_source: Any, evaluation: bool = False
) -> RolloutFnTrainOutput | RolloutFnEvalOutput:
    """The function for --rollout-function-path. Evaluations are left to slime."""
    if evaluation:
        return sglang_rollout.generate_rollout(args, rollout_id, data_source, evaluation=True)
    if not isinstance(data_source, Source):
        raise TypeError(
            f"a data source that keeps no rounds, {data_source!r}: give --data-source-path {__name__}.Source"
        )
    return run(_rollout(args, rollout_id, data_source))
