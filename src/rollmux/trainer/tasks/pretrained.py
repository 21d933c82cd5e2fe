"""The tokenizer of a pretrained model, with the chat template in which the model was taught to talk.

Invariants: the model's own chat template writes prompts, so no task knows which tokens begin or end a turn. A prompt is
the same on each day that it is written, and replies are written with the same values as prompts.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from rollmux.plain import plain
from rollmux.runtime.rewards import Message, Told
from rollmux.trainer.errors import ModelMissing, NotTaught
from rollmux.trainer.tasks.hiding import hidden, parted
from rollmux.trainer.tasks.template import CLOCK, require_known

# Some templates tell the model what day it is, and a run may take several days. This is the day that Llama 3.2's
# templates tell if there is no clock.
DAY = datetime(2024, 7, 26)
# A dialogue for the template, to see how it ends an answer; the template may write anything before it.
ASKED, ANSWERED = "How many?", "Seven, as far as I know."
_PLAIN: list[Message] = [{"role": "user", "content": ASKED}, {"role": "assistant", "content": ANSWERED}]
_FIELDS = "".join(f" | replace('%{code}', '{DAY.strftime('%' + code)}')" for code in "aAbBdHIjmMpSyY")
_STOPPED = f"{{% macro {CLOCK}(format) %}}{{{{ format | replace('%-', '%'){_FIELDS} }}}}{{% endmacro %}}\n"


class Pretrained:
    """The tokenizer in this folder, with values that its chat template asks for by name, such as `enable_thinking`."""

    def __init__(self, folder: str, values: Mapping[str, Any] | None = None) -> None:
        from rollmux.runtime.folders import (  # noqa: PLC0415 - takes seconds
            NotLoaded,
            tokenizer_in,
        )

        place = model_folder(folder)
        try:
            self._tokenizer = tokenizer_in(place)
        except NotLoaded as error:
            raise ModelMissing(f"the tokenizer in {folder!r} can't be loaded ({error})") from error
        self._values = dict(values or {})
        if self._values:
            self._require_known()
        own = self._tokenizer.added_tokens_decoder
        self._special = [token.content for token in own.values() if token.special]
        self._others = [token.content for token in own.values() if not token.special]
        self._are_written = set[tuple[tuple[str, ...], ...]]()  # roles and keys of messages that the template writes
        ends = [self._tokenizer.eos_token_id, *(token for token in _named_ends(place) if token in own)]
        self.end_tokens = tuple(dict.fromkeys(int(token) for token in ends if token is not None))
        if not self.end_tokens:
            remedy = "name its eos_token in tokenizer_config.json, or take another"
            raise NotTaught(
                f"the model in {folder!r} has no end token, and no response would come to its end: {remedy}"
            )
        self.vocabulary = len(self._tokenizer)
        # A chat template writes the token that begins a text; without one the tokenizer does, if it has such a token.
        first = () if self._tokenizer.chat_template is not None else tuple(self._tokenizer("")["input_ids"][:1])
        self._begin = first if first == (self._tokenizer.bos_token_id,) else ()
        self.ends = tuple(self.decode((token,)) for token in self.end_tokens)

    def _require_known(self) -> None:
        try:
            template = self._template() if self._tokenizer.chat_template is not None else None
        except ValueError:  # several templates, none of which is the default: `talk` says so
            return
        require_known(self._values, template, self._tokenizer.special_tokens_map)

    @property
    def other_end(self) -> str | None:
        """The token with which the chat template ends an answer, if that token ends no response."""
        first = self._behind_answers
        is_end = all(token in self._tokenizer.added_tokens_decoder for token in first)
        return self.decode(first) if is_end and not set(first) <= set(self.end_tokens) else None

    @cached_property
    def _behind_answers(self) -> tuple[int, ...]:
        """The token that the chat template writes behind the last answer of a dialogue; empty if it writes none."""
        try:
            said = self._written(_PLAIN, asks=False)
        except Exception:  # noqa: BLE001 - a model may have no template, or one that knows no answers; `talk` tells more
            return ()
        _, known, behind = said.rpartition(ANSWERED)
        return self.encode(behind.lstrip())[:1] if known else ()

    @cached_property
    def _turn_ends(self) -> frozenset[int]:
        """The end tokens that the chat template writes behind an answer, and those that it writes in place of these.

        Llama 3.1's ends a call of a tool with `<|eom_id|>`: this is in the template, but in no plain dialogue.
        """
        own = self._behind_answers
        if not own or not set(own) <= set(self.end_tokens):
            return frozenset()
        template, plain = self._template(), self._asking([*_PLAIN, _PLAIN[0]])
        names = zip(self.end_tokens, self.ends, strict=True)
        return frozenset((*own, *(token for token, name in names if name in template and name not in plain)))

    def encode(self, text: str) -> tuple[int, ...]:
        tokens = self._tokens(text)
        return tokens if tokens[: len(self._begin)] == self._begin else self._begin + tokens

    def decode(self, tokens: tuple[int, ...]) -> str:
        return str(self._tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False))

    def told(self, told: Told, last: int) -> tuple[int, ...]:
        """The tokens of a reply, as the chat template writes it (a text is the user's), without the end of the turn
        before, if `last` was this end or one in its place. Some templates write a blank before that end, as Llama 2's.

        Text that looks like a special token becomes no special token: else a tool could end its turn and speak on.
        """
        first, *others = self._pieces(told)
        ended = self._tokens(first.lstrip())
        ends = {last, *ended[:1]}
        is_ended = bool(ended) and (len(ends) == 1 or ends <= self._turn_ends)
        begun = ended[1:] if is_ended else self._tokens(first)
        behind = (self._tokens(each) if place % 2 else self._spelled(each) for place, each in enumerate(others))
        return (*begun, *chain.from_iterable(behind))

    def _spelled(self, token: str) -> tuple[int, ...]:
        """The tokens of its characters. A tokenizer splits only special tokens; others are cut in two first."""
        parts = [token] if token in self._special else [token[:1], token[1:]]
        return tuple(chain.from_iterable(self._tokens(part, split_special_tokens=True) for part in parts))

    def _tokens(self, text: str, **how: bool) -> tuple[int, ...]:
        return tuple(self._tokenizer(text, add_special_tokens=False, **how)["input_ids"])

    def _pieces(self, told: Told) -> list[str]:
        """The text that the template writes, in pieces; at odd places are texts that look like special tokens."""
        if self._tokenizer.chat_template is None:
            if not isinstance(told, str):
                raise NotTaught("the model has no chat template for messages: reply with a text, or take another model")
            return [told]
        messages = [{"role": "user", "content": told}] if isinstance(told, str) else told
        self._require_written(messages)
        known = self._special if isinstance(told, str) else [*self._special, *self._of_template()]
        safe, mark = hidden(messages, known)
        return parted(self._between(safe), mark, known)

    def _of_template(self) -> list[str]:
        """Tokens that the template writes around messages, such as `</tool_response>`. Not blanks: they part words."""
        template = self._template()
        return [token for token in self._others if len(token.strip()) > 1 and token in template]

    def _require_written(self, messages: Sequence[Message]) -> None:
        """Raises NotTaught if the template leaves a message out, as it may do with a role that it does not know."""
        form = tuple((message["role"], *sorted(message)) for message in messages)
        if form in self._are_written:
            return
        asked = [{**message, "content": f"{ASKED} {number}"} for number, message in enumerate(messages)]
        written = self._between(asked).casefold()
        for message in asked:
            if message["content"].casefold() not in written:
                remedy = "reply with a text, which is the user's, or take another model"
                told = f"the model's chat template writes nothing of what a {message['role']} says"
                raise NotTaught(f"{told}: {remedy}")
        self._are_written.add(form)

    def save(self, folder: Path) -> None:
        """Saves the tokenizer to the folder of a model, which is then complete."""
        try:
            self._tokenizer.save_pretrained(folder)
        except Exception as error:
            if type(error) is Exception:  # the `tokenizers` library's form of an OSError
                raise OSError(str(error)) from error
            raise

    def _between(self, messages: Sequence[Message]) -> str:
        """The text that the template writes between two answers if these messages are between them. The conversation is
        as short as can be: earlier turns make no difference.
        """
        _, known, between = self._asking([*_PLAIN, *messages]).partition(ANSWERED)
        if not known:
            raise NotTaught(
                "the model's chat template does not write what was answered: ask for one turn, or take another model"
            )
        return between

    def talk(self, said: Sequence[tuple[str, str]]) -> str:
        """The prompt for a conversation of roles and what they say, up to where the model's turn begins.

        Without a chat template a single text stands as it is, and a longer conversation is refused.
        """
        if self._tokenizer.chat_template is None:
            if len(said) > 1:
                raise NotTaught("the model has no chat template: ask it without system text or turns, or take another")
            return said[0][1]
        return self._asking([{"role": role, "content": text} for role, text in said])

    def _asking(self, turns: Sequence[Message]) -> str:
        try:
            return self._written(turns, asks=True)
        except Exception as error:  # a template is a program, and may raise anything
            roles = ", ".join(turn["role"] for turn in turns)
            told = plain(f"{type(error).__name__}: {error}")
            remedy = "ask in other turns, or take another model"
            raise NotTaught(f"the model's chat template refuses turns of {roles}: {told}; {remedy}") from error

    def _written(self, turns: Sequence[Message], asks: bool) -> str:
        template = self._template()
        if CLOCK in template:
            template = _STOPPED + template
        how = {"chat_template": template, "tokenize": False, "add_generation_prompt": asks}
        return str(self._tokenizer.apply_chat_template(turns, **how, **self._values))

    def _template(self) -> str:
        """The chat template; a model may have another one for tools."""
        return str(self._tokenizer.get_chat_template(tools=self._values.get("tools")))


def _named_ends(place: Path) -> list[int]:
    """The tokens that end a response by the model's configuration: a turn may end with another token than a text.

    A configuration that nobody has filled in may name any token, so the caller takes only those that stand for no text.
    """
    for path in (place / "generation_config.json", place / "config.json"):
        if path.is_file():
            try:
                named = json.loads(path.read_bytes()).get("eos_token_id")
            except ValueError as error:
                raise ModelMissing(f"{path} can't be read ({error}): fetch the model again") from error
            if named is not None:
                return named if isinstance(named, list) else [named]
    return []


def without_end(response: str, ends: Sequence[str]) -> str:
    """The response without its end token; unchanged if it was cut off before it had one."""
    return next((response.removesuffix(end) for end in ends if response.endswith(end)), response)


def model_folder(path: str) -> Path:
    """The folder of a model, which must be there: nothing is downloaded in its place."""
    folder = Path(path)
    if not (folder / "config.json").is_file():
        remedy = "give model.path the folder of a model, as `rollmux model fetch` makes one"
        raise ModelMissing(f"there is no model in {path!r}: {remedy}")
    return folder
