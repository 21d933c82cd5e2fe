"""How an SGLang server is spoken to: its native `/generate` with token ids.

Start it with `--enable-memory-saver --enable-weights-cpu-backup` if it is to sleep; with
`--enable-deterministic-inference` if seeds are to count; with `SGLANG_RETURN_ORIGINAL_LOGPROB=1` for other temperatures
than 0 and 1; with `--watchdog-timeout` above the longest freeze (`suspend(keep=True)`), which it may take for a hang;
without `--hicache-storage-backend`, which would keep keys and values of old weights.
Sources: docs/design/engine_http.md.
"""

from dataclasses import dataclass
from typing import Any

from rollmux.checks import Checks
from rollmux.runtime.engine.http import reading
from rollmux.runtime.engine.http.calls import Attempt, Call, Over, Piece, Reply
from rollmux.runtime.engine.http.dialect import CACHE, VERSION_ROUTE, WEIGHTS, Dialect
from rollmux.runtime.engine.http.errors import ServerMismatch
from rollmux.runtime.engine.http.metrics import Metrics
from rollmux.runtime.engine.requests import GenerationRequest
from rollmux.runtime.engine.seam import Gauges

# Without the first a sleep frees nothing, and without the second weights wake with anything in them.
_SLEEPER = ("enable_memory_saver", "enable_weights_cpu_backup")


@dataclass(frozen=True, slots=True)
class Sglang(Dialect):
    """See `Dialect`. `raw_logprobs`: the server gives log-probabilities from before temperature and top-p."""

    raw_logprobs: bool = False
    tells_version_with_tokens = True
    spare = 6  # it draws up to 2 tokens below its limit, but refuses prompts, begun anew too, from 6 below on

    def check(self, request: GenerationRequest) -> None:
        checks = Checks("request")
        remedy = "start the server with SGLANG_RETURN_ORIGINAL_LOGPROB=1 and say `raw_logprobs`"
        if not self.raw_logprobs and request.temperature not in (0.0, 1.0):
            checks.report("temperature", request.temperature, "0 or 1 for log-probabilities of the model", remedy)
        if not self.raw_logprobs and request.top_p != 1.0 and request.temperature:
            checks.report("top_p", request.top_p, "1 for log-probabilities of the model", remedy)
        checks.require()

    def generate(self, attempt: Attempt) -> Call:
        request = attempt.request
        sampling = {
            "max_new_tokens": attempt.max_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
            "stop_token_ids": list(request.stop_tokens),
            "ignore_eos": not request.stop_tokens,  # if true it ignores the request's stop tokens too
            "sampling_seed": request.seed % 2**63,  # draws depend on seed and place: the same when continued
            "skip_special_tokens": False,
        }  # fmt: skip
        body = {"rid": attempt.name, "input_ids": list(attempt.prompt), "sampling_params": sampling}
        return Call("POST", "/generate", body | {"stream": True, "return_logprob": True, "logprob_start_len": -1})

    def _read(self, event: dict[str, Any]) -> Piece:
        meta = event["meta_info"]
        ids = reading.tokens("output_ids", event.get("output_ids") or [])
        pairs = meta.get("output_token_logprobs") or []
        told = reading.tokens("output_token_logprobs", [pair[1] for pair in pairs])
        common = min(len(ids), len(told))
        if common and ids[-common:] != told[-common:]:
            raise ValueError(f"output_ids {ids[-common:]!r:.120} are not those of the log-probabilities")
        reason = meta.get("finish_reason")
        over, why = _over(reason)
        if over is Over.ABORT and isinstance(reason, dict) and reason.get("status_code") == 400:
            return reading.error(why)  # it was refused: the counts with it are not this request's
        if over is Over.ABORT and "prompt_tokens" not in meta:
            raise ValueError(f"the server ended it in its queue: {why}")  # it may have room a little later
        return Piece(
            tokens=told or ids,
            logprobs=reading.logprobs("output_token_logprobs", [pair[0] for pair in pairs]),
            total=reading.count("completion_tokens", meta["completion_tokens"]),
            prompt_tokens=reading.count("prompt_tokens", meta["prompt_tokens"]) or None,  # 0 if it was never begun
            version=str(meta["weight_version"]) if "weight_version" in meta else None,
            over=over,
            why=why,
        )

    def abort(self, name: str) -> Call:
        return Call("POST", "/abort_request", {"rid": name})

    def pause(self) -> Call:
        return Call("POST", "/pause_generation", {"mode": "abort"})

    def end_all(self) -> Call | None:
        return Call("POST", "/abort_request", {"rid": "", "abort_all": True})

    def freeze(self) -> Call:
        return Call("POST", "/pause_generation", {"mode": "in_place"})

    def proceed(self) -> Call:
        return Call("POST", "/continue_generation", {})

    def setup(self) -> Call | None:
        return Call("GET", "/server_info", older="/get_server_info")

    def require_sleeper(self, reply: Reply) -> None:
        setup = reading.thing(reply.content)
        lacking = [f"--{name.replace('_', '-')}" for name in _SLEEPER if not setup.get(name)]
        if lacking:
            raise ServerMismatch(f"its sleep would lose the weights: start the server with {' '.join(lacking)}")
        if (mode := setup.get("weight_cache_mode", "off")) != "off":
            raise ServerMismatch(f"its sleep would end it: start the server without --weight-cache-mode {mode}")

    def idle(self) -> Call | None:
        return self.invalidate()  # its pause waits only for streams that are read, and a sleep amid a step ends it

    def sleep(self) -> Call:
        return Call("POST", "/release_memory_occupation", {"tags": [CACHE, WEIGHTS]})  # all kinds if none is named

    def wake(self, tag: str) -> Call:
        return Call("POST", "/resume_memory_occupation", {"tags": [tag]})

    def invalidate(self) -> Call:
        return Call("POST", "/flush_cache")

    def _from_disk(self, path: str, version: int) -> tuple[Call, ...]:
        return (_told("/update_weights_from_disk", {"model_path": path}, version),)

    def _transferred(self, info: dict[str, Any], version: int) -> tuple[Call, ...]:
        return _begin(), _told("/update_weights_from_distributed", info, version), _end()

    def _undo_from_disk(self) -> tuple[Call, ...]:
        return ()  # the next one loads all weights again

    def _undo_transferred(self) -> tuple[Call, ...]:
        return _begin(vain=True), _end(vain=True)  # vain: the server may have been started anew

    def announce(self, version: int) -> Call:
        return Call("POST", VERSION_ROUTE, {"new_version": str(version), "abort_all_requests": False})

    def version(self) -> Call:
        return Call("GET", "/model_info", older="/get_model_info")

    def folder(self) -> Call:
        return self.version()

    def read_folder(self, reply: Reply) -> str:
        return str(reading.thing(reply.content)["model_path"])

    def read_gauges(self, reply: Reply) -> Gauges:
        """Needs `--enable-metrics`. Reads no shares, as the server rounds them to two digits: too few."""
        found = Metrics(reply.content.decode())
        return Gauges(
            running=found.sum("sglang:num_running_reqs"),
            waiting=found.sum("sglang:num_queue_reqs"),
            room_tokens=found.sum("sglang:max_total_num_tokens"),
            held_tokens=found.sum("sglang:num_used_tokens"),
            nbytes=0,
            generated_tokens=found.sum("sglang:generation_tokens_total"),
            prefilled_tokens=found.sum("sglang:prompt_tokens_total"),
            recomputed_tokens=0,
            preemptions=found.sum("sglang:num_retracted_requests_total"),
            ended=found.sum("sglang:num_requests_total"),
        )


def _begin(vain: bool = False) -> Call:
    return Call("POST", "/begin_weight_update", {}, optional=True, opens=True, vain=vain)


def _end(vain: bool = False) -> Call:
    return Call("POST", "/end_weight_update", {}, optional=True, closes=True, vain=vain)


def _told(path: str, body: dict[str, Any], version: int) -> Call:
    """An update that flushes no cache: asleep there is none, and `invalidate` follows once it is awake."""
    return Call("POST", path, body | {"flush_cache": False, "weight_version": str(version)})


def _over(reason: object) -> tuple[Over | None, str]:
    if not isinstance(reason, dict):
        return reading.over(reason), ""
    over = reading.over(reason.get("type"))
    if over is Over.STOP and isinstance(reason.get("matched"), str):
        # If the model's output is no number, the server writes a stop token last, and says only here what happened.
        return Over.ERROR, f"the server stopped at {reason['matched']!r}, which is no token"
    return over, str(reason.get("message") or "")
