"""The model that is trained: a small Llama from scratch, or one of Hugging Face's from a folder."""

from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.utils import GENERATION_CONFIG_NAME, logging

from rollmux.runtime.folders import NotLoaded, model_in
from rollmux.trainer.errors import ModelMissing, NotShared
from rollmux.trainer.seeds import derived
from rollmux.trainer.settings import Model
from rollmux.trainer.tasks.pretrained import model_folder


def build_model(settings: Model, vocabulary: int, max_length: int, seed: int) -> Any:
    """Builds or loads the model. It never uses dropout: so training finds the log-probabilities of the rollout."""
    model = _loaded(settings) if settings.path else _from_scratch(settings, vocabulary, max_length, seed)
    if settings.dtype != "default":
        model = model.to(getattr(torch, settings.dtype))
    return model.eval()


def _loaded(settings: Model) -> Any:
    logging.disable_progress_bar()
    try:
        return model_in(model_folder(settings.path))
    except NotLoaded as error:
        remedy = "give model.path a whole one, as `rollmux model fetch` makes one"
        raise ModelMissing(f"the model in {settings.path!r} can't be loaded ({error}): {remedy}") from error


def _from_scratch(settings: Model, vocabulary: int, max_length: int, seed: int) -> Any:
    torch.manual_seed(derived(seed, "weights"))
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=settings.hidden,
        intermediate_size=settings.hidden * 8 // 3,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads,
        max_position_embeddings=max_length,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    return LlamaForCausalLM(config)


def share(model: Any) -> None:
    """Puts the weights into memory that this process shares with others on the machine."""
    try:
        model.share_memory()
    except RuntimeError as error:  # torch's error for one of the system's
        remedy = "make /dev/shm larger (a container's by --shm-size; too many files: ulimit -n)"
        instead = "or leave out update.replicas and rollout.place"
        raise NotShared(f"the weights can't be put in shared memory ({error}): {remedy}, {instead}") from error


def export_model(model: Any, folder: Path) -> None:
    """Writes a folder that Hugging Face's libraries load, with the model's generation settings as they were read."""
    logging.disable_progress_bar()
    said, model.generation_config = model.generation_config, GenerationConfig()  # saving refuses what loading takes
    try:
        model.save_pretrained(folder)
    finally:
        model.generation_config = said
    said.to_json_file(folder / GENERATION_CONFIG_NAME, keys_to_pop=["compile_config"])
