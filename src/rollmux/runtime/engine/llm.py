"""vLLM's `LLM` in this process: all that the engine in `vllm_inside` knows of it, and how it is asked.

Nothing of vLLM is imported here: the object brings it along. Sources and versions: docs/design/engine_http.md.
Invariant: the owner can go on with the LLM whatever was asked of it, except after weights that did not all come.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from rollmux.checks import Checks
from rollmux.errors import InvariantViolated
from rollmux.runtime.engine.errors import UpdateRefused
from rollmux.runtime.engine.http import reading
from rollmux.runtime.engine.http.calls import Attempt, Over, Piece
from rollmux.runtime.engine.http.dialect import CACHE, WEIGHTS
from rollmux.runtime.engine.http.vllm import Vllm, signed_seed
from rollmux.runtime.engine.http.whole import OUTPUT, Shapes, require_same, weights_in
from rollmux.runtime.engine.requests import GenerationRequest

HOTTEST = 2.0  # newer versions refuse temperatures above it
# Settings that don't count a response's tokens: they mean the same if it is begun anew behind some of its tokens.
SAMPLING = ("allowed_token_ids", "logit_bias", "min_p", "repetition_penalty", "top_k")
IN_FLIGHT = 4  # at most so many steps are under way, as the LLM schedules ahead
TAGS = (WEIGHTS, CACHE)  # in the order in which they wake


class Llm:
    """The owner's `LLM`. `as_drawn`: log-probabilities are those of the distribution that tokens are drawn from."""

    def __init__(self, llm: Any, sampling: Mapping[str, Any], as_drawn: bool) -> None:
        self._llm, self._engine, self._as_drawn = llm, llm.llm_engine, as_drawn
        self._params = type(llm.get_default_sampling_params())
        self._sampling = dict(sampling)
        self._config = self._engine.vllm_config
        self._raw = self._config.model_config.logprobs_mode == "raw_logprobs"
        self._shapes: Shapes | None = None  # of all weights, once they are known
        self._require_drivable()
        self._require_sampling()
        self._executor = self._engine.model_executor
        self._scheduler = self._engine.engine_core.engine_core.scheduler

    def _require_drivable(self) -> None:
        checks, parallel = Checks("llm"), self._config.parallel_config
        if getattr(self._engine, "model_executor", None) is None:
            remedy = "set VLLM_ENABLE_V1_MULTIPROCESSING=0 before it is made"
            raise checks.refusal("llm_engine", "in a process of its own", "in this process", remedy)
        backend = parallel.distributed_executor_backend
        if backend == "external_launcher" and parallel.world_size > 1:
            remedy = "its ranks must all be asked the same at once: give it one, or processes that it starts itself"
            checks.report("world_size", parallel.world_size, "1 with external_launcher", remedy)
        if parallel.data_parallel_size > 1:
            remedy = "make an engine of each replica"
            checks.report("data_parallel_size", parallel.data_parallel_size, "1", remedy)
        if self._config.kv_transfer_config is not None:
            remedy = "make it without a KV connector, which keeps keys and values of old weights"
            checks.report("kv_transfer_config", "some", "none", remedy)
        if self._engine.is_sleeping():
            checks.report("is_sleeping", True, "awake", "wake it first, and see that it has its weights")
        checks.require()

    def _require_sampling(self) -> None:
        checks, mode = Checks("sampling"), self._config.model_config.logprobs_mode
        for name in sorted(self._sampling.keys() - set(SAMPLING)):
            remedy = "requests say the rest; what counts a response's tokens would count from where it is begun anew"
            checks.report(name, self._sampling[name], f"one of {', '.join(SAMPLING)}", remedy)
        wanted = "processed_logprobs" if self._as_drawn else "raw_logprobs"
        if mode != wanted and (self._as_drawn or self._sampling or mode != "processed_logprobs"):
            remedy = f"make the LLM with logprobs_mode={wanted!r}"
            remedy += "" if self._as_drawn or mode != "processed_logprobs" else ", or say `as_drawn`"
            checks.report("logprobs_mode", mode, wanted, remedy)
        checks.require()
        self._params(**self._sampling)  # vLLM says itself what is wrong with them

    @property
    def max_length(self) -> int:
        return int(self._config.model_config.max_model_len)

    def check(self, request: GenerationRequest) -> None:
        """`InvalidSpec` for requests that the LLM would not do as the seam says."""
        Vllm().check(request)
        checks = Checks("request")
        if request.temperature > HOTTEST:
            checks.report("temperature", request.temperature, f"at most {HOTTEST:g}", "vLLM draws at no more")
        if not self._raw and not self._as_drawn and request.temperature:
            remedy = "make the LLM with logprobs_mode='raw_logprobs', or say `as_drawn`"
            if request.temperature != 1:
                checks.report("temperature", request.temperature, "0 or 1 for log-probabilities of the model", remedy)
            if request.top_p != 1:
                checks.report("top_p", request.top_p, "1 for log-probabilities of the model", remedy)
        checks.require()

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """Refuses a token that the model does not have: it would end a step, with all requests in it."""
        vocabulary = self._config.model_config.get_vocab_size()
        if (highest := max(tokens)) >= vocabulary:
            limit = f"tokens below {vocabulary}"
            raise Checks("request").refusal("prompt", highest, limit, "use the tokenizer of this model")

    # -- requests --

    def begin(self, attempt: Attempt) -> None:
        request = attempt.request
        params = self._params(
            **self._sampling,
            max_tokens=attempt.max_tokens,
            temperature=request.temperature,
            top_p=request.top_p,
            seed=signed_seed(request.seed, len(attempt.tokens)),
            stop_token_ids=list(request.stop_tokens),
            ignore_eos=True,  # nothing but the request's own stop tokens ends it
            logprobs=0,  # only that of the token that is drawn
            detokenize=False,
        )
        try:
            self._engine.add_request(attempt.name, {"type": "token", "prompt_token_ids": list(attempt.prompt)}, params)
        except BaseException:
            self.abort([attempt.name])
            raise

    def abort(self, names: list[str]) -> None:
        """Ends attempts: nothing more is told of them. Those that are not there are over already."""
        self._engine.abort_request(names)

    def step(self) -> list[Any]:
        outputs: list[Any] = self._engine.step()
        return outputs

    def is_over(self, output: Any) -> bool:
        return bool(output.finished)

    def read(self, output: Any, known: int) -> Piece:
        """What an output adds to the `known` tokens of an attempt: each output has all of the attempt's tokens."""
        (choice,) = output.outputs
        fresh = tuple(choice.token_ids[known:])
        over = reading.over(choice.finish_reason)
        return Piece(
            tokens=fresh,
            logprobs=tuple(at[token].logprob for at, token in zip(choice.logprobs[known:], fresh, strict=False)),
            total=len(choice.token_ids),
            prompt_tokens=len(output.prompt_token_ids),
            over=over,
            why=f"it ended as {choice.finish_reason!r}" if over is Over.ERROR else "",
        )

    @property
    def unfinished(self) -> int:
        return int(self._scheduler.get_num_unfinished_requests())

    def forget(self, step: Callable[[], object]) -> None:
        """Drops all keys and values, once there are no requests. Those of a step under way go by further steps."""
        for _ in range(IN_FLIGHT):
            if self._engine.reset_prefix_cache():
                return
            step()
        raise InvariantViolated("prefix cache", "requests of others hold keys and values: end those of the LLM first")

    # -- memory --

    @property
    def can_sleep(self) -> bool:
        return bool(self._config.model_config.enable_sleep_mode)

    @property
    def is_asleep(self) -> bool:
        return bool(self._engine.is_sleeping())

    def sleep(self) -> None:
        """Sleeps. If only a part sleeps, as after new weights, all is woken first: vLLM would put no more to sleep."""
        if not self._executor.sleeping_tags.issuperset(TAGS):
            self.wake()
            self._llm.sleep(level=1)

    def wake(self, tags: Sequence[str] = TAGS) -> None:
        for tag in tags:
            if tag in self._executor.sleeping_tags:
                self._llm.wake_up(tags=[tag])

    # -- weights --

    def require_whole(self, weights: Mapping[str, Any]) -> None:
        """`UpdateRefused` unless these are all of the model's weights, by its folder or else by the first that it took.

        vLLM would notice only in the middle of a layer, and leave a part of it that no other weights fit.
        """
        if self._shapes is None:
            with suppress(ValueError):
                self._shapes = weights_in(self._config.model_config.model) or None
        given = _shapes(weights)
        wanted: Shapes = self._shapes or {**dict.fromkeys(weights, ()), **given}
        require_same("this mapping", given, wanted)
        if unknown := sorted(name for name in given.keys() - wanted.keys() if not name.endswith(OUTPUT)):
            raise UpdateRefused(f"the model has no {unknown[0]!r}: give weights the names that its folder has for them")

    def load(self, weights: Mapping[str, Any]) -> None:
        """Loads as from a checkpoint: on processors, or if quantised, vLLM computes with what it makes of them."""
        self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": list(weights.items())})
        self._shapes = self._shapes or _shapes(weights) or None

    # -- gauges --

    @property
    def counts(self) -> tuple[int, int]:
        """How many requests run, and how many wait."""
        running, waiting = self._scheduler.get_request_counts()
        return running, waiting

    @property
    def room_tokens(self) -> int:
        cache = self._config.cache_config
        return int(cache.num_gpu_blocks * cache.block_size)

    @property
    def held_tokens(self) -> int:
        usage: float = self._scheduler.kv_cache_manager.usage
        return round(self.room_tokens * usage)

    @property
    def nbytes(self) -> int:
        """The bytes of keys and values; 0 while they sleep."""
        if CACHE in self._executor.sleeping_tags:
            return 0
        return sum(int(each.size) for each in self._scheduler.kv_cache_config.kv_cache_tensors)

    @property
    def preemptions(self) -> int:
        """All since the LLM was made, if it counts them (`disable_log_stats=False`)."""
        if not self._engine.log_stats:
            return 0
        return int(sum(each.value for each in self._engine.get_metrics() if each.name == "vllm:num_preemptions"))


def _shapes(weights: Mapping[str, Any]) -> Shapes:
    """The shapes of those weights that have data."""
    return {name: tuple(weight.shape) for name, weight in weights.items() if not weight.is_meta}
