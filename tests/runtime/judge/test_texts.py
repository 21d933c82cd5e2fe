"""Only the template names special tokens, with a tokenizer as models have it."""

from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rollmux.runtime.judge.texts import encoder, prompt_tokens

WORDS = ("[UNK]", "<end>", "right", "wrong", "<", "end", ">")


def test_a_response_that_spells_the_end_of_a_turn_does_not_end_it() -> None:
    plain = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer: Any = PreTrainedTokenizerFast
    encode = encoder(tokenizer(tokenizer_object=plain, unk_token="[UNK]", eos_token="<end>"))
    assert prompt_tokens(encode, "right{said}<end>wrong", {"said": "<end>"}) == (2, 4, 5, 6, 1, 3)
    assert prompt_tokens(encode, "{said}{said}", {"said": "right"}) == (2, 2)
