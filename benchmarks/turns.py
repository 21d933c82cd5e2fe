"""How much several turns cost an engine: keys and values that stay between two turns, against computing them again.

The same dialogues run in three forms, in alternation: each turn goes on from the keys and values that stay; each turn
computes all before it; and, as a lower limit, one turn of as many drawn tokens, without replies. Models have random
weights, and replies are random; turns end with the tokens that ended them when they were first drawn.
"""

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import fmean, median
from typing import Any

from transformers.utils import logging as transformers_logging

from benchmarks.engine import PAGE, SIZES, Size, cores, timed
from benchmarks.figures.goals import Goal, show
from benchmarks.harness import arguments, record, table
from rollmux.runtime.engine import Ended, GenerationRequest, Limits, LocalEngine, stream
from rollmux.runtime.engine.slots import slots

GOAL = 1.3
LONGEST = 64  # of a turn
KEPT, ANEW, ONE = "kept between turns", "computed anew", "one turn, not answered"
Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """So many tokens are drawn, the last of which is drawn then first; behind them this is told."""

    tokens: int
    stop: int
    told: Tokens


@dataclass(frozen=True, slots=True)
class Dialogue:
    prompt: Tokens
    turns: Sequence[Turn]

    @property
    def drawn(self) -> int:
        return sum(turn.tokens for turn in self.turns)

    @property
    def length(self) -> int:
        return len(self.prompt) + self.drawn + sum(len(turn.told) for turn in self.turns)


def first_turn(number: int, prompt: Tokens) -> GenerationRequest:
    return GenerationRequest(str(number), prompt, LONGEST, seed=number)


def drawn(model: Any, size: Size, rng: Random, count: int, most: int) -> list[Dialogue]:
    """Their turns by the model, of lengths with a long tail."""

    def some(low: int, high: int) -> Tokens:
        return tuple(rng.randrange(size.shape["vocab_size"]) for _ in range(rng.randrange(low, high)))

    prompts = [some(24, 65) for _ in range(count)]
    asked = {str(place): rng.randrange(most // 2, most + 1) for place in range(count)}
    turns: dict[str, list[Turn]] = {name: [] for name in asked}
    engine = slots(model, limits(count, 2 * most * LONGEST))

    def draw(request: GenerationRequest) -> None:
        engine.submit(replace(request, max_tokens=max(4, min(LONGEST, round(rng.lognormvariate(2.8, 0.7))))))

    under_way = {str(place): first_turn(place, prompt) for place, prompt in enumerate(prompts)}
    for request in under_way.values():
        draw(request)
    while engine.unfinished:
        for event in engine.step():
            if isinstance(event, Ended):
                name, tokens = event.id, event.response.tokens
                whole = tokens[: tokens.index(tokens[-1]) + 1]
                turns[name].append(Turn(len(whole), whole[-1], some(8, 33)))
                if len(turns[name]) < asked[name]:
                    under_way[name] = following(under_way[name], whole, turns[name][-1].told)
                    draw(under_way[name])
    engine.close()
    return [Dialogue(prompt, turns[str(place)]) for place, prompt in enumerate(prompts)]


def following(request: GenerationRequest, tokens: Tokens, told: Tokens) -> GenerationRequest:
    return replace(request, prompt=request.prompt + tokens + told, seed=request.seed + 1_000)


def limits(count: int, longest: int) -> Limits:
    return Limits(
        room_tokens=count * (longest // PAGE + 1) * PAGE, max_running=count, page_tokens=PAGE, max_length=2048
    )


def talk(engine: LocalEngine, dialogues: Sequence[Dialogue], rests: bool) -> int:
    """All of them side by side; the tokens that were drawn."""
    under_way: dict[str, tuple[GenerationRequest, int]] = {}
    tokens = 0

    def go_on(request: GenerationRequest, place: int) -> None:
        turn = dialogues[int(request.id)].turns[place]
        request = replace(request, stop_tokens=(turn.stop,), max_tokens=turn.tokens, rests=rests)
        under_way[request.id] = request, place
        engine.submit(request)

    for number, dialogue in enumerate(dialogues):
        go_on(first_turn(number, dialogue.prompt), 0)
    while engine.unfinished:
        for event in engine.step():
            if isinstance(event, Ended):
                request, place = under_way[event.id]
                tokens += len(event.response.tokens)
                turns = dialogues[int(event.id)].turns
                if place + 1 < len(turns):
                    go_on(following(request, event.response.tokens, turns[place].told), place + 1)
                else:
                    engine.cancel([event.id])
    return tokens


def unanswered(engine: LocalEngine, dialogues: Sequence[Dialogue]) -> int:
    for number, dialogue in enumerate(dialogues):
        engine.submit(replace(first_turn(number, dialogue.prompt), max_tokens=dialogue.drawn))
    return sum(len(event.response.tokens) for event in stream(engine) if isinstance(event, Ended))


def compared(size: Size, engine: LocalEngine, dialogues: Sequence[Dialogue], rounds: int) -> list[dict[str, object]]:
    """Seconds for each token that was drawn; the first turn of all does not count."""
    forms: Mapping[str, Callable[[Sequence[Dialogue]], int]] = {
        KEPT: lambda some: talk(engine, some, rests=True),
        ANEW: lambda some: talk(engine, some, rests=False),
        ONE: lambda some: unanswered(engine, some),
    }
    found: list[dict[str, float]] = []
    computed: dict[str, int] = {}
    for form in forms.values():
        form(dialogues[:4])
    for _ in range(rounds):
        found.append({})
        for name, form in forms.items():
            before = engine.gauges()
            with timed() as taken:
                tokens = form(dialogues)
            after = engine.gauges()
            found[-1][name] = taken[0] / tokens
            computed[name] = after.prefilled_tokens - before.prefilled_tokens
            print(f"{size.name}, {name}: {taken[0]:.1f} s, {tokens} tokens drawn", flush=True)
    return [
        {
            "model": size.name,
            "form": name,
            "turns": fmean(len(each.turns) for each in dialogues) if name != ONE else 1.0,
            "tokens drawn": sum(each.drawn for each in dialogues),
            "others computed": computed[name],
            "tokens/s": 1 / median(each[name] for each in found),
            "anew over this": median(each[ANEW] / each[name] for each in found),
            "this over one turn": median(each[name] / each[ONE] for each in found),
        }
        for name in forms
    ]


def measure(args: Namespace) -> dict[str, object]:
    rows: list[dict[str, object]] = []
    goals: list[Goal] = []
    for size in SIZES[:1] if args.quick else [size for size in SIZES if size.name in args.sizes.split(",")]:
        count, most, rounds = (4, 3, 1) if args.quick else (size.prompts // 2, args.turns, args.rounds)
        with cores(size.threads):
            model = size.model(args.seed, "cpu")
            dialogues = drawn(model, size, Random(args.seed), count, most)
            engine = slots(model, limits(count, max(each.length for each in dialogues)))
            found = compared(size, engine, dialogues, rounds)
            engine.close()
        rows += found
        ratio = found[0]["anew over this"]
        assert isinstance(ratio, float)
        goals.append(
            Goal(f"{size.name}, times as fast as computing all before a turn anew", ratio, GOAL, at_most=False)
        )
    table(rows)
    print("All weights are random; SmolLM2-135M is a model of its shape.")
    return {"rows": rows, "goals": show(goals), "weights": "random"}


def main() -> None:
    parser = arguments("turns", __doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often each form runs")
    parser.add_argument(
        "--turns", type=int, default=10, help="the most turns of a dialogue; each has half of that or more"
    )
    parser.add_argument("--sizes", default=",".join(size.name for size in SIZES), help="models, by name")
    args = parser.parse_args()
    transformers_logging.set_verbosity_error()
    record("turns", args, lambda: measure(args))


if __name__ == "__main__":
    main()
