"""What the scripts here train: a small Llama with a tokenizer and rows of its own. Each seed makes a new one.

A row is a digit, and the response to it should go on counting. At first the lengths of responses are almost random, so
some are many times as long as most.
"""

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

COUNTED, DIGITS = 2, 10  # how many digits of a response are rewarded, and how many digits there are
ROWS = Dataset.from_dict({"prompt": [str(digit) for digit in range(DIGITS)] * 8})


def new_model() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=DIGITS + 1, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, bos_token_id=None, eos_token_id=DIGITS, pad_token_id=DIGITS,
        initializer_range=0.1,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def new_tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {str(digit): digit for digit in range(DIGITS)} | {"<end>": DIGITS}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<end>"))
    words.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<end>", eos_token="<end>")


def counts_on(prompts: list[str], completion_ids: list[list[int]], **_: object) -> list[float]:
    """The share of right digits where each is one more than the one before."""
    right = [[(int(prompt) + place) % DIGITS for place in range(1, COUNTED + 1)] for prompt in prompts]
    return [sum(map(int.__eq__, *pair)) / COUNTED for pair in zip(completion_ids, right, strict=True)]
