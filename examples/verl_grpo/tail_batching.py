"""Tail batching for veRL's synchronous trainers: `trainer.v1.trainer_mode=tail_batching_sync`, with this module among
`VERL_USE_EXTERNAL_MODULES`, or `tail_batching_leased` with `leased` before it.

Invariants: each response that a step trains was drawn whole, in that step; each prompt that is drawn is trained once,
even if the job was stopped and goes on from a checkpoint; when a rollout is over, the servers are idle.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from math import isfinite
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import ray
import torch
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf, open_dict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import AgentLoopManagerTQ, PPOTrainer, register_trainer
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ
from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY
from verl.utils import tensordict_utils as tu
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput

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

Row = Any  # a prompt as veRL's dataloader gives it: a TensorDict with one row

MOST_FAILURES = 10  # in a rollout, for each response that is trained: more can't be an accident
ASK_AGAIN_S = 1.0  # a server that did not know the request yet is asked again to stop it
REQUESTS = "__requests__"  # beside a prompt: which of its responses are to be drawn
FILE = "tail_batching.pt"  # in each checkpoint
TAKEN = (
    "actor_rollout_ref.rollout.agent.agent_loop_manager_class",
    "skip.rollout_tq.enable",
    "trainer.tail_batching.quotas",
    "trainer.v1.sampler.custom_sampler.path",
    "trainer.v1.sync.parameter_sync_step",
)


def batching(config: DictConfig) -> Batching:
    """veRL's own settings, and `trainer.tail_batching`. Without `eta_responses` only prompts race."""
    for key in TAKEN:
        if OmegaConf.select(config, key):
            raise ValueError(f"{key} does not go with tail batching: leave it out")
    said = OmegaConf.to_container(config.trainer.get("tail_batching") or OmegaConf.create())
    settings: dict[str, Any] = {"eta_responses": 1.0} | said
    race = Race(settings.pop("race", Race.REWARDED.value))
    return Batching(config.data.train_batch_size, config.actor_rollout_ref.rollout.n, race=race, **settings)


def metric_of_filter(config: DictConfig) -> str | None:
    """The metric of `algorithm.filter_groups`, if that is on: a prompt is refused if all its responses share it."""
    groups = config.algorithm.get("filter_groups")
    return groups.metric if groups is not None and groups.enable else None


class Prompts:
    """The batcher, and the prompts that are not done, as the data gave them: they are saved together."""

    def __init__(self, terms: Batching, is_filtered: bool, fetch: Callable[[], Row], epoch: int) -> None:
        self._terms, self._keep = terms, self._differ if is_filtered else None
        self._fetch, self._epoch = fetch, epoch  # an epoch has so many prompts
        self.batcher = TailBatcher(terms, self._keep)
        self.rows: dict[Prompt, Row] = {}
        self.refused: list[Prompt] = []  # prompts that the filter refused, whose responses are still stored
        self._next = 0, 0  # the next prompt's epoch, and its place there

    def _differ(self, responses: tuple[Response, ...]) -> bool:
        is_kept = len(responses) == 1 or len({each.reward for each in responses}) > 1
        if not is_kept:
            self.refused.append(responses[0].request.prompt)
        return is_kept

    def draw(self) -> Event:
        """Draws the next prompt of the data."""
        epoch, place = self._next
        prompt = Prompt(epoch, place)
        self._next = (epoch, place + 1) if place + 1 < self._epoch else (epoch + 1, 0)
        self.rows[prompt] = self._fetch()
        return PromptDrawn(prompt)

    def uid(self, prompt: Prompt) -> str:
        """veRL's name for the prompt."""
        (uid,) = self.rows[prompt]["uid"]
        return str(uid)

    def end(self, batch: Batch) -> None:
        """Forgets the prompts that are done."""
        trained, failed = ([each.prompt for each in ended] for ended in (batch.prompts, batch.failed_prompts))
        for prompt in (*trained, *failed, *batch.filtered):
            del self.rows[prompt]
        self.refused.clear()

    def state(self) -> dict[str, Any]:
        return {
            "batcher": self.batcher.state(),
            "rows": [(each.epoch, each.id, row) for each, row in self.rows.items()],
            "next": self._next,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.batcher = TailBatcher.from_state(self._terms, state["batcher"], self._keep)
        self.rows = {Prompt(epoch, place): row for epoch, place, row in state["rows"]}
        self._next = state["next"]


class Client(LLMServerClient):
    """Asks servers for responses, and has them stop responses that are given up: veRL's client lets them go on."""

    def __init__(self, config: DictConfig, load_balancer: Any) -> None:
        super().__init__(config, load_balancer)
        is_sglang = config.actor_rollout_ref.rollout.name == "sglang"
        self._http = httpx.AsyncClient(timeout=None, trust_env=False) if is_sglang else None

    async def _acquire_server(self, request_id: str, **more: Any) -> tuple[str, Any]:
        asked = asyncio.ensure_future(super()._acquire_server(request_id, **more))
        try:
            name, server = await asyncio.shield(asked)
        except asyncio.CancelledError:  # the server may be ours by now, and would count as busy for ever
            name, _ = await asked
            self._release_server(name, request_id)
            raise
        return name, SimpleNamespace(generate=SimpleNamespace(remote=partial(self._draw, name, server)))

    async def _draw(self, name: str, server: Any, request_id: str, **asked: Any) -> TokenOutput:
        drawing = server.generate.remote(request_id=request_id, **asked)
        try:
            output = await drawing
        except asyncio.CancelledError:
            await self._stop(name, request_id, drawing)
            raise
        if output.stop_reason in {"abort", "aborted"}:
            raise RuntimeError("the server has given the response up")
        return output

    async def _stop(self, name: str, request_id: str, drawing: Any) -> None:
        """Waits until the server has stopped. SGLang's goes on after a cancelled call, and is told which to stop."""
        over = asyncio.wrap_future(drawing.future())
        over.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody else asks for its error
        while not over.done():
            if self._http is not None:
                await self._http.post(f"http://{name}/abort_request", json={"rid": request_id})
            else:
                ray.cancel(drawing)
            await asyncio.wait([over], timeout=ASK_AGAIN_S)


class Worker(AgentLoopWorkerTQ.__ray_metadata__.modified_class):  # the class that Ray has wrapped
    """Tells what becomes of each response as it happens, and gives up responses that it is told to."""

    def __init__(self, config: DictConfig, llm_client: LLMServerClient, *more: Any) -> None:
        super().__init__(config, Client(config, llm_client._load_balancer), *more)
        self._metric = metric_of_filter(config) or "reward"
        self._begun: set[Request] = set()  # requests of the rollout under way that have begun
        self._drawing: dict[Any, Request] = {}  # tasks, as long as they can be given up
        self._lost: set[Request] = set()
        self._news: list[Event] = []
        self._has_news = asyncio.Event()

    async def news(self) -> list[Event]:
        """The events since the last call, once there are any."""
        await self._has_news.wait()
        self._has_news.clear()
        told, self._news = self._news, []
        return told

    async def abort(self, requests: tuple[Request, ...]) -> None:
        """Gives up those of the requests that are, or will be, drawn here."""
        self._lost.update(requests)
        for task in [task for task, request in self._drawing.items() if request in self._lost]:
            del self._drawing[task]  # only once: a second cancel would end its wait for the server
            task.cancel()

    async def settle(self) -> None:
        """Returns when nothing is under way any more. Events of this rollout that nobody has heard are dropped."""
        await asyncio.gather(*self.background_tasks)
        self._begun.clear()
        self._lost.clear()
        self._news.clear()
        self._has_news.clear()

    async def _run_prompt(self, prompt: dict[str, Any], *more: Any, **others: Any) -> None:
        """veRL first stores that the prompt runs. If that fails, this tells that all its responses have failed."""
        requests = prompt.get(REQUESTS, ())  # a validation has none
        try:
            await super()._run_prompt(prompt, *more, **others)
        except Exception as error:
            unheard = [request for request in requests if request not in self._begun]
            if not unheard:
                raise
            for request in unheard:
                self._tell(ResponseFailed(request, repr(error)))

    async def _run_agent_loop(
        self, sampling_params: dict[str, Any], trajectory: dict[str, Any], *, session_id: int, **prompt: Any
    ) -> None:
        if trajectory["validate"]:
            await super()._run_agent_loop(sampling_params, trajectory, session_id=session_id, **prompt)
            return
        request = prompt.pop(REQUESTS)[session_id]
        self._begun.add(request)
        if request in self._lost:
            return
        task = asyncio.current_task()
        self._drawing[task] = request
        try:
            await super()._run_agent_loop(sampling_params, trajectory, session_id=request.sample, **prompt)
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, Exception) or request not in self._lost:  # a tool may cancel its own agent loop
                self._tell(ResponseFailed(request, repr(error)))
                raise  # veRL logs it
        finally:
            self._drawing.pop(task, None)

    async def _agent_loop_postprocess(self, output: Any, validate: bool, **prompt: Any) -> None:
        request = self._drawing.get(asyncio.current_task())
        if request is None:  # a validation
            await super()._agent_loop_postprocess(output, validate, **prompt)
            return
        outputs = output if isinstance(output, list) else [output]
        if not outputs:
            raise ValueError("the agent loop has given no output")
        self._tell(ResponseGenerated(request, sum(len(each.response_ids) for each in outputs)))
        await super()._agent_loop_postprocess(output, validate, **prompt)
        self._tell(ResponseRewarded(request, self._reward(outputs[-1])))

    async def _compute_teacher_logprobs(self, *given: Any, **more: Any) -> None:
        """The last step before the response is stored. Storing is not broken off, or only half of it would be there."""
        await super()._compute_teacher_logprobs(*given, **more)
        self._drawing.pop(asyncio.current_task(), None)

    def _reward(self, output: Any) -> float:
        if self.reward_loop_worker_handles is None:
            return 0.0  # a model on the trainer's devices scores the batch later
        metric = self._metric
        reward = output.reward_score if metric == "reward" else output.extra_fields["reward_extra_info"][metric]
        if not isfinite(reward):
            raise ValueError(f"a {metric} of {reward}")
        return float(reward)

    def _tell(self, event: Event) -> None:
        self._news.append(event)
        self._has_news.set()


class Manager(AgentLoopManagerTQ):
    """All workers, addressed as one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(Worker)
        self._listening: dict[Any, Any] = {}

    def generate_sequences(self, prompts: Any) -> None:
        """Rotates the workers: veRL gives the first prompts to the first worker, so prompts that come one by one would
        all go there."""
        super().generate_sequences(prompts)
        self.agent_loop_workers.append(self.agent_loop_workers.pop(0))

    def news(self) -> list[Event]:
        """The events of responses, once there are any."""
        for worker in set(self.agent_loop_workers) - set(self._listening.values()):
            self._listening[worker.news.remote()] = worker
        (first,), _ = ray.wait(list(self._listening), num_returns=1)
        del self._listening[first]
        told: list[Event] = ray.get(first)
        return told

    def abort(self, requests: tuple[Request, ...]) -> None:
        ray.get([worker.abort.remote(requests) for worker in self.agent_loop_workers])

    def settle(self) -> None:
        ray.get([worker.settle.remote() for worker in self.agent_loop_workers])


class Rollouts:
    """Takes the place of veRL's replay buffer: the batcher says what is wanted, and the workers draw it."""

    def __init__(self, trainer: "TailBatching", buffer: Any) -> None:
        self._trainer, self._buffer = trainer, buffer
        self._failures = 0  # responses that failed in the rollout under way

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, float]]:
        if partition_id == "train":
            return self._roll_out()
        found: tuple[KVBatchMeta, dict[str, float]] = self._buffer.sample(
            global_steps=global_steps, partition_id=partition_id, batch_size=batch_size
        )
        return found

    def _roll_out(self) -> tuple[KVBatchMeta, dict[str, float]]:
        trainer, prompts = self._trainer, self._trainer.prompts
        self._failures = 0
        last = min(trainer.total_training_steps, trainer.steps_per_epoch * trainer.config.trainer.total_epochs)
        batch = self._tell(RoundStarted(last - trainer.global_steps + 1))
        while batch is None:
            batch = self._happened(trainer.agent_loop_manager.news())
        asyncio.run(stopped(trainer.llm_server_manager.get_replicas()))
        trainer.agent_loop_manager.settle()
        stored = _stored(batch, prompts)
        prompts.end(batch)
        return stored, metrics(batch, prompts.batcher)

    def _happened(self, events: list[Event]) -> Batch | None:
        terms, fail = self._trainer.terms, [event.why for event in events if isinstance(event, ResponseFailed)]
        self._failures += len(fail)
        if self._failures > MOST_FAILURES * terms.prompts * terms.responses:
            raise RuntimeError(
                f"{MOST_FAILURES} times as many failures as responses in one rollout, the last: {fail[-1]}"
            )
        return self._tell(*events)

    def _tell(self, *events: Event) -> Batch | None:
        """Tells the batcher these events and obeys it. Returns the batch, once it is complete."""
        prompts, complete = self._trainer.prompts, None
        while events:
            follows: list[Event] = []
            launched: dict[Prompt, list[Request]] = {}
            for command in prompts.batcher.handle(*events):
                match command:
                    case Draw(count=count):
                        follows += [prompts.draw() for _ in range(count)]
                    case Launch(request=request):
                        launched.setdefault(request.prompt, []).append(request)
                    case Abort(requests=requests):
                        self._trainer.agent_loop_manager.abort(requests)
                    case RoundComplete(batch=batch):
                        complete = batch
            if launched:
                self._trainer.launch(launched)
            events = tuple(follows)
        if len(prompts.refused) >= self._trainer.terms.prompts:  # many at once, as each call lists all keys
            _forget(prompts)
        return complete


def _tags() -> dict[str, Any]:
    """The keys of all that is stored of the rollout, with their tags."""
    tags: dict[str, Any] = (tq.kv_list("train") or {}).get("train", {})
    return tags


def _clear(keys: list[str]) -> None:
    if keys:
        tq.kv_clear(keys=keys, partition_id="train")


def _forget(prompts: Prompts) -> None:
    """Removes stored responses to refused prompts. Those that are just being stored go when the rollout is over."""
    refused = {prompts.uid(prompt) for prompt in prompts.refused}
    _clear([key for key in _tags() if "".join(key.rsplit("_", 2)[:-2]) in refused])
    prompts.refused.clear()


def _stored(batch: Batch, prompts: Prompts) -> KVBatchMeta:
    """The keys and tags of the responses to be trained. Removes those that lost the race."""
    tags = _tags()
    requests = [each.request for trained in batch.prompts for each in trained.responses]
    places = {f"{prompts.uid(each.prompt)}_{each.sample}": place for place, each in enumerate(requests)}
    parts = {key: key.rpartition("_") for key in tags}  # a response of an agent may come in several
    won = [(places[response], int(part), key) for key, (response, _, part) in parts.items() if response in places]
    keys = [key for *_, key in sorted(won)]
    _clear(list(tags.keys() - set(keys)))
    return KVBatchMeta(partition_id="train", keys=keys, tags=[tags[key] for key in keys])


class TailBatching(PPOTrainer):
    """Adds tail batching to a trainer that samples as the synchronous one does."""

    def __init__(self, config: DictConfig) -> None:
        self.terms = batching(config)
        with open_dict(config):
            config.data.gen_batch_size = 1  # prompts are drawn one by one
            config.actor_rollout_ref.rollout.agent.agent_loop_manager_class = f"{__name__}.{Manager.__name__}"
        config.trainer.v1.trainer_mode = "sync"  # code that asks for the mode means that
        super().__init__(config)

    def _build_replay_buffer(self) -> Rollouts:
        return Rollouts(self, super()._build_replay_buffer())

    def _init_dataloader(self) -> None:
        super()._init_dataloader()
        is_filtered = metric_of_filter(self.config) is not None
        self.prompts = Prompts(self.terms, is_filtered, self._fetch_one_gen_batch, len(self.train_dataloader))

    def _save_checkpoint(self) -> None:
        folder = Path(self.config.trainer.default_local_dir, f"global_step_{self.global_steps}")
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(self.prompts.state(), folder / FILE)
        super()._save_checkpoint()  # its last act makes the folder a checkpoint

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if not self.global_steps:
            return
        trainer = self.config.trainer
        is_named = trainer.resume_mode == "resume_path"
        latest = Path(trainer.default_local_dir, f"global_step_{self.global_steps}")
        file = (Path(trainer.resume_from_path) if is_named else latest) / FILE
        if not file.exists():  # without it, data drawn by batches would go on by prompts
            raise FileNotFoundError(f"{file}: a job goes on with tail batching only where it began with it")
        self.prompts.restore(torch.load(file, weights_only=False))

    def prepare_step(self) -> dict[str, float]:
        return {}  # the rollout draws its prompts

    def launch(self, launched: dict[Prompt, list[Request]]) -> None:
        """Has the workers draw these responses to these prompts."""
        rows = tu.concat_tensordict([self.prompts.rows[prompt] for prompt in launched])
        tu.assign_non_tensor_stack(rows, "__rollout_n__", [len(requests) for requests in launched.values()])
        tu.assign_non_tensor_stack(rows, REQUESTS, list(launched.values()))
        tu.assign_non_tensor_data(rows, "global_steps", self.global_steps)
        self._submit_batch_to_rollout(rows)


async def stopped(replicas: list[Any]) -> None:
    """Makes the servers idle and ready for new requests. Most have nothing left to stop."""
    await asyncio.gather(*(each.abort_all_requests() for each in replicas))
    await asyncio.gather(*(each.resume_generation() for each in replicas))


def metrics(batch: Batch, batcher: TailBatcher) -> dict[str, float]:
    """The figures of a rollout for veRL's trackers."""
    figures = batch.figures() | {"waiting": float(batcher.queued)}
    return {f"tail_batching/{name}": value for name, value in figures.items()}


for mode in TRAINER_REGISTRY.keys() & {"sync", "leased"}:
    register_trainer(f"tail_batching_{mode}")(
        type(f"TailBatching{mode.title()}", (TailBatching, TRAINER_REGISTRY[mode]), {})
    )
