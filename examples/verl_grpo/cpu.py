"""Replaces GPU and vLLM, so that the example runs anywhere: a platform for processors, and a rollout on `slots`.

veRL 0.9 has neither for processors, but its registries take both from outside.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import ray
import torch
from transformers import AutoModelForCausalLM
from verl.plugin.platform import PlatformBase, set_platform
from verl.workers.rollout.base import _ROLLOUT_REGISTRY, BaseRollout
from verl.workers.rollout.replica import RolloutMode, RolloutReplica, RolloutReplicaRegistry, TokenOutput
from verl.workers.rollout.utils import ensure_async_iterator

from rollmux.runtime.engine import Ended, FinishReason, GenerationRequest, Limits
from rollmux.runtime.engine.slots import slots


class Processor(PlatformBase):
    """A processor as veRL's device. To Ray it is a GPU, of which Ray has as many as it is told."""

    device_name = "cpu"
    vendor_name = "any"

    @property
    def device_module(self) -> ModuleType:
        return torch.cpu

    def is_available(self) -> bool:
        return True

    def current_device(self) -> Any:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None: ...


class SlotsServer:
    """One rollout server on `slots`: requests come one by one and are decoded together.

    It waits `token_s` before each token, in place of a large model's computing.
    """

    def __init__(self, path: str, mode: RolloutMode, length: int, most: int, token_s: float = 0.0) -> None:
        torch.set_num_threads(1)
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        self.engine = slots(model, Limits(room_tokens=64 * most, max_running=most))
        self.mode, self.length, self.stop, self.token_s = mode, length, model.config.eos_token_id, token_s
        self.waiting: dict[str, asyncio.Future[TokenOutput]] = {}
        self.lots: Counter[tuple[int, ...]] = Counter()  # numbers a prompt's responses, whichever is asked for first
        self.working: asyncio.Task[None] | None = None
        self.given_up: list[int] = []  # tokens of each response that was given up since the last weights

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **_: object
    ) -> TokenOutput:
        prompt = tuple(int(token) for token in prompt_ids)
        seed = hash((prompt, self.engine.version, self.lots[prompt])) % 2**63
        self.lots[prompt] += 1
        self.engine.submit(
            GenerationRequest(
                request_id, prompt, self.length, sampling_params["temperature"], seed=seed, stop_tokens=(self.stop,)
            )
        )
        self.waiting[request_id] = asyncio.get_running_loop().create_future()
        if self.working is None or self.working.done():
            self.working = asyncio.create_task(self._work())
        try:
            return await self.waiting[request_id]
        except asyncio.CancelledError:  # as vLLM's servers do
            for left in self.engine.export([request_id]):
                self.given_up.append(len(left.response.tokens))
                del self.waiting[request_id]
            raise

    async def _work(self) -> None:
        while self.waiting:
            await asyncio.sleep(self.token_s)  # requests that come meanwhile are decoded with the others
            for event in self.engine.step():
                if isinstance(event, Ended):
                    self._answer(event)

    def _answer(self, event: Ended) -> None:
        drawn, asked = event.response, self.waiting.pop(event.id)
        if not asked.cancelled():
            output = TokenOutput(
                token_ids=list(drawn.tokens), log_probs=list(drawn.logprobs),
                stop_reason="aborted" if event.reason is FinishReason.CANCELLED else "completed",
                extra_fields={"global_steps": self.engine.version},
            )  # fmt: skip
            asked.set_result(output)

    async def abort_all_requests(self, reject_request: bool = False) -> None:
        self.engine.cancel(self.waiting)
        await asyncio.gather(*self.waiting.values(), return_exceptions=True)

    async def resume_generation(self) -> None: ...

    async def update(self, version: int, weights: dict[str, torch.Tensor]) -> None:
        if version > self.engine.version:
            self.engine.update(version, weights)
        self.lots.clear()
        if self.given_up:
            print(f"version {version}: {len(self.given_up)} responses were given up after {sum(self.given_up)} tokens")
            self.given_up.clear()

    async def sleep(self) -> None:
        if self.mode is not RolloutMode.STANDALONE:  # as veRL's servers do
            self.engine.suspend()

    async def wake_up(self) -> None:
        self.engine.resume()


class SlotsReplica(RolloutReplica):
    async def launch_servers(self) -> None:
        limits = (self.config.response_length, self.config.max_num_seqs)
        pace = self.config.engine_kwargs.get("slots", {})
        server = ray.remote(num_cpus=0)(SlotsServer).options(
            name=f"slots_{self.replica_rank}", max_concurrency=self.max_concurrency
        )
        self.servers = [server.remote(self.model_config.path, self.rollout_mode, *limits, **pace)]
        self._server_handle, self._server_address = self.servers[0], f"slots_{self.replica_rank}"


class SlotsWeights(BaseRollout):
    """Hands new weights to the server of its replica."""

    replica_rank, is_leader_rank = 0, True

    async def update_weights(self, weights: Any, global_steps: int = 0, **_: object) -> None:
        taken = {name: tensor.clone() async for name, tensor in ensure_async_iterator(weights)}
        await ray.get_actor("slots_0").update.remote(global_steps, taken)

    async def resume(self, tags: list[str]) -> None:
        await ray.get_actor("slots_0").wake_up.remote()

    async def release(self) -> None: ...


for name in ("empty_cache", "max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved"):
    setattr(torch.cpu, name, lambda *_: 0)
vars(torch.cpu)["set_rng_state"] = torch.set_rng_state  # veRL calls it on the device when it reads a checkpoint
set_platform(Processor())
if (
    "WG_PREFIX" in os.environ
):  # veRL would ask for one backend for processors and one for the device, which are the same
    torch.distributed.init_process_group("gloo")
_ROLLOUT_REGISTRY["slots", "async"] = f"{__name__}.SlotsWeights"
RolloutReplicaRegistry.register("slots", lambda: SlotsReplica)
