"""A trainer for veRL whose phases are leased: `trainer.v1.trainer_mode=leased`, with this module among
`VERL_USE_EXTERNAL_MODULES`.

It is veRL's synchronous trainer with its rollout servers on nodes of their own. Each phase's state is moved off its
nodes for other jobs. Between the phases new weights wait in a file on the host, so no phase needs the nodes of both.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor
from verl.checkpoint_engine import CheckpointEngine, CheckpointEngineManager, CheckpointEngineRegistry
from verl.trainer.ppo.v1 import PPOTrainer, register_trainer
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.rollout.llm_server import LLMServerManager
from verl.workers.rollout.replica import RolloutMode

import rollmux


@CheckpointEngineRegistry.register("host")
class HostWeights(CheckpointEngine):
    """Weights in a file that the nodes of both phases see: a training writes it at its end, a rollout reads it."""

    def __init__(self, folder: str, is_master: bool = False, **_: object) -> None:
        self.folder, self.is_master = Path(folder), is_master

    async def send_weights(self, weights: Iterable[tuple[str, Tensor]], global_steps: int = 0) -> None:
        kept = {}
        for name, tensor in weights:  # each tensor is gathered from all processes
            if self.is_master:
                kept[name] = tensor.cpu()
        if self.is_master:
            self.folder.mkdir(parents=True, exist_ok=True)
            torch.save(kept, self.folder / "written")
            (self.folder / "written").rename(self.folder / str(global_steps))
            for old in set(self.folder.iterdir()) - {self.folder / str(global_steps)}:
                old.unlink()

    async def receive_weights(self, global_steps: int = 0) -> AsyncIterator[tuple[str, Tensor]]:
        for named in torch.load(self.folder / str(global_steps), mmap=True).items():
            yield named

    def prepare(self) -> dict[str, Any]:
        return {}

    @classmethod
    def build_topology(cls, *_: object) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        return {}, {}

    def init_process_group(self, **_: object) -> None: ...

    def finalize(self) -> None: ...


class Servers(LLMServerManager):
    """Rollout servers on nodes of their own that can sleep: veRL lets only colocated servers sleep."""

    rollout_replica_class: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        replica: Any = self.rollout_replica_class

        class Sleeping(replica):
            async def launch_servers(self) -> None:
                self.rollout_mode = RolloutMode.COLOCATED
                await super().launch_servers()

        self.rollout_replica_class = Sleeping


@register_trainer("leased")
class Leased(PPOTrainer):
    """A rollout phase from the first prompt of a step to the last response, a training phase from there on."""

    _enable_hybrid_replicas = False

    def __init__(self, config: DictConfig) -> None:
        config.trainer.v1.trainer_mode = "sync"  # it samples so, and code that asks for the mode means that
        super().__init__(config)
        self.leased, self.drawn_with = "", -1

    def _setup(self) -> None:
        super()._setup()
        self.llm_server_manager = Servers.create(config=self.config)
        engine = omega_conf_to_dataclass(self.config.actor_rollout_ref.rollout.checkpoint_engine)
        replicas = self.llm_server_manager.get_replicas()
        manager = CheckpointEngineManager(engine, self.actor_rollout_wg, replicas)
        self.drawing = SimpleNamespace(load=manager.wake_up_replicas, offload=manager.sleep_replicas)
        moves = [self.actor_rollout_wg.to, *([self.critic_wg.to] if self.use_critic else [])]
        self.learning = [SimpleNamespace(load=partial(to, "device"), offload=partial(to, "cpu")) for to in moves]

    def on_init_end(self) -> None:
        self._write_weights()
        for state in (self.drawing, *self.learning):  # it was built without a lease: the nodes may be another job's now
            state.offload()

    def fit(self, agent_loop_manager: Any) -> None:
        job = self.config.trainer.get("rollmux")  # None if the controller has started the job, and so knows it
        job = None if job is None else OmegaConf.to_container(job)
        with rollmux.connect(job=job) as self.mux, ExitStack() as self.lease:
            super().fit(agent_loop_manager)

    def on_step_begin(self) -> None:
        self._roll_out()

    def on_validate_begin(self) -> None:
        self._roll_out()

    def on_sample_end(self) -> None:
        self._enter("train", self.learning)

    def on_step_end(self) -> None:
        self._write_weights()
        self._leave()

    def _roll_out(self) -> None:
        """Begins a rollout with the weights last written. A validation belongs to the rollout that comes after it."""
        if self.leased != "rollout":
            self._enter("rollout", self.drawing)
            if self.drawn_with != self.written:
                workers = [worker for replica in self.llm_server_manager.get_replicas() for worker in replica.workers]
                ray.get([worker.update_weights.remote(global_steps=self.written) for worker in workers])
                self.drawn_with = self.written

    def _write_weights(self) -> None:
        self.written = self.global_steps
        ray.get(self.actor_rollout_wg.update_weights(global_steps=self.written))

    def _enter(self, kind: str, state: object) -> None:
        self._leave()
        self.lease.enter_context(self.mux.phase(kind, state=state))
        self.leased = kind

    def _leave(self) -> None:
        self.lease.close()  # there is nothing to close before the first
        self.leased = ""
