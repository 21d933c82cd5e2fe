"""How often somebody may call."""

from rollmux.service.rates import BURST, PER_S, REMEMBERED, Rates


class Clock:
    """A time that stands still until it is moved."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_is_allowed_and_then_only_so_many_calls_a_second() -> None:
    clock = Clock()
    rates = Rates(clock)
    assert sum(rates.allow("a") for _ in range(int(BURST) + 50)) == BURST
    clock.now += 1.0
    assert sum(rates.allow("a") for _ in range(int(PER_S) + 50)) == PER_S
    clock.now += 10 * BURST / PER_S
    assert sum(rates.allow("a") for _ in range(int(BURST) + 50)) == BURST, "what is not used is not saved up"


def test_one_caller_uses_up_nothing_of_another() -> None:
    rates = Rates(Clock())
    while rates.allow("a"):
        pass
    assert rates.allow("b")


def test_no_more_callers_are_remembered_than_may_be() -> None:
    rates = Rates(Clock())
    for i in range(REMEMBERED + 10):
        rates.allow(str(i))
    assert len(rates._left) == REMEMBERED


def test_a_heavy_call_counts_as_many_and_is_never_too_heavy() -> None:
    clock = Clock()
    rates = Rates(clock)
    assert sum(rates.allow("a", 100.0) for _ in range(10)) == BURST // 100
    clock.now += 100.0 / PER_S
    assert [rates.allow("a", 100.0) for _ in range(2)] == [True, False]
    assert rates.allow("b", 2 * BURST)
    assert not rates.allow("b")
