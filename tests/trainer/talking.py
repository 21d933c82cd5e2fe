"""A tiny model that Hugging Face's libraries load, with a tokenizer of single characters and a chat template."""

from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

END = "<|im_end|>"
BEGIN = "<|im_start|>"
CHARACTERS = "".join(map(chr, range(32, 127))) + "\n"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def talking(
    folder: Path, places: int = 2048, template: str | None = TEMPLATE, without: int = 0, ends: int | list[int] = 1
) -> str:
    """Written there: a model of so many places that lacks the last tokens of its tokenizer, and names these ends."""
    tokens = {token: number for number, token in enumerate([BEGIN, END, *CHARACTERS])}
    plain = Tokenizer(WordLevel(tokens, unk_token=" "))
    plain.pre_tokenizer = Split(Regex(r"[\s\S]"), "isolated")
    plain.decoder = Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, bos_token=BEGIN, eos_token=END, unk_token=" ")
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokens) - without,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=places,
        bos_token_id=0,
        eos_token_id=ends,
        tie_word_embeddings=True,
    )
    logging.disable_progress_bar()
    LlamaForCausalLM(config).save_pretrained(folder)
    return str(folder)
