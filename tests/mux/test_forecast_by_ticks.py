"""First come, first served, written down once more: a clock that ticks milliseconds, a line, and who holds which node.

Neither code nor data structures are those of `mux/play.py` and `mux/order.py`, and both must come to the same.
"""

from collections.abc import Sequence

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rollmux.mux.forecast import Forecaster
from rollmux.mux.group import Group
from rollmux.mux.job import JobSpec, PhaseKind, PhaseSpec
from rollmux.mux.placed import Member, Placement

ROLLOUT, TRAIN, SYNC = PhaseKind
Step = tuple[int, PhaseKind]


class Ticks:
    """A group from the moment at which all its jobs begin, in the order given."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = members
        self.done = {(i, kind): 0 for i in range(len(members)) for kind in PhaseKind}
        self.line: list[Step] = []
        self.left_ms: dict[Step, int] = {}  # of what is under way
        self.held: dict[str, Step] = {}
        pinned = [node for m in members for nodes in (m.placement.rollout, m.placement.train) for node in nodes]
        self.shared = {node for node in pinned if pinned.count(node) > 1}
        for i in range(len(members)):
            self.go_on(i)

    def nodes(self, step: Step) -> tuple[str, ...]:
        return self.members[step[0]].placement.nodes(step[1])

    def takes_ms(self, step: Step) -> int:
        phase = self.members[step[0]].job.phase(step[1])
        switch_s = 0.0 if self.shared.isdisjoint(self.nodes(step)) else phase.switch_s
        return round(1000 * (phase.duration_s + switch_s))

    def go_on(self, i: int) -> None:
        """The job lines up for whatever it may do next."""
        rolled, trained, synced = [self.done[i, kind] for kind in PhaseKind]
        busy = {kind for j, kind in (*self.line, *self.left_ms) if j == i}
        if rolled > trained == synced and TRAIN not in busy:
            self.line_up((i, TRAIN))
        if rolled - synced <= self.members[i].job.staleness and ROLLOUT not in busy:
            self.line_up((i, ROLLOUT))

    def line_up(self, step: Step) -> None:
        self.line.append(step)
        self.serve()

    def serve(self) -> None:
        """Who comes first is served first; who waits for several nodes keeps those behind it from all of them."""
        taken = set(self.held)
        for step in list(self.line):
            nodes = self.nodes(step)
            if taken.isdisjoint(nodes):
                self.line.remove(step)
                self.left_ms[step] = self.takes_ms(step)
                self.held.update(dict.fromkeys(nodes, step))
            taken.update(nodes)

    def end(self, step: Step) -> None:
        i, kind = step
        self.left_ms.pop(step, None)
        self.done[step] += 1
        self.held = {node: holder for node, holder in self.held.items() if holder != step}
        self.serve()
        sync_ms = round(1000 * self.members[i].job.sync_s)
        if kind is TRAIN and sync_ms:
            self.left_ms[i, SYNC] = sync_ms
        elif kind is TRAIN:
            self.end((i, SYNC))
        else:
            self.go_on(i)

    def tick(self) -> None:
        """What ends together does so by job, then by phase."""
        self.left_ms = {step: left - 1 for step, left in self.left_ms.items()}
        for step in self.done:
            if self.left_ms.get(step) == 0:
                self.end(step)

    def paces_s(self) -> list[float] | None:
        """How long an iteration takes, once all is as it was before; None where that does not come soon."""
        seen: dict[object, tuple[int, list[int]]] = {}
        for now in range(4000):
            synced = [self.done[i, SYNC] for i in range(len(self.members))]
            ahead = tuple(self.done[i, ROLLOUT] - n for i, n in enumerate(synced))
            then, before = seen.setdefault((tuple(self.line), *self.left_ms.items(), ahead), (now, synced))
            if then < now:
                return [(now - then) / 1000 / (n - m) for n, m in zip(synced, before, strict=True)]
            self.tick()
        return None


@st.composite
def members(draw: st.DrawFn, name: str) -> Member:
    """A job that holds one or two nodes a phase, some of them for both kinds."""
    places = [st.lists(st.sampled_from(nodes), min_size=1, max_size=2, unique=True) for nodes in ("abc", "axy")]
    rollout, train = (tuple(draw(place)) for place in places)
    ms = st.integers(1, 20).map(lambda ms: ms / 1000)
    some_ms = st.one_of(st.just(0.0), ms)
    rolls, trains = (PhaseSpec(draw(ms), len(nodes), load_s=draw(some_ms)) for nodes in (rollout, train))
    job = JobSpec(name, rolls, trains, 9.0, sync_s=draw(some_ms), staleness=draw(st.sampled_from((0, 0, 0, 1, 2))))
    return Member.of(job, Placement(rollout, train))


@settings(max_examples=150)
@given(drawn=st.tuples(*map(members, "klmn")), count=st.integers(1, 4))
def test_a_forecast_is_the_slower_of_what_ticks_from_two_opposite_starts_come_to(
    drawn: tuple[Member, ...], count: int
) -> None:
    group = Group("g", drawn[:count])
    forecast = Forecaster().forecast(group)
    there, back = Ticks(group.members).paces_s(), Ticks(group.members[::-1]).paces_s()
    assume(forecast.exact and there is not None and back is not None)
    assert there is not None
    assert back is not None
    slower = [max(pair) for pair in zip(there, back[::-1], strict=True)]
    assert [round(s * 1e9) for s in forecast.iteration_s] == [round(s * 1e9) for s in slower]
