"""How a vLLM server is spoken to: `/v1/completions` with token ids, and the routes of `VLLM_SERVER_DEV_MODE=1`.

Start it with `--enable-sleep-mode --generation-config vllm` and, if it was set otherwise, `--logprobs-mode
raw_logprobs`; without a KV connector, which would keep keys and values of old weights. Sources
and versions: docs/design/engine_http.md.
"""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from rollmux.checks import Checks
from rollmux.runtime.engine.http import reading
from rollmux.runtime.engine.http.calls import Attempt, Call, Over, Piece, Reply
from rollmux.runtime.engine.http.dialect import VERSION_ROUTE, Dialect
from rollmux.runtime.engine.http.metrics import Metrics
from rollmux.runtime.engine.requests import GenerationRequest
from rollmux.runtime.engine.seam import Gauges

COLDEST = 0.01  # the server draws at this temperature if asked for less, except 0


@dataclass(frozen=True, slots=True)
class Vllm(Dialect):
    """See `Dialect`. Without `model`, the server takes its own."""

    model: str | None = None
    tells_version_with_tokens = False
    spare = 0

    def check(self, request: GenerationRequest) -> None:
        """Any other temperature is fine: log-probabilities are the model's own at each."""
        if 0 < request.temperature < COLDEST:
            limit = f"0, or at least {COLDEST}, to be drawn at"
            raise Checks("request").refusal("temperature", request.temperature, limit, "ask for 0, which is greedy")

    def generate(self, attempt: Attempt) -> Call:
        request = attempt.request
        body: dict[str, Any] = {
            "prompt": list(attempt.prompt),
            "max_tokens": attempt.max_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "seed": signed_seed(request.seed, len(attempt.tokens)),
            "stop_token_ids": list(request.stop_tokens),
            "ignore_eos": True,  # nothing but the request's own stop tokens ends it
            "logprobs": 1,
            "return_token_ids": True,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "request_id": attempt.name,
            "add_special_tokens": False,
            # The server fills settings that are left out in from the model's own generation config.
            "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
        }  # fmt: skip
        return Call("POST", "/v1/completions", body | ({"model": self.model} if self.model else {}))

    def _read(self, event: dict[str, Any]) -> Piece:
        usage = event.get("usage") or {}
        total = reading.count("completion_tokens", usage["completion_tokens"]) if usage else None
        prompt = reading.count("prompt_tokens", usage["prompt_tokens"]) if usage else None
        if not event.get("choices"):
            return Piece(total=total, prompt_tokens=prompt)
        choice = event["choices"][0]
        chances = (choice.get("logprobs") or {}).get("token_logprobs") or []
        return Piece(
            tokens=reading.tokens("token_ids", choice.get("token_ids") or []),
            logprobs=reading.logprobs("token_logprobs", chances),
            total=total,
            prompt_tokens=prompt,
            over=reading.over(choice.get("finish_reason")),
            why="" if reading.over(choice.get("finish_reason")) is not Over.ERROR else f"{choice['finish_reason']!r}",
        )

    def abort(self, name: str) -> Call:
        """If the server doesn't know this route, the closed connection aborts the request."""
        return Call("POST", "/abort_requests", {"request_ids": [f"cmpl-{name}-0"]}, optional=True)

    def pause(self) -> Call:
        return Call("POST", "/pause", query={"mode": "abort"})

    def freeze(self) -> Call:
        return Call("POST", "/pause", query={"mode": "keep"})

    def proceed(self) -> Call:
        return Call("POST", "/resume")

    def require_sleeper(self, reply: Reply) -> None:
        """Refuses none: without `--enable-sleep-mode` it has no sleep, and at level 1 the host keeps its weights."""

    def sleep(self) -> Call:
        return Call("POST", "/sleep", query={"level": "1"})

    def wake(self, tag: str) -> Call:
        return Call("POST", "/wake_up", query={"tags": tag})

    def invalidate(self) -> Call:
        return Call("POST", "/reset_prefix_cache")

    def _from_disk(self, path: str, version: int) -> tuple[Call, ...]:
        return _reload({"weights_path": path}), self.announce(version)

    def _transferred(self, info: dict[str, Any], version: int) -> tuple[Call, ...]:
        return (
            Call("POST", "/start_weight_update", {}),
            Call("POST", "/update_weights", {"update_info": info}),
            Call("POST", "/finish_weight_update", {"weight_version": str(version)}),
            self.announce(version),  # older servers don't take the version from the call before
        )

    def _undo_from_disk(self) -> tuple[Call, ...]:
        return (_reload({"weights_iterator": []}),)  # else what was loaded of a layer counts, and it is full too early

    def _undo_transferred(self) -> tuple[Call, ...]:
        """After a failure some have forgotten that an update was started, but not what they loaded of its layers."""
        return (
            Call("POST", "/start_weight_update", {}, vain=True),
            Call("POST", "/finish_weight_update", {}, vain=True),
            *self._undo_from_disk(),
        )

    def announce(self, version: int) -> Call:
        return Call("POST", VERSION_ROUTE, {"new_version": str(version)}, optional=True)

    def version(self) -> Call:
        return Call("GET", "/weight_info", optional=True)

    def folder(self) -> Call:
        return Call("GET", "/v1/models", optional=True)

    def read_folder(self, reply: Reply) -> str:
        cards = reading.thing(reply.content)["data"]
        return next(str(card["root"]) for card in cards if not card.get("parent"))  # the others are adapters

    def read_gauges(self, reply: Reply) -> Gauges:
        found = Metrics(reply.content.decode())
        room = found.label_product("vllm:cache_config_info", "num_gpu_blocks", "block_size")
        return Gauges(
            running=found.sum("vllm:num_requests_running"),
            waiting=found.sum("vllm:num_requests_waiting"),
            room_tokens=room,
            held_tokens=round(room * found.share("vllm:kv_cache_usage_perc")),
            nbytes=0,
            generated_tokens=found.sum("vllm:generation_tokens_total"),
            prefilled_tokens=found.sum("vllm:prompt_tokens_total"),
            recomputed_tokens=0,
            preemptions=found.sum("vllm:num_preemptions_total"),
            ended=found.sum("vllm:request_success_total"),
        )


def _reload(weights: dict[str, Any]) -> Call:
    return Call("POST", "/collective_rpc", {"method": "reload_weights", "kwargs": weights})


def signed_seed(seed: int, place: int) -> int:
    """A seed of 64 bits as vLLM wants it, with a sign.

    vLLM counts a request's draws from where it begins, so a response that is continued with the same seed would
    meet its first draws again. So each continuation gets a seed of its own.
    """
    if place:
        digest = blake2b(seed.to_bytes(8, "big") + place.to_bytes(8, "big"), digest_size=8).digest()
        seed = int.from_bytes(digest, "big")
    seed = min(seed, 2**64 - 2)  # the last seed would be -1, which means none
    return seed - 2**64 if seed >= 2**63 else seed
