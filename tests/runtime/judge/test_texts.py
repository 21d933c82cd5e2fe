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


def test_braces_that_are_written_twice_are_encoded_with_what_is_around_them() -> None:
    said: list[tuple[str, bool]] = []

    def encode(text: str, special: bool) -> list[int]:
        said.append((text, special))
        return [len(text)]

    template = 'Answer {{"score": 1}} to {said} or {{}}'
    assert prompt_tokens(encode, template, {"said": "this"}) == (23, 4, 6)
    assert said == [('Answer {"score": 1} to ', True), ("this", False), (" or {}", True)]
