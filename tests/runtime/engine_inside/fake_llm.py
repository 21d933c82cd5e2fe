"""A vLLM `LLM` as small as can be, which does what a real one (0.31) was seen to do.

Its tokens are a matter of weights, context and draws; of keys and values of other weights too, where it meets any.
`ahead`: it computes a step before it tells of the one before, as vLLM does on GPUs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from tests.runtime.engine_http.fake_machine import VOCABULARY, draw

BLOCK = 8
TAGS = frozenset({"weights", "kv_cache"})


class Refused(Exception):
    """As vLLM refuses: since 0.31 by no `ValueError`."""


@dataclass
class Params:
    """`SamplingParams`, with its own defaults."""

    n: int = 1
    max_tokens: int | None = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop_token_ids: list[int] = field(default_factory=list)
    ignore_eos: bool = False
    logprobs: int | None = None
    detokenize: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= 2 or self.min_p > 1:
            raise Refused("out of range")
        if 0 < self.temperature < 0.01:
            self.temperature = 0.01
        if self.seed == -1:
            self.seed = None


@dataclass(eq=False)
class Request:
    """`tokens` are told; `drawn` may be ahead of them."""

    name: str
    prompt: list[int]
    params: Params
    upon: str = ""  # the weights of its keys and values
    drawn: list[tuple[int, float]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Any]] = field(default_factory=list)

    @property
    def context(self) -> tuple[int, ...]:
        return (*self.prompt, *(token for token, _ in self.drawn))

    @property
    def blocks(self) -> int:
        return -(-len(self.context) // BLOCK)


@dataclass(frozen=True)
class Tensor:
    """A weight of a model, which may be one that can't be loaded."""

    of: str
    shape: tuple[int, ...] = (2, 3)
    is_bad: bool = False
    is_meta: bool = False


def weights(of: str, bad: int = -1) -> dict[str, Tensor]:
    return {f"layer.{n}": Tensor(of, is_bad=n == bad) for n in range(3)}


class FakeLLM:
    """See `vllm.LLM`."""

    def __init__(self, blocks: int = 1000, rows: int = 8, ahead: bool = False, **config: Any) -> None:
        self.weights, self.is_torn, self.fails = "base", False, 0
        self.llm_engine = FakeEngine(self, blocks, rows, ahead, config)

    def get_default_sampling_params(self) -> Params:
        return Params()

    def sleep(self, level: int) -> None:
        """What it has is ended, of which nobody is told. Half awake it sleeps no further. At level 2 it forgets."""
        core = self.llm_engine.scheduler
        assert level in {1, 2}
        if self.llm_engine.model_executor.sleeping_tags:
            return
        self.weights = self.weights if level == 1 else "none"
        core.drop(list(core.requests))
        core.cache.clear()
        core.is_paused = True
        self.llm_engine.model_executor.sleeping_tags |= TAGS

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        asleep = self.llm_engine.model_executor.sleeping_tags
        tags = tags or list(asleep)
        assert asleep.issuperset(tags), "those that are awake are warned of"
        asleep.difference_update(tags)
        assert asleep != {"weights"}, "keys and values before weights"
        self.llm_engine.scheduler.is_paused = bool(asleep)

    def generate(self) -> list[Any]:
        """Whatever is there, to the end: also what it was not asked for itself."""
        told = []
        while self.llm_engine.has_unfinished_requests():
            told += self.llm_engine.step()
        return told


class FakeEngine:
    """See `vllm.v1.engine.llm_engine.LLMEngine`."""

    def __init__(self, llm: FakeLLM, blocks: int, rows: int, ahead: bool, config: dict[str, Any]) -> None:
        told = {"logprobs_mode": "raw_logprobs", "enable_sleep_mode": True, "max_model_len": 512, "model": "nowhere"}
        parallel = {"distributed_executor_backend": "uni", "world_size": 1, "data_parallel_size": 1}
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(
                get_vocab_size=lambda: VOCABULARY, **{k: config.get(k, v) for k, v in told.items()}
            ),
            parallel_config=SimpleNamespace(**{k: config.get(k, v) for k, v in parallel.items()}),
            cache_config=SimpleNamespace(num_gpu_blocks=blocks, block_size=BLOCK),
            kv_transfer_config=config.get("kv_transfer_config"),
        )
        self.model_executor: Any = SimpleNamespace(sleeping_tags=set())
        self.scheduler = Scheduler(llm, blocks, rows, ahead)
        self.engine_core = SimpleNamespace(engine_core=SimpleNamespace(scheduler=self.scheduler))
        self.log_stats = True
        self.known: dict[str, Request] = {}  # to its front, which tells of requests
        self.seeds: list[int | None] = []

    def add_request(self, name: str, prompt: dict[str, Any], params: Params) -> str:
        ids = prompt["prompt_token_ids"]
        assert params.n == 1
        assert params.ignore_eos
        assert not params.detokenize
        if not ids or len(ids) >= self.vllm_config.model_config.max_model_len or name in self.known:
            raise Refused(name)
        self.seeds.append(params.seed)
        self.known[name] = self.scheduler.requests[name] = Request(name, list(ids), params)
        return f"{name}-0123abcd"

    def abort_request(self, names: list[str]) -> None:
        self.scheduler.drop([name for name in names if self.known.pop(name, None)])

    def has_unfinished_requests(self) -> bool:
        return bool(self.known)

    def reset_prefix_cache(self) -> bool:
        if self.scheduler.holds_any:
            return False
        self.scheduler.cache.clear()
        return True

    def is_sleeping(self) -> bool:
        return self.scheduler.is_paused

    def collective_rpc(self, method: str, kwargs: dict[str, Any]) -> None:
        assert method == "reload_weights"
        assert "weights" not in self.model_executor.sleeping_tags
        assert not self.scheduler.requests
        llm, given = self.scheduler.llm, kwargs["weights_iterator"]
        if llm.is_torn and given:
            raise AttributeError("'Parameter' object has no attribute 'weight_loader'")
        llm.is_torn = bool(given)
        for _, tensor in given:
            if tensor.is_bad:
                raise RuntimeError("exceeds dimension size")
            llm.weights = tensor.of
        llm.is_torn = False

    def get_metrics(self) -> list[Any]:
        return [SimpleNamespace(name="vllm:num_preemptions", value=self.scheduler.preemptions)]

    def step(self) -> list[Any]:
        told = [self._told(*each) for each in self.scheduler.step() if each[0].name in self.known]
        return [each for each in told if each is not None]

    def _told(self, request: Request, token: int, logprob: float) -> Any:
        params = request.params
        request.tokens.append(token)
        request.logprobs.append({token: SimpleNamespace(logprob=logprob)})
        reason = "length" if len(request.tokens) == params.max_tokens else None
        reason = "stop" if token in params.stop_token_ids else reason
        if reason:
            del self.known[request.name]
            self.scheduler.drop([request.name])
        choice = SimpleNamespace(token_ids=request.tokens, logprobs=request.logprobs, finish_reason=reason)
        return SimpleNamespace(
            request_id=request.name, prompt_token_ids=request.prompt, outputs=[choice], finished=reason is not None
        )


class Scheduler:
    """Who runs and who waits. All that is computed of a request counts as cached from then on."""

    def __init__(self, llm: FakeLLM, blocks: int, rows: int, ahead: bool) -> None:
        self.llm, self.blocks, self.rows, self.ahead = llm, blocks, rows, ahead
        self.requests: dict[str, Request] = {}  # in order
        self.running: list[Request] = []
        self.in_flight: list[list[tuple[Request, int, float]]] = []
        self.cache: dict[tuple[int, ...], str] = {}  # texts, and the weights of their keys and values
        self.preemptions, self.is_paused = 0, False
        self.kv_cache_config = SimpleNamespace(kv_cache_tensors=[SimpleNamespace(size=blocks * BLOCK)])

    @property
    def kv_cache_manager(self) -> Any:
        return SimpleNamespace(usage=self._held / self.blocks)

    @property
    def _held(self) -> int:
        return sum(request.blocks for request in self.running)

    @property
    def holds_any(self) -> bool:
        return bool(self.running or self.in_flight)

    def get_request_counts(self) -> tuple[int, int]:
        return len(self.running), len(self.requests) - len(self.running)

    def get_num_unfinished_requests(self) -> int:
        return len(self.requests)

    def drop(self, names: Iterable[str]) -> None:
        for name in names:
            if (request := self.requests.pop(name, None)) in self.running:
                self.running.remove(request)

    def step(self) -> list[tuple[Request, int, float]]:
        """What there is to tell now."""
        work = [] if self.is_paused else self._scheduled()
        if work:
            self.in_flight.append([(request, *self._draw(request)) for request in work])
        if self.llm.fails:
            self.llm.fails -= 1
            self.in_flight.clear()
            self.cache = dict.fromkeys(self.cache, "what was not computed to its end")
            raise IndexError("index out of range in self")
        if not self.in_flight or (self.ahead and work and len(self.in_flight) < 2):
            return []
        return [each for each in self.in_flight.pop(0) if self.requests.get(each[0].name) is each[0]]

    def _scheduled(self) -> list[Request]:
        for request in self.requests.values():
            if request in self.running:
                continue
            if len(self.running) >= self.rows or self._held + request.blocks + 1 > self.blocks:
                break
            self.running.append(request)
            request.upon = self._found(request)
        while self._held + len(self.running) > self.blocks:
            self.running.pop()
            self.preemptions += 1
        return [each for each in self.running if len(each.drawn) != each.params.max_tokens]

    def _found(self, request: Request) -> str:
        """The weights of its keys and values, of which some may be cached."""
        context = request.context
        cached = [was for text, was in self.cache.items() if context[: len(text)] == text and was != self.llm.weights]
        return cached[0] if cached else self.llm.weights

    def _draw(self, request: Request) -> tuple[int, float]:
        if self.llm.is_torn:
            raise NotImplementedError("Cannot copy out of meta tensor; no data!")
        params, now = request.params, self.llm.weights
        luck = (params.seed, len(request.drawn)) if params.temperature and params.seed is not None else None
        with_ = now if request.upon == now else f"{now} upon keys of {request.upon}"
        self.cache[request.context] = request.upon
        request.drawn.append(draw(with_, request.context, luck))
        return request.drawn[-1]
