"""Engines in processes of their own do what engines do, also when their processes are killed."""

import errno
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing import Pipe
from random import Random
from threading import Lock, Timer
from typing import Any, NoReturn

import pytest
import torch

from rollmux.runtime.engine import (
    Ended,
    EngineClosed,
    FinishReason,
    GenerationRequest,
    Grown,
    UnsupportedModel,
    UpdateRefused,
    elsewhere,
)
from rollmux.runtime.engine.beside import EngineBeside, _Pipe
from rollmux.runtime.engine.errors import EngineFailed, EngineLost
from rollmux.runtime.engine.slots import slots
from rollmux.service.local.process_tree import look
from tests.runtime.engine.histories import CALLS, History, alone, some_requests
from tests.runtime.engine.models import VOCABULARY, finished, tiny
from tests.runtime.engine.test_histories import TIGHT

LONG = GenerationRequest("long", (1, 2, 3), 40, seed=1)


@contextmanager
def beside(count: int) -> Iterator[Sequence[EngineBeside]]:
    """Engines that share the weights of one model."""
    model = tiny("llama", torch.float64)
    model.share_memory()
    engines = [EngineBeside(partial(slots, model, TIGHT)) for _ in range(count)]
    try:
        yield engines
    finally:
        for engine in engines:
            engine.close()


def gone(pid: int) -> bool:
    found = look(pid)
    return found is None or not found.alive


def test_requests_end_once_and_as_if_alone_whatever_is_called() -> None:
    requests = some_requests(Random(1), 10, VOCABULARY)
    known = alone(lambda: slots(tiny("llama", torch.float64), TIGHT), requests)
    with beside(2) as engines:
        for seed in range(8):
            rng = Random(seed)
            History(engines, known, rng).play(rng.choices(CALLS, k=70))
        pids = [engine.pid for engine in engines]
    assert all(pid is not None and gone(pid) for pid in pids)


@pytest.mark.parametrize("seed", range(4))
def test_nothing_else_comes_of_requests_whose_processes_are_killed_again_and_again(seed: int) -> None:
    rng = Random(seed)
    requests = some_requests(Random(1), 10, VOCABULARY)
    known = alone(lambda: slots(tiny("llama", torch.float64), TIGHT), requests)
    with beside(2) as engines:
        history = History(engines, known, rng)
        ahead, kills = [*rng.choices(CALLS, k=70)], 4
        parts = [ahead[start :: kills + 1] for start in range(kills + 1)]
        for part in parts[:-1]:
            history.call(part)
            victim = rng.choice([engine.pid for engine in engines if engine.pid is not None])
            os.kill(victim, signal.SIGKILL)
        history.play(parts[-1])


def test_a_process_that_is_killed_in_the_middle_of_a_response_is_replaced_and_no_token_is_told_twice() -> None:
    want = finished(slots(tiny("llama", torch.float64), TIGHT), [LONG])["long"].response
    with beside(1) as (engine,):
        engine.submit(LONG)
        tokens: list[int] = []
        while len(tokens) < 20:
            for event in engine.step():
                assert isinstance(event, Grown)
                assert event.first == len(tokens)
                tokens += event.gained.tokens
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        assert finished(engine)["long"].response.tokens == want.tokens


@pytest.mark.slow
def test_what_it_is_a_fork_of_may_be_killed_with_it() -> None:
    want = finished(slots(tiny("llama", torch.float64), TIGHT), [LONG])["long"].response
    with beside(1) as (engine,):
        engine.submit(LONG)
        while not engine.step():
            pass
        fork = look(engine.pid or 0)
        assert fork is not None
        assert fork.parent != os.getpid()
        for pid in (fork.parent, fork.pid):
            os.kill(pid, signal.SIGKILL)
        assert finished(engine)["long"].response.tokens == want.tokens
        assert engine.pid not in (None, fork.pid)


@pytest.mark.slow
def test_the_next_begins_in_a_small_part_of_the_time_that_importing_takes() -> None:
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", "import transformers.models.llama.modeling_llama"], check=True)
    importing_s = time.monotonic() - began
    with beside(2) as engines:
        took_s = []
        for engine in engines:
            began = time.monotonic()
            engine.resume()
            took_s.append(time.monotonic() - began)
    assert took_s[1] < importing_s / 2


def test_what_is_refused_is_refused_as_by_the_engine_itself_and_changes_nothing() -> None:
    with beside(1) as (engine,):
        engine.submit(LONG)
        with pytest.raises(Exception, match="long"):
            engine.submit(LONG)
        while not engine.step():
            pass
        with pytest.raises(UpdateRefused):
            engine.update(1)
        engine.cancel(["long", "nobody"])
        (ended,) = finished(engine).values()
        assert ended.reason is FinishReason.CANCELLED
        engine.update(1)
        assert engine.version == 1
    assert engine.close() == []
    with pytest.raises(EngineClosed):
        engine.submit(LONG)


def test_what_is_left_at_the_end_is_told_as_cancelled() -> None:
    with beside(1) as (engine,):
        engine.submit(LONG)
        assert [(event.id, event.reason) for event in engine.close() if not isinstance(event, Grown)] == [
            ("long", FinishReason.CANCELLED)
        ]
        assert (engine.unfinished, engine.is_suspended) == (0, True)


def dies(version: int) -> NoReturn:
    os._exit(1)


class Breaks:
    """An engine of which each second step raises what an operating system might."""

    def __init__(self, model: Any, version: int) -> None:
        self._engine, self._steps = slots(model, TIGHT, version), 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def step(self) -> Any:
        self._steps += 1
        if self._steps % 2 == 0:
            raise BlockingIOError
        return self._engine.step()


def test_a_step_that_raises_is_told_by_a_step_and_may_be_tried_again() -> None:
    model = tiny("llama", torch.float64)
    want = finished(slots(model, TIGHT), [LONG])["long"].response
    model.share_memory()
    engine = EngineBeside(partial(Breaks, model))
    engine.submit(LONG)
    pid, tokens, raised, over = engine.pid, list[int](), 0, False
    while not over:
        engine.gauges()  # of other calls it is no matter
        try:
            events = engine.step()
        except BlockingIOError:  # which is an OSError, as of a pipe that broke
            raised += 1
            continue
        over = any(isinstance(event, Ended) for event in events)
        tokens += [token for event in events if isinstance(event, Grown) for token in event.gained.tokens]
    assert tuple(tokens) == want.tokens
    assert raised > 10
    assert engine.pid == pid
    engine.close()


def test_a_process_that_dies_each_time_is_given_up() -> None:
    engine = EngineBeside(dies)
    with pytest.raises(EngineLost, match="in a row"):
        engine.submit(LONG)
    engine.close()


def test_one_that_stands_still_is_ended_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elsewhere, "_END_S", 0.1)
    with beside(1) as (engine,):
        engine.submit(LONG)
        engine.gauges()
        pid, late = engine.pid or 0, list[int]()

        def kill() -> None:
            late.append(pid)
            os.kill(pid, signal.SIGKILL)

        timer = Timer(60.0, kill)
        timer.start()
        os.kill(pid, signal.SIGSTOP)
        engine._begin_step()
        assert [event.id for event in engine.close()] == ["long"]
        timer.cancel()
    assert gone(pid)
    assert not late


def refuses(version: int) -> NoReturn:
    raise UnsupportedModel("model type 'odd'")


class NoRoom:
    """Goes to no other process: there are too many descriptors, say."""

    def __call__(self, version: int) -> NoReturn:
        raise AssertionError

    def __reduce__(self) -> NoReturn:
        raise OSError(errno.EMFILE, "too many open files")


@pytest.mark.parametrize(
    ("make", "error", "why"),
    [
        (refuses, UnsupportedModel, "model type 'odd'"),
        (NoRoom(), OSError, "too many"),
        (lambda _: _, Exception, "<lambda>"),
    ],
)
def test_why_an_engine_cannot_be_made_is_told_each_time(make: Any, error: type[Exception], why: str) -> None:
    engine = EngineBeside(make)
    for _ in range(4):
        with pytest.raises(error, match=why):
            engine.submit(LONG)
        assert (engine.unfinished, engine.pid) == (0, None)
    engine.close()


class Odd(Exception):
    """Is no pickle that can be read."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}: {why}")


def held() -> Exception:
    error = RuntimeError("the device")
    error.lock = Lock()  # type: ignore[attr-defined]
    return error


class Raises:
    """An engine whose gauges raise what cannot be sent."""

    def __init__(self, error: Callable[[], Exception], version: int) -> None:
        self.version, self.is_suspended, self._error = version, False, error

    def adopt(self, unfinished: object, mixed: bool) -> None: ...

    def cancel(self, ids: object) -> None: ...

    def gauges(self) -> NoReturn:
        raise self._error()


@pytest.mark.parametrize(
    ("error", "text"), [(partial(Odd, "this", "that"), "Odd: this: that"), (held, "RuntimeError: the device")]
)
def test_an_error_that_cannot_be_sent_is_told_as_a_text_and_the_engine_goes_on(
    error: Callable[[], Exception], text: str
) -> None:
    engine = EngineBeside(partial(Raises, error))  # type: ignore[arg-type]
    with pytest.raises(EngineFailed, match=text):
        engine.gauges()
    pid = engine.pid
    with pytest.raises(EngineFailed, match=text):
        engine.gauges()
    assert engine.pid == pid is not None
    engine.close()


def test_a_process_that_dies_in_the_middle_of_an_answer_is_gone() -> None:
    here, there = Pipe()
    os.write(there.fileno(), struct.pack("!i", 100) + b"of these it sends a few")
    there.close()
    with pytest.raises(EOFError):
        _Pipe(here).recv()
    here.close()
