"""SkyRL's colocated jobs under leases: run this in place of `skyrl.train.entrypoints.main_base`, with its arguments.

The lease of a rollout begins where SkyRL gives its engines new weights. All that is evaluated and drawn with these is
under it, and it ends once the engines are asleep. The lease of a training covers the rest of a step. The next holder of
a lease finds the GPUs empty.
"""

import asyncio
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import ray
from skyrl.backends.skyrl_train.workers.worker_dispatch import WorkerDispatch
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.entrypoints.main_base import BasePPOExp
from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils import validate_cfg
from skyrl.train.utils.utils import initialize_ray

import rollmux
from rollmux.client import Mux


@dataclass
class Config(SkyRLTrainConfig):
    rollmux: Any = None  # what rollmux.connect(job=...) takes; where the controller has started the job, it knows it


class Turns:
    """One lease at a time: the next is asked for once the last one's nodes are empty, and given back.

    Both kinds of phase have the same nodes, so no state ever stays there.
    """

    def __init__(self, mux: Mux, held: ExitStack) -> None:
        self._mux, self._held, self._kind = mux, held, ""
        self.on_nodes = SimpleNamespace(offload=lambda: None)  # while SkyRL builds, nothing can move its state yet

    def take(self, kind: str) -> None:
        if kind != self._kind:
            self._kind = ""
            self._held.close()
            self._held.enter_context(self._mux.phase(kind, state=self.on_nodes))
            self._kind = kind


class Dispatch(WorkerDispatch):
    """SkyRL's dispatch, which also knows what is on the GPUs: its models, and the engines."""

    def __init__(self, turns: Turns, *given: Any) -> None:
        super().__init__(*given)
        self.turns, self.engines_are_awake = turns, False

    async def save_weights_for_sampler(self, model_id: str | None = None) -> None:
        self.turns.take("rollout")
        self.engines_are_awake = True
        await super().save_weights_for_sampler(model_id)

    def offload_all(self) -> None:
        for model, there in self._gpu_state.items():
            if there.model_on_gpu or there.optimizer_on_gpu:
                self._offload(model)
        if self.engines_are_awake:  # after an error: otherwise SkyRL puts them to sleep itself
            asyncio.run(self._have_engines_sleep())

    async def _have_engines_sleep(self) -> None:
        for part in ("weights", "kv_cache"):  # a vLLM that is awake in part counts as asleep, and would ignore `sleep`
            await self._inference_engine_client.wake_up(tags=[part])
        await self._inference_engine_client.sleep()


class LeasedTrainer(RayPPOTrainer):
    def __init__(self, turns: Turns, **given: Any) -> None:
        super().__init__(**given)
        self.turns = turns

    def build_models(self, *workers: Any) -> None:
        super().build_models(*workers)
        models = self.policy_model, self.critic_model, self.ref_model
        self.dispatch = Dispatch(self.turns, self.cfg, *models, self.inference_engine_client)
        self.turns.on_nodes.offload = self.dispatch.offload_all

    def postprocess_generator_output(self, *given: Any, **more: Any) -> Any:
        self.dispatch.engines_are_awake = False
        self.turns.take("train")
        return super().postprocess_generator_output(*given, **more)

    async def train(self) -> None:
        await super().train()
        self.dispatch.engines_are_awake = False


class LeasedExp(BasePPOExp):
    def run(self) -> None:
        require_settings(self.cfg)
        with rollmux.connect(job=self.cfg.rollmux) as mux, ExitStack() as held:
            require_same_nodes(mux)
            self.turns = Turns(mux, held)
            super().run()

    def get_inference_client(self) -> Any:
        self.turns.take("rollout")  # before this, nothing of the job is on a GPU
        return super().get_inference_client()

    def get_trainer(self, **given: Any) -> LeasedTrainer:
        return LeasedTrainer(self.turns, **given)


def require_settings(cfg: Config) -> None:
    engines = cfg.generator.inference_engine.engine_init_kwargs
    refused = {
        "trainer.placement.colocate_all=false": not cfg.trainer.placement.colocate_all,
        "trainer.fully_async.enabled=true": cfg.trainer.fully_async.enabled,
        "engine_init_kwargs.enable_sleep_mode=false": not engines.get("enable_sleep_mode", True),
    }
    for setting, is_so in refused.items():
        if is_so:
            raise ValueError(f"the GPUs can be others' only where SkyRL leaves them: go without {setting}")


def require_same_nodes(mux: Mux) -> None:
    if mux.rollout_nodes != mux.train_nodes:
        raise ValueError(
            f"this job rolls out on {mux.rollout_nodes} and trains on {mux.train_nodes}, and is colocated: give the "
            "cluster one `shared` pool, and the job as many nodes for each phase"
        )


def work(cfg: Config) -> None:
    LeasedExp(cfg).run()


def main() -> None:
    cfg = Config.from_cli_overrides(sys.argv[1:])
    validate_cfg(cfg)
    initialize_ray(cfg)
    ray.get(ray.remote(num_cpus=1)(work).remote(cfg))  # as SkyRL does: the driver's machine may have no GPU


if __name__ == "__main__":
    main()
