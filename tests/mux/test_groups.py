"""The roomiest groups are those that counting all of them anew would find, whatever has come, changed and gone."""

from hypothesis import given, settings
from hypothesis import strategies as st

from rollmux.mux.group import Group
from rollmux.mux.groups import Groups
from rollmux.mux.hardware import PAPER_CLUSTER
from tests.builders import job, pinned

SLOS = (1.1, 1.5, 2.0)  # few, so that groups tie
NAMES = ("a", "b", "c", "d", "e")
CHANGES = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from((*SLOS, None, "look"))), max_size=30)


def a_group(name: str, slo: float) -> Group:
    return Group(name, (pinned(job("j", 60, 40, slo=slo), "r0", "t0"),))


@settings(max_examples=200)
@given(changes=CHANGES, count=st.integers(1, 4))
def test_the_roomiest_are_those_that_a_count_of_all_finds(changes: list[tuple[str, object]], count: int) -> None:
    groups = Groups(PAPER_CLUSTER)
    heard: dict[str, None] = {}
    groups.news = heard
    changed = set()
    for name, what in [*changes, ("a", "look")]:
        if isinstance(what, float):
            groups[name] = a_group(name, what)
            changed.add(name)
        elif what is None and name in groups:
            del groups[name]
            changed.add(name)
        elif what == "look":
            # Sorting keeps the order of equals: of these, those that came first.
            expected = sorted(groups.values(), key=lambda group: -group.free_usd(PAPER_CLUSTER))[:count]
            assert list(groups.roomiest(count).items()) == [(group.id, group) for group in expected]
    assert set(heard) == changed


def test_nobody_need_listen() -> None:
    groups = Groups(PAPER_CLUSTER)
    groups["a"] = a_group("a", 1.5)
    del groups["a"]
    assert groups.roomiest(3) == {}
