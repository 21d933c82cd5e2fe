"""The settings of tail batching, and everything that can be wrong with them, told at once."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from math import ceil, floor

from rollmux.checks import Checks
from rollmux.errors import InvalidSpec, Problem

MAX_COUNT = 10**6
MAX_FACTOR = 16.0
MAX_RETRIES = 1000

Quotas = Mapping[str, int] | tuple[tuple[str, int], ...]


class Race(Enum):
    """Which of a prompt's responses win in a short round."""

    REWARDED = "rewarded"  # the first to be rewarded
    GENERATED = "generated"  # the first to be generated: how slow a reward is never decides
    NONE = "none"  # no race between responses, only between prompts


@dataclass(frozen=True, slots=True)
class Batching:
    """A step's batch of `prompts` × `responses`, and how much more is launched in a short round.

    `quotas` say how many of the prompts come from each domain; without them any prompt will do. A deferred prompt is
    trained at most `max_wait_rounds` rounds later; a response that fails is launched again up to `retries` times. Of
    each domain a round filters at most `most_filtered` times its quota, and then trains what it gets.
    """

    prompts: int
    responses: int
    eta_prompts: float = 1.25
    eta_responses: float = 1.25
    race: Race = Race.REWARDED
    quotas: Quotas = ()
    max_wait_rounds: int = 16  # longer than a whole cycle of short rounds and a long one, from a factor of 1.07 on
    retries: int = 2
    most_filtered: int = 10

    def __post_init__(self) -> None:
        if isinstance(self.quotas, Mapping):
            object.__setattr__(self, "quotas", tuple(self.quotas.items()))

    @property
    def lanes(self) -> tuple[tuple[str, int], ...]:
        """Each domain with its share of a batch; without quotas one lane for all prompts."""
        assert isinstance(self.quotas, tuple)
        return self.quotas or (("", self.prompts),)


def launches(wanted: int, factor: float) -> int:
    """How many are launched where `wanted` are wanted: 1.15 × 100 is 115, though a bit less in binary fractions."""
    return max(wanted, floor(wanted * factor + 1e-9))


def surpluses(batching: Batching, factor: float, queued: Mapping[str, int]) -> dict[str, int]:
    """How many more prompts than wanted are launched in each domain: together as many as `factor` says.

    The surplus is shared out by the quotas, rounded down. What rounding leaves over in the `queued` domains goes to
    those of them that have the least for their quota, with the prompts that wait counted in. If the same domains got it
    each time, long rounds would come early, and lack the prompts of the others.
    """
    lanes, total = batching.lanes, launches(batching.prompts, factor) - batching.prompts
    found = {domain: total * quota // batching.prompts for domain, quota in lanes}
    quotas = dict(lanes)
    by_need = sorted(queued, key=lambda domain: ((queued[domain] + found[domain] + 1) / quotas[domain], domain))
    left = sum(total * quotas[domain] % batching.prompts for domain in queued) // batching.prompts
    for domain in by_need[:left]:
        found[domain] += 1
    return found


def batching_problems(batching: Batching) -> tuple[Problem, ...]:
    """Everything wrong with the settings."""
    checks = Checks("batching")
    checks.whole("prompts", batching.prompts, 1, MAX_COUNT, "give the prompts trained in one step")
    checks.whole("responses", batching.responses, 1, MAX_COUNT, "give the responses trained for each prompt")
    checks.number("eta_prompts", batching.eta_prompts, 1.0, MAX_FACTOR, "1 launches no more than is wanted")
    checks.number("eta_responses", batching.eta_responses, 1.0, MAX_FACTOR, "1 launches no more than is wanted")
    checks.whole("max_wait_rounds", batching.max_wait_rounds, 1, MAX_COUNT, "a deferred prompt waits for a later round")
    checks.whole("retries", batching.retries, 0, MAX_RETRIES, "0 gives a response up at its first failure")
    checks.whole("most_filtered", batching.most_filtered, 0, MAX_COUNT, "0 filters nothing")
    race: object = batching.race
    if not isinstance(race, Race):
        checks.report("race", race, "a Race", "choose Race.REWARDED, Race.GENERATED or Race.NONE")
    _check_quotas(checks, batching)
    if not checks.problems:
        _check_wait(checks, batching)
    return tuple(checks.problems)


def require_batching(batching: Batching) -> Batching:
    """The settings themselves, or InvalidSpec."""
    problems = batching_problems(batching)
    if problems:
        raise InvalidSpec("batching", problems)
    return batching


def _check_quotas(checks: Checks, batching: Batching) -> None:
    quotas: object = batching.quotas
    if not isinstance(quotas, tuple) or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in quotas):
        checks.report("quotas", quotas, "a mapping of domains to prompts", "leave it out where any prompt will do")
        return
    domains = [domain for domain, _ in quotas]
    are_good = True
    for domain, quota in quotas:
        if not isinstance(domain, str) or not domain or not domain.isprintable():
            checks.report("quotas", domain, "a printable name", "name every domain")
        elif domains.count(domain) > 1:
            checks.report(f"quotas.{domain}", quota, "the only quota of its domain", "add them up")
        are_good &= checks.whole(f"quotas.{domain}", quota, 1, MAX_COUNT, "leave out a domain without a share")
    if quotas and are_good and sum(quota for _, quota in quotas) != batching.prompts:
        total = sum(quota for _, quota in quotas)
        checks.report("quotas", total, f"{batching.prompts} in sum, the prompts of a step", "mend the shares")


def _check_wait(checks: Checks, batching: Batching) -> None:
    """Long rounds alone must be able to train what one short round defers, before it has waited too long."""
    surplus = surpluses(batching, batching.eta_prompts, {domain: 0 for domain, _ in batching.lanes})
    needed = max(ceil(surplus[domain] / quota) for domain, quota in batching.lanes)
    if batching.max_wait_rounds < needed:
        limit = f"at least {needed}, as one short round may defer what fills {needed} long ones"
        checks.report(
            "max_wait_rounds", batching.max_wait_rounds, limit, "let prompts wait longer, or lower eta_prompts"
        )
