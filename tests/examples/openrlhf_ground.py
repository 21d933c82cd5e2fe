"""What OpenRLHF itself wants to find, where there is no GPU and nothing is fetched.

It imports vLLM and FlashAttention, which can't be installed there: they are here in name. And a tokenizer for digits.
"""

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def bring(of_vllm: dict[str, Any]) -> None:
    """Before OpenRLHF is imported. Of FlashAttention nothing is called."""
    contents: dict[str, dict[str, Any]] = {
        "vllm": {"__version__": "0.29.0", **of_vllm},
        "vllm.inputs": {"TokensPrompt": dict},
        "vllm.utils": {"random_uuid": lambda: "a request"},
        "flash_attn": {},
        "flash_attn.bert_padding": dict.fromkeys(["index_first_axis", "pad_input", "rearrange", "unpad_input"]),
        "flash_attn.utils": {},
        "flash_attn.utils.distributed": {"all_gather": None},
    }
    for name, content in contents.items():
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(content, __spec__=ModuleSpec(name, None))  # transformers looks for it


def make_tokenizer(folder: Path, digits: int) -> None:
    vocabulary = {str(digit): digit for digit in range(digits)} | {"<end>": digits}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<end>"))
    words.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<end>", eos_token="<end>").save_pretrained(folder)
