"""OpenRLHF's colocated jobs under leases: run this in place of `openrlhf.cli.train_ppo_ray`, with its arguments.

All that is evaluated and drawn is under the lease of a rollout, which ends once the engines are asleep. The lease of a
training covers the rest of a step, with the update of the engines' weights. The next holder of a lease finds the GPUs
empty.
"""

import argparse
import os
import runpy
import sys
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any

import openrlhf.utils
import ray
import yaml
from openrlhf.trainer import ppo_trainer
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from openrlhf.trainer.ray import launcher, ppo_actor, ppo_critic
from openrlhf.trainer.ray.vllm_engine import batch_vllm_engine_call

import rollmux
from rollmux.client import Mux


class Turns:
    """One lease at a time: the next is asked for once the last one's nodes are empty, and given back.

    Both kinds of phase have the same nodes, so no state ever stays there.
    """

    def __init__(self, mux: Mux, held: ExitStack) -> None:
        self._mux, self._held, self._kind = mux, held, ""
        self.on_nodes = SimpleNamespace(offload=lambda: None)  # while OpenRLHF builds nothing could move it

    def take(self, kind: str) -> None:
        if kind != self._kind:
            self._kind = ""
            self._held.close()
            self._held.enter_context(self._mux.phase(kind, state=self.on_nodes))
            self._kind = kind


def plain(actor: Any) -> Any:
    """The class that Ray has made an actor of."""
    return actor.__ray_metadata__.modified_class


PPOTrainer: Any = plain(ppo_trainer.PPOTrainer)
PolicyModelActor: Any = plain(ppo_actor.PolicyModelActor)
CriticModelActor: Any = plain(ppo_critic.CriticModelActor)
ReferenceModelActor: Any = plain(launcher.ReferenceModelActor)
RewardModelActor: Any = plain(launcher.RewardModelActor)


class Trained(launcher.BaseModelActor):
    """A worker whose model DeepSpeed trains. OpenRLHF moves all of its state but the weights; here these leave, too.

    When the weights come back all state does, as DeepSpeed can't bring less. OpenRLHF's call then moves the rest off.
    """

    is_away = False

    def leave(self) -> None:
        if not self.is_away:
            self.engine.offload_states()
            self.empty_cache()
            self.is_away = True

    def _here(self) -> Any:
        if self.is_away:
            self.engine.reload_states()
            self.offload_states()
            self.is_away = False
        return super()

    def forward(self, *given: Any, **more: Any) -> Any:
        return self._here().forward(*given, **more)

    def save_checkpoint(self, *given: Any, **more: Any) -> None:
        self._here().save_checkpoint(*given, **more)

    def save_model(self) -> None:
        self._here().save_model()


class Asked(launcher.BaseModelActor):
    """A worker whose model is not trained. With ZeRO 3 it is on the host between calls; else the whole model moves."""

    def leave(self) -> None:
        if self.strategy.args.ds.zero_stage == 3:
            self.engine.empty_partition_cache()
        else:
            self.engine.to("cpu")
        self.empty_cache()

    def forward(self, *given: Any, **more: Any) -> Any:
        if self.strategy.args.ds.zero_stage != 3:
            self.engine.to("cuda")
        return super().forward(*given, **more)


class Policy(Trained, PolicyModelActor):
    @property
    def engine(self) -> Any:
        return self.actor.model


class Critic(Trained, CriticModelActor):
    @property
    def engine(self) -> Any:
        return self.critic


class Reference(Asked, ReferenceModelActor):
    @property
    def engine(self) -> Any:
        return self.model.model


class Reward(Asked, RewardModelActor):
    @property
    def engine(self) -> Any:
        return self.model


class LeasedTrainer(PPOTrainer):
    samples_generator: Any

    def __init__(self, turns: Turns, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.turns, self.engines_are_awake = turns, False
        self.samples_generator = Drawing(self, self.samples_generator)
        for loader in (self.prompts_dataloader, self.eval_dataloader):
            if loader is not None:
                loader.pin_memory = False  # of strings; it would make a CUDA context in this process

    def fit(self, *given: Any) -> None:
        self.turns.on_nodes.offload = self.offload_all
        super().fit(*given)

    def train_step(self, *given: Any) -> Any:
        self.turns.take("train")
        return super().train_step(*given)

    def broadcast_to_vllm(self) -> None:
        self.engines_are_awake = True
        super().broadcast_to_vllm()

    def offload_all(self) -> None:
        models = self.actor_model_group, self.critic_model_group, self.reward_model_group, self.reference_model_group
        ray.get([call for model in models if model is not None for call in model.async_run_method("leave")])
        if self.engines_are_awake:
            batch_vllm_engine_call(self.vllm_engines, "wake_up")  # to vLLM one that is awake in part is asleep
            batch_vllm_engine_call(self.vllm_engines, "sleep")
            self.engines_are_awake = False


class Drawing(SamplesGenerator):
    """OpenRLHF's generator of samples under a rollout's lease. It wakes the engines and has them sleep again."""

    def __init__(self, trainer: LeasedTrainer, made: SamplesGenerator) -> None:
        super().__init__(
            made.strategy, made.prompts_dataloader, made.eval_dataloader, made.tokenizer, made.vllm_engines
        )
        self._trainer = trainer

    def generate_samples(self, **more: Any) -> Any:
        return self._in_rollout(super().generate_samples, more)

    def generate_eval_samples(self, **more: Any) -> Any:
        return self._in_rollout(super().generate_eval_samples, more)

    def _in_rollout(self, draw: Any, more: Any) -> Any:
        self._trainer.turns.take("rollout")
        self._trainer.engines_are_awake = True
        drawn = draw(**more)
        self._trainer.engines_are_awake = False
        return drawn


class InThisProcess:
    """Looks like an actor of OpenRLHF's, but its object is in this process, which holds the leases."""

    def __init__(self, it: Any) -> None:
        self._it = it

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *given: ray.put(getattr(self._it, name)(*given)))


def bring_under(turns: Turns) -> None:
    """Replaces what OpenRLHF's script imports in the modules where it finds it, as there is no registry for these."""
    make_strategy = openrlhf.utils.get_strategy

    def get_strategy(args: Any) -> Any:
        require_settings(args)
        turns.take("rollout")  # nothing of the job is on a GPU before
        return make_strategy(args)

    def make_trainer(*given: Any, **more: Any) -> InThisProcess:
        return InThisProcess(LeasedTrainer(turns, *given, **more))

    on_a_gpu = ray.remote(num_gpus=1)
    vars(openrlhf.utils).update(get_strategy=get_strategy)
    vars(ppo_trainer).update(PPOTrainer=SimpleNamespace(remote=make_trainer))
    vars(ppo_actor).update(PolicyModelActor=on_a_gpu(Policy))
    vars(ppo_critic).update(CriticModelActor=on_a_gpu(Critic))
    vars(launcher).update(ReferenceModelActor=on_a_gpu(Reference), RewardModelActor=on_a_gpu(Reward))


def require_settings(args: Any) -> None:
    stays = args.ds.zero_stage == 3
    refused = {
        "without --train.colocate_all": not args.train.colocate_all,
        "without --vllm.enable_sleep": not args.vllm.enable_sleep,
        "without --ds.enable_sleep": not args.ds.enable_sleep,
        "with --train.async_enable": args.train.async_enable,
        "with --train.enable_ema": args.train.enable_ema,
        "with --ds.lora.rank": args.ds.lora.rank > 0,
        "with --actor.freeze_visual_encoder": args.actor.freeze_visual_encoder,
        "without --ref.offload at --ds.zero_stage 3": stays and args.algo.kl.init_coef > 0 and not args.ref.offload,
        "without --reward.offload at --ds.zero_stage 3": stays and not (args.reward.remote_url or args.reward.offload),
    }
    for setting, is_so in refused.items():
        if is_so:
            raise ValueError(f"the GPUs can be others' only where OpenRLHF leaves them, and it does not {setting}")


def require_same_nodes(mux: Mux) -> None:
    if mux.rollout_nodes != mux.train_nodes:
        raise ValueError(
            f"this job rolls out on {mux.rollout_nodes} and trains on {mux.train_nodes}, and is colocated: give the "
            "cluster one `shared` pool, and the job as many nodes for each phase"
        )


def main() -> None:
    ours = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    ours.add_argument("--rollmux", type=yaml.safe_load)  # what rollmux.connect(job=...) takes
    given, sys.argv[1:] = ours.parse_known_args()
    own_ray = os.environ.pop("RAY_ADDRESS", "local")  # named here: an engine that heard of "local" would start one more
    vars(ray).update(init=partial(ray.init, address=own_ray))
    with rollmux.connect(job=given.rollmux) as mux, ExitStack() as held:
        require_same_nodes(mux)
        bring_under(Turns(mux, held))
        runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__")


if __name__ == "__main__":
    main()
