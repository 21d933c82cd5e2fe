"""Most groups are not looked into, and every answer is the one that a look into all of them would give."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmux.mux.group import Group
from rollmux.mux.hardware import Cluster
from rollmux.mux.job import JobSpec
from rollmux.mux.order import Order
from rollmux.mux.placed import ROLLOUT, TRAIN, Member, Placement
from rollmux.mux.policies import rollmux, seeker, ways
from rollmux.mux.policies.attempt import Widening
from rollmux.mux.policies.rollmux import RollmuxPolicy
from rollmux.mux.policies.ways import Newcomer, Open, Place, Way, Wish
from tests.builders import any_jobs, group, groups_of, job, pinned, snapshot
from tests.thorough import examples

JOBS = any_jobs("new", most_nodes=(3, 2), most_gb=300)
GROUPS = groups_of(any_jobs(most_nodes=(3, 2), most_gb=300), most=3, orders=st.just(Order.URGENCY))


def renamed(group: Group, number: int) -> Group:
    """The same group beside others: with a name, jobs and nodes of its own."""

    def own(nodes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple([f"{node}-{number}" for node in nodes])

    members = [
        Member.of(
            replace(m.job, id=f"{m.job.id}-{number}"), Placement(own(m.placement.rollout), own(m.placement.train))
        )
        for m in group.members
    ]
    return Group(f"g{number}", tuple(members), group.order)


def looking_into_all(newcomer: Newcomer, added: Widening, candidates: list[Open], cluster: Cluster) -> Iterator[Place]:
    """All ways of all groups, from the fullest group on, and of these the likeliest first."""
    wish = Wish.of(newcomer, added)
    fullest_first = sorted(candidates, key=lambda each: each[0].free_usd(cluster))
    found: list[tuple[Group, Way]] = [(each[0], way) for each in fullest_first for way in ways._ways(wish, each)]
    for of, way in sorted(found, key=lambda each: each[1].tight):
        yield from ways._of_way(wish, of, way)


@settings(max_examples=examples(300))
@given(groups=st.lists(GROUPS, max_size=6), job=JOBS)
def test_to_look_into_the_likeliest_groups_alone_changes_no_decision(groups: list[Group], job: JobSpec) -> None:
    before = snapshot(*(renamed(each, i) for i, each in enumerate(groups)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rollmux, "places", looking_into_all)
        expected = RollmuxPolicy().place(job, before)
    assert repr(RollmuxPolicy().place(job, before)) == repr(expected)


@settings(max_examples=examples(1500))
@given(group=GROUPS, job=JOBS, room=st.sampled_from((200, 400, 1000)))
def test_what_holds_of_all_nodes_says_what_a_look_at_each_would_say(group: Group, job: JobSpec, room: int) -> None:
    newcomer = Member.of(job, Placement((), ()))
    for kind, outline in ((ROLLOUT, group.glance.rollout), (TRAIN, group.glance.train)):
        phase = seeker.Seeker(newcomer, kind, group.order, room * 10**9)
        tight, nodes = phase.nodes(group)
        assert not nodes or phase.least_tight(outline.share) <= tight
        if outline.share + phase.need <= seeker.MOST:
            assert phase.finds(group, outline) == bool(nodes)
        of_kind = group.train_nodes if kind is TRAIN else group.rollout_nodes
        needed = {node: group.uses[node].host_bytes_with(job.phase(kind)) for node in of_kind}
        tenant = newcomer.tenant(kind, group.order)
        short = [n for n in of_kind if needed[n] > room * 10**9 and group.uses[n].spare_with(tenant) >= 0]
        expected = (short[-1], needed[short[-1]], room * 10**9) if short else None
        assert phase.short_of_memory(group, outline) == expected


def test_a_group_whose_turn_does_not_come_is_not_looked_into(looked_into: list[str]) -> None:
    """Two groups would be crowded with the job, and come first where nothing else is known: they are the fullest."""

    def training_for(number: int, train_s: float) -> Group:
        tenant = replace(job(f"j{number}", 100, train_s, slo=1.25), sync_s=400 - train_s)  # 625 s at most
        return group(f"g{number}", pinned(tenant, f"r{number}", f"t{number}"), order=Order.URGENCY)

    crowded, roomy = (training_for(1, 360), training_for(2, 350)), (training_for(3, 20), training_for(4, 10))
    new = replace(job("new", 20, 100, slo=1.5), sync_s=80.0)
    assert 0.8 < 350 / 625 + new.train.planned_s / new.limit_s < 1, "the crowded have the time too"
    assert RollmuxPolicy().place(new, snapshot(*crowded, *roomy)).plan is not None
    assert set(looked_into) == {"g3", "g4"}
