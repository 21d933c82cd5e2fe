"""What may happen now: every event of a call is looked at before any of them is applied.

Checking changes nothing but `said`, which holds what the events of one call have said so far. `said` is None for a call
with a single event: this is the common case, and faster.
"""

from collections.abc import Callable
from math import isfinite
from numbers import Real
from typing import Any

from rollmux.errors import IllegalEvent
from rollmux.packer import events as ev
from rollmux.packer.memory import Memory
from rollmux.packer.run import AFTER, Run, Stand

Said = dict[object, Any]


def check(memory: Memory, event: ev.Event, said: Said | None) -> Run | None:
    """The run that the event is about, if any. Raises IllegalEvent if it can't happen now."""
    checker = _CHECKS.get(type(event))
    if checker is None:
        raise IllegalEvent(f"{event!r} is not an event")
    return checker(memory, event, said)


def _started(memory: Memory, event: ev.RoundStarted, said: Said | None) -> None:
    if memory.round is not None:
        raise IllegalEvent(f"round {memory.number} is not complete: the next one starts after it")
    left: object = event.rounds_left
    if left is not None and (type(left) is not int or left < 1):
        raise IllegalEvent(f"rounds_left is {left!r}: give a whole number from 1, with this round, or None")
    if said is not None:
        if ev.RoundStarted in said:
            raise IllegalEvent(f"{event!r}: a round is started twice")
        said[ev.RoundStarted] = True


def _drawn(memory: Memory, event: ev.PromptDrawn, said: Said | None) -> None:
    prompt = event.prompt
    refusal = memory.ledger.refusal(prompt)
    if refusal is not None:
        raise IllegalEvent(f"{prompt}: {refusal}")
    _only_once(event, said)
    domain = memory.lane_of(prompt)
    expected = memory.drawing.get(domain, 0)
    if said is not None:
        expected -= said.get(domain, 0)
        said[domain] = said.get(domain, 0) + 1
    if expected <= 0:
        raise IllegalEvent(f"{prompt}: no more prompts were asked for")


def _data_ended(memory: Memory, event: ev.DataEnded, said: Said | None) -> None:
    if event.domain not in memory.drawing:
        raise IllegalEvent(f"there is no domain {event.domain!r}: give one of {sorted(memory.drawing)}")
    if event.domain in memory.dry:
        raise IllegalEvent(f"the data of domain {event.domain!r} had ended before")
    _only_once(event, said)


def _told_tokens(memory: Memory, event: Any, said: Said | None) -> Run | None:
    if type(event.tokens) is not int or event.tokens < 0:
        raise IllegalEvent(f"{event.request}: a length of {event.tokens} tokens; give a whole number from 0")
    return _response(memory, event, said)


def _rewarded(memory: Memory, event: ev.ResponseRewarded, said: Said | None) -> Run | None:
    reward: object = event.reward
    try:
        # Nearly all rewards are floats, and to ask a class of `numbers` takes four times as long.
        is_right = (type(reward) is float or isinstance(reward, Real)) and isfinite(reward)
    except OverflowError:
        raise IllegalEvent(f"{event.request}: a reward that is larger than any float; give a smaller one") from None
    if not is_right:
        raise IllegalEvent(f"{event.request}: a reward of {reward!r}; say ResponseFailed where there is no number")
    return _response(memory, event, said)


def _response(memory: Memory, event: ev.ResponseEvent, said: Said | None) -> Run | None:
    request, now = event.request, memory.round
    run = now.runs.get(request.prompt) if now is not None and request.round == now.number else None
    if run is not None:
        stand = run.stands.get(request.sample)
    elif memory.is_over(request):
        stand = Stand.ABORTED  # the round is over: any event about the response comes too late
    else:
        stand = None
    if said is not None:
        stand = said.get(request, stand)
    if stand is None:
        raise IllegalEvent(f"{request} was never launched")
    after = AFTER[type(event)].get(stand)
    if after is None:
        raise IllegalEvent(f"{type(event).__name__}: {request} is {stand.value}")
    if said is not None:
        said[request] = after
    return run


def _only_once(event: ev.Event, said: Said | None) -> None:
    if said is not None:
        if event in said:
            raise IllegalEvent(f"{event!r} is told twice")
        said[event] = True


_CHECKS: dict[type[ev.Event], Callable[[Memory, Any, Said | None], Run | None]] = {
    ev.RoundStarted: _started,
    ev.PromptDrawn: _drawn,
    ev.DataEnded: _data_ended,
    ev.ResponseGenerated: _told_tokens,
    ev.ResponseRewarded: _rewarded,
    ev.ResponseFailed: _told_tokens,
    ev.ResponseAborted: _told_tokens,
}
