"""The tokenizer of a pretrained model, with the form in which it was taught to talk.

Invariants: prompts are written by the model's own chat template, so no task knows which tokens begin or end a turn;
they are the same whenever they are written, and replies are written with the same values as prompts.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rollmux.trainer.errors import ModelMissing, NotTaught
from rollmux.trainer.tasks.template import CLOCK, require_known

# Some templates tell the model what day it is, and a run may take several. This is the day that those of Llama 3.2 tell
# where there is no clock.
DAY = datetime(2024, 7, 26)
# What a template is given, to see how it ends an answer; it may write all sorts of things before.
ASKED, ANSWERED = "How many?", "Seven, as far as I know."
_FIELDS = "".join(f" | replace('%{code}', '{DAY.strftime('%' + code)}')" for code in "aAbBdHIjmMpSyY")
_STOPPED = f"{{% macro {CLOCK}(format) %}}{{{{ format | replace('%-', '%'){_FIELDS} }}}}{{% endmacro %}}\n"


class Pretrained:
    """Of the model in this folder, with values that its chat template asks for by name, such as `enable_thinking`."""

    def __init__(self, folder: str, values: Mapping[str, Any] | None = None) -> None:
        from rollmux.runtime.folders import (  # noqa: PLC0415 - seconds; scoring functions are loaded without it
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
        ends = [self._tokenizer.eos_token_id, *(token for token in _named_ends(place) if token in own)]
        self.end_tokens = tuple(dict.fromkeys(int(token) for token in ends if token is not None))
        if not self.end_tokens:
            remedy = "name its eos_token in tokenizer_config.json, or take another"
            raise NotTaught(
                f"the model in {folder!r} has no end token, and no response would come to its end: {remedy}"
            )
        self.vocabulary = len(self._tokenizer)
        # A chat template writes what begins a text; where there is none, the tokenizer does, if it would.
        first = () if self._tokenizer.chat_template is not None else tuple(self._tokenizer("")["input_ids"][:1])
        self._begin = first if first == (self._tokenizer.bos_token_id,) else ()
        self.ends = tuple(self.decode((token,)) for token in self.end_tokens)

    def _require_known(self) -> None:
        try:
            template = self._template() if self._tokenizer.chat_template is not None else None
        except ValueError:  # of several templates it knows none: `talk` says so
            return
        require_known(self._values, template, self._tokenizer.special_tokens_map)

    @property
    def other_end(self) -> str | None:
        """What the chat template ends an answer with, if that is a token that ends no response."""
        if self._tokenizer.chat_template is None:
            return None
        turns = [{"role": "user", "content": ASKED}, {"role": "assistant", "content": ANSWERED}]
        try:
            said = self._written(turns, asks=False)
        except Exception:  # noqa: BLE001 - a template may know no answers; what it says of prompts is told by `talk`
            return None
        _, known, behind = said.rpartition(ANSWERED)
        first = self.encode(behind.lstrip())[:1] if known else ()
        is_end = all(token in self._tokenizer.added_tokens_decoder for token in first)
        return self.decode(first) if is_end and not set(first) <= set(self.end_tokens) else None

    def encode(self, text: str) -> tuple[int, ...]:
        tokens = self._tokens(text)
        return tokens if tokens[: len(self._begin)] == self._begin else self._begin + tokens

    def decode(self, tokens: tuple[int, ...]) -> str:
        return str(self._tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False))

    def told(self, text: str, last: int) -> tuple[int, ...]:
        """As the chat template writes it, but for the end of the turn before, where that was drawn; some
        write a blank before it, as Llama 2's does.

        What is written like a special token there is none: a tool's words would end the turn, and say the next ones.
        """
        before, said, behind = self._pieces(text)
        ended = self._tokens(before.lstrip())
        begun = ended[1:] if ended[:1] == (last,) else self._tokens(before)
        return (*begun, *self._tokens(said, split_special_tokens=True), *self._tokens(behind))

    def _tokens(self, text: str, **how: bool) -> tuple[int, ...]:
        return tuple(self._tokenizer(text, add_special_tokens=False, **how)["input_ids"])

    def _pieces(self, text: str) -> tuple[str, str, str]:
        """What the template writes, what is said where that could be taken for it, and the template again."""
        if self._tokenizer.chat_template is not None and any(each in text for each in self._special):
            before, known, behind = self._between(ASKED).partition(ASKED)
            if known:
                return before, text, behind
        return self._between(text), "", ""

    def save(self, folder: Path) -> None:
        """Beside a model, which it then is whole with."""
        try:
            self._tokenizer.save_pretrained(folder)
        except Exception as error:
            if type(error) is Exception:  # what tokenizers makes of an OSError
                raise OSError(str(error)) from error
            raise

    def _between(self, text: str) -> str:
        """What stands between two answers where the user says this: of a conversation as short as can be, for what was
        said before is no matter.
        """
        if self._tokenizer.chat_template is None:
            return text
        written = self.talk([("user", ASKED), ("assistant", ANSWERED), ("user", text)])
        _, known, between = written.partition(ANSWERED)
        if not known:
            raise NotTaught(
                "the model's chat template does not write what was answered: ask for one turn, or take another model"
            )
        return between

    def talk(self, said: Sequence[tuple[str, str]]) -> str:
        """A conversation of roles and what they say, up to where the next turn begins.

        Where the model knows none, what is said stands as it is; a whole conversation has no form then.
        """
        if self._tokenizer.chat_template is None:
            if len(said) > 1:
                raise NotTaught("the model has no chat template: ask it without system text or turns, or take another")
            return said[0][1]
        turns = [{"role": role, "content": text} for role, text in said]
        try:
            return self._written(turns, asks=True)
        except Exception as error:  # a template is a program, and may raise anything
            roles = ", ".join(role for role, _ in said)
            told = f"{type(error).__name__}: {error}"
            remedy = "ask in other turns, or take another model"
            raise NotTaught(f"the model's chat template refuses turns of {roles}: {told}; {remedy}") from error

    def _written(self, turns: Sequence[Mapping[str, str]], asks: bool) -> str:
        template = self._template()
        if CLOCK in template:
            template = _STOPPED + template
        how = {"chat_template": template, "tokenize": False, "add_generation_prompt": asks}
        return str(self._tokenizer.apply_chat_template(turns, **how, **self._values))

    def _template(self) -> str:
        """A model may have one of its own for tools."""
        return str(self._tokenizer.get_chat_template(tools=self._values.get("tools")))


def _named_ends(place: Path) -> list[int]:
    """What ends a response by the model's own word: a turn may end otherwise than a text.

    A configuration that nobody has filled in names any token, and so only those are ends that stand for no text.
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
    """What it says; the same where it was cut off before it came to an end."""
    return next((response.removesuffix(end) for end in ends if response.endswith(end)), response)


def model_folder(path: str) -> Path:
    """It is never looked for anywhere else: nothing is downloaded by the way."""
    folder = Path(path)
    if not (folder / "config.json").is_file():
        remedy = "give model.path the folder of a model, as `rollmux model fetch` makes one"
        raise ModelMissing(f"there is no model in {path!r}: {remedy}")
    return folder
