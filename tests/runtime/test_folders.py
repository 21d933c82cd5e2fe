"""A model from a folder has the folder's weights, all of them, or is refused."""

import json
import re
import socket
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from rollmux.runtime.folders import NotLoaded, model_in, tokenizer_in
from rollmux.runtime.judge.opening import JudgeRefused, open_judge

WEIGHTS = "model.safetensors"


def written(folder: Path, tied: bool = True) -> dict[str, Tensor]:
    """A model's folder, and the weights that it holds."""
    config = LlamaConfig(
        vocab_size=11,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=tied,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return load_file(folder / WEIGHTS)


def rewritten(folder: Path, weights: dict[str, Tensor]) -> None:
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


def require_refused(folder: Path, why: str) -> None:
    """As a judge too."""
    with pytest.raises(NotLoaded, match=why):
        model_in(folder)
    with pytest.raises(JudgeRefused, match=why):
        open_judge(folder)


@pytest.mark.parametrize("tied", [True, False])
def test_a_whole_model_has_the_weights_of_its_folder(tied: bool, tmp_path: Path) -> None:
    weights = written(tmp_path, tied)
    assert ("lm_head.weight" in weights) != tied
    expected = {"lm_head.weight": weights["model.embed_tokens.weight"], **weights}
    found = model_in(tmp_path).state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


def test_weights_that_are_not_there_are_named(tmp_path: Path) -> None:
    weights = written(tmp_path)
    rewritten(tmp_path, {f"_orig_mod.{name}": weight for name, weight in weights.items()})
    require_refused(tmp_path, re.escape("12, lm_head.weight, model.embed_tokens.weight, "))


def test_a_head_that_is_not_there_is_missing_where_it_is_not_tied(tmp_path: Path) -> None:
    weights = written(tmp_path, tied=False)
    del weights["lm_head.weight"]
    rewritten(tmp_path, weights)
    require_refused(tmp_path, r"1, lm_head\.weight")


def test_weights_of_another_shape_are_named(tmp_path: Path) -> None:
    written(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "vocab_size": 12}))
    require_refused(tmp_path, r"1, model\.embed_tokens\.weight")


def test_what_can_not_be_read_is_told_in_a_line(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / WEIGHTS).write_bytes((tmp_path / WEIGHTS).read_bytes()[:-8])
    require_refused(tmp_path, "SafetensorError: [^\n]*not fully covered")


def test_a_folder_that_is_not_there_is_looked_for_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def called(*hosts: object, **how: object) -> None:
        pytest.fail("it asks the network")

    monkeypatch.setattr(socket, "getaddrinfo", called)
    require_refused(Path("judges/mine"), "there is no folder 'judges/mine'")


def test_a_folder_without_a_vocabulary_has_no_tokenizer(tmp_path: Path) -> None:
    written(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Qwen2Tokenizer"}))
    for load in (tokenizer_in, open_judge):
        with pytest.raises((NotLoaded, JudgeRefused), match="it has no tokenizer: none of tokenizer"):
            load(tmp_path)


def test_the_first_line_that_says_something_is_told_and_a_full_memory_is_no_bad_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(error: Exception) -> None:
        def load(*arguments: object, **how: object) -> None:
            raise error

        monkeypatch.setattr(AutoTokenizer, "from_pretrained", load)

    (tmp_path / "tokenizer.json").touch()
    fail(ImportError("\n \nIt wants sentencepiece.\nInstall it."))
    with pytest.raises(NotLoaded, match=r"^ImportError: It wants sentencepiece\.$"):
        tokenizer_in(tmp_path)
    fail(MemoryError())
    with pytest.raises(MemoryError):
        tokenizer_in(tmp_path)
