"""One attempt at a response, in the events of vLLM or SGLang, with whatever breaks it off."""

from collections.abc import Iterator
from random import getrandbits
from threading import Event
from time import sleep
from typing import Any, Protocol
from uuid import uuid4

from tests.runtime.engine_http.fake_machine import Machine, draw

Json = dict[str, Any]


class Hangup(Exception):
    """The connection ends here, without a word."""


class Line(Protocol):
    """The connection, for those who break it."""

    def gone(self) -> bool: ...

    def half_event(self) -> None: ...

    def reset(self) -> None: ...


class FakeStream:
    """One attempt at a response."""

    def __init__(
        self,
        machine: Machine,
        line: Line,
        body: Json,
        sglang: bool,
        cumulative: bool,
        token_s: float,
        stopping: Event,
        context: int,
    ) -> None:
        self._machine, self._line, self._sglang = machine, line, sglang
        self._cumulative, self._token_s, self._stopping = cumulative, token_s, stopping
        options = body["sampling_params"] if sglang else body
        # Without a name, a seed or tokens to stop at SGLang makes do.
        self.name: str = body.get("rid", uuid4().hex) if sglang else body["request_id"]
        self._prompt = tuple(body["input_ids" if sglang else "prompt"])
        if self._machine.faults.truncates_prompt:
            self._prompt = self._prompt[1:]
        self._most: int = min(options["max_new_tokens" if sglang else "max_tokens"], context - len(self._prompt))
        self._stops = frozenset(options["stop_token_ids"] or ())
        self._seed: int = options.get("sampling_seed", getrandbits(64)) if sglang else options["seed"]
        if not sglang and self._seed == -1:  # none
            self._seed = getrandbits(64)
        self._greedy = options["temperature"] == 0
        self._tokens: list[int] = []
        self._logprobs: list[float] = []

    def events(self) -> Iterator[Json]:
        machine, faults = self._machine, self._machine.faults
        if faults.turns_away > 0:
            faults.turns_away -= 1
            yield from self._never_begun({"type": "abort", "status_code": 503, "message": "The request queue is full."})
            return
        weights = machine.begin(self.name, self._prompt, self._line.gone)
        if weights is None:
            yield from self._never_begun({"type": "abort", "message": "Abort in waiting queue"})
            return
        reason: str | Json | None = None
        while reason is None:
            sleep(self._token_s)
            if not machine.goes_on(self.name) or faults.strikes("aborts", len(self._tokens)):
                yield self._said((), "abort")
                return
            self._break_off()
            if faults.strikes("errors", len(self._tokens)):
                yield {"error": {"message": "EngineCore died"}}
                return
            token, reason = self._next(weights)
            self._tokens.append(token)
            if reason is not None and faults.ends_apart:
                yield self._said((token,), None)
                self._stopping.wait()
                raise Hangup
            if not faults.strikes("drops", len(self._tokens)):
                yield self._said((token,), reason)
        if not self._sglang:
            yield {"choices": [], "usage": self._usage()}

    def _never_begun(self, ended: Json) -> Iterator[Json]:
        """vLLM leaves out what has no tokens, and with it the reason; SGLang has counted nothing."""
        meta: Json = {"id": self.name, "finish_reason": ended, "completion_tokens": 0}
        if self._sglang and self._machine.faults.counts_no_prompt:
            yield {"text": "", "output_ids": [], "meta_info": meta | {"weight_version": self._machine.version}}
        elif self._sglang:
            yield {"text": "", "meta_info": meta | {"prompt_tokens": 0}}
        else:
            yield {"choices": [], "usage": self._usage()}

    def refusal(self, why: str) -> Json:
        """SGLang refuses in place of a first token, which it makes up, as of a prompt of one."""
        reason = {"type": "abort", "message": why, "status_code": 400, "err_type": "BadRequestError"}
        meta = {"id": self.name, "finish_reason": reason, "prompt_tokens": 1, "completion_tokens": 1}
        meta |= {"weight_version": self._machine.version, "output_token_logprobs": [[-1.0, 1, None]]}
        return {"text": "", "output_ids": [1], "meta_info": meta}

    def _next(self, weights: str) -> tuple[int, str | Json | None]:
        faults, place = self._machine.faults, len(self._tokens)
        context = (*self._prompt, *self._tokens)
        # vLLM counts draws from where a request begins, SGLang by the place in the text.
        luck = None if self._greedy else (self._seed, len(context) if self._sglang else place)
        token, logprob = draw(self._machine.draws_with(weights), context, luck)
        self._logprobs.append(logprob)
        if place == faults.not_a_number_at:
            return min(self._stops), {"type": "stop", "matched": "NaN happened"}
        if place == faults.foreign_stop_at or token in self._stops:
            return token, "stop"
        done = place + 1 == min(self._most, faults.short_limit or self._most)
        return token, "length" if done else None

    def _break_off(self) -> None:
        faults, place = self._machine.faults, len(self._tokens)
        if faults.strikes("resets", place):
            if faults.forgets:
                self._machine.restart()
            self._line.reset()
        if faults.strikes("truncations", place):
            self._line.half_event()
        if faults.strikes("stalls", place):
            self._stopping.wait()
            raise Hangup

    def _said(self, fresh: tuple[int, ...], reason: str | Json | None) -> Json:
        return self._sglang_event(fresh, reason) if self._sglang else self._vllm_event(fresh, reason)

    def _chances(self, count: int) -> list[float | None]:
        kind = self._machine.faults.logprobs
        if kind == "none" or not count:
            return []
        if kind:
            return [None if kind == "null" else float("nan")] * count
        return list(self._logprobs[-count:])

    def _usage(self) -> Json:
        total = len(self._tokens) + self._machine.faults.miscount
        return {"prompt_tokens": len(self._prompt), "completion_tokens": total, "total_tokens": 0}

    def _vllm_event(self, fresh: tuple[int, ...], reason: str | Json | None) -> Json:
        choice: Json = {"index": 0, "text": "\u2028\u0085", "token_ids": list(fresh), "finish_reason": reason}
        if self._machine.faults.logprobs != "none":
            choice["logprobs"] = {"token_logprobs": self._chances(len(fresh))}
        return {"id": f"cmpl-{self.name}", "choices": [choice], "usage": self._usage()}

    def _sglang_event(self, fresh: tuple[int, ...], reason: str | Json | None) -> Json:
        given = self._tokens if self._cumulative else list(fresh)
        chances = self._chances(len(given))
        other = self._machine.faults.other_version_at
        mixed = other is not None and len(self._tokens) > other
        if isinstance(reason, str):
            reason = {"type": reason} | ({"matched": self._tokens[-1]} if reason == "stop" else {})
        meta: Json = {
            "id": self.name,
            "finish_reason": reason,
            "prompt_tokens": len(self._prompt),
            "completion_tokens": self._usage()["completion_tokens"],
            "weight_version": "other" if mixed else self._machine.version,
        }
        if chances:
            meta["output_token_logprobs"] = [[c, t, None] for c, t in zip(chances, given, strict=True)]
        return {"text": "\u2028\u0085", "output_ids": given, "meta_info": meta}
