"""Turns at the nodes of a group: whatever jobs do, and in whichever order, nobody overtakes and nobody is forgotten.

Three machines do random things and keep a second, simpler book of who asked when and who holds what. Every grant is
held against that book, and after every step nobody may be left waiting who could have been served.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations, permutations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rollmux.mux.order import Claim, Order, Turns, turns_for, urgency
from tests.thorough import examples

NODES = ("a", "b", "c")
GANGS = st.sampled_from([gang for size in (1, 2, 3) for gang in permutations(NODES, size)])
MOST_JOBS = 5


class Book:
    """What an observer who sees requests, grants and releases knows."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Claim, Claim]] = []
        self.waiting: list[Claim] = []  # who still wants nodes, by when it asked
        self.holder: dict[str, Claim] = {}
        self.tails: list[Claim] = []
        self.served: dict[Claim, int] = {}

    @property
    def claims(self) -> list[Claim]:
        return [claim for job in self.jobs for claim in job]

    @property
    def holding(self) -> list[Claim]:
        return [claim for claim in self.claims if self.held(claim)]

    def held(self, claim: Claim) -> list[str]:
        return [node for node, holder in self.holder.items() if holder is claim]

    def wants(self, claim: Claim, node: str) -> bool:
        return claim in self.waiting and node in claim.nodes and self.holder.get(node) is not claim

    def first_come(self, node: str) -> Claim | None:
        return next((claim for claim in self.waiting if self.wants(claim, node)), None)

    def once_a_round(self, node: str) -> Claim | None:
        """Served least so far, then first to have joined; a claim that began on a part of its nodes is not served."""
        pinned = [claim for claim in self.claims if node in claim.nodes and self.holder.get(node) is not claim]
        due = min(pinned, key=lambda claim: (self.served[claim] - self.is_growing(claim), claim.place), default=None)
        return due if due is not None and self.wants(due, node) else None

    def is_growing(self, claim: Claim) -> bool:
        return bool(self.held(claim)) and claim not in self.tails

    def forget(self, claim: Claim) -> None:
        """Nothing is held or waited for any more."""
        for node in self.held(claim):
            del self.holder[node]
        for those in (self.waiting, self.tails):
            if claim in those:
                those.remove(claim)


Joining = tuple[tuple[str, ...], tuple[str, ...], bool, int]
JOINING = st.tuples(GANGS, GANGS, st.booleans(), st.integers(0, 2))


class Turning(RuleBasedStateMachine):
    """Jobs that ask, hold, shrink, make way, finish, give up waiting and leave, in any order; first come, first served.

    Some roam: they hold as many nodes as they want of more.
    """

    order = Order.FIFO

    def __init__(self) -> None:
        super().__init__()
        self.turns: Turns[Claim] = turns_for(self.order)
        self.book = Book()
        self.joined = 0

    def next_at(self, node: str) -> Claim | None:
        """Who may have this node before everybody else."""
        return self.book.first_come(node)

    def join(self, joining: Joining) -> None:
        rollout, train, elastic, wants = joining
        wants = 0 if elastic or self.order is Order.ROUND_ROBIN else min(wants, len(rollout))
        claims = Claim(rollout, (self.joined, 0), elastic, wants), Claim(train, (self.joined, 1))
        self.joined += 1
        self.book.jobs.append(claims)
        for claim in claims:
            self.book.served[claim] = 0
            self.turns.enter(claim)

    @initialize(jobs=st.lists(JOINING, min_size=3, max_size=MOST_JOBS))
    def jobs_meet(self, jobs: list[Joining]) -> None:
        for joining in jobs:
            self.join(joining)

    @precondition(lambda self: self.idle())
    @rule(data=st.data())
    def some_ask(self, data: st.DataObject) -> None:
        for claim in data.draw(st.lists(st.sampled_from(self.idle()), min_size=1, unique_by=id)):
            claim.latest = data.draw(st.integers(0, 3))
            self.book.waiting.append(claim)
            got = self.turns.request(claim)
            if got:
                self.check_grant(claim, got)

    @precondition(lambda self: self.book.holding)
    @rule(data=st.data())
    def one_gives_everything_back(self, data: st.DataObject) -> None:
        claim = data.draw(st.sampled_from(self.book.holding))
        self.book.forget(claim)
        self.check_grants(self.turns.release(claim))

    @precondition(lambda self: self.order is not Order.ROUND_ROBIN and self.whole())
    @rule(data=st.data())
    def one_makes_way(self, data: st.DataObject) -> None:
        claim = data.draw(st.sampled_from(self.whole()))
        self.book.forget(claim)
        granted, last = self.turns.give_way(claim), not claim.roams and len(claim.nodes) > 1
        if last:
            self.check_grants([(other, nodes) for other, nodes in granted if other is not claim])
        self.book.waiting.append(claim)
        self.check_grants([(other, nodes) for other, nodes in granted if not last or other is claim])

    @precondition(lambda self: self.shrinkable())
    @rule(data=st.data())
    def one_may_shrink(self, data: st.DataObject) -> None:
        claim = data.draw(st.sampled_from(self.shrinkable()))
        held, keep = self.book.held(claim), data.draw(st.integers(1, len(claim.nodes)))
        freed = self.turns.freed_by_tail(claim, keep)
        if not freed:
            spare = len(held) - keep
            assert not spare or not any(self.helps(claim, nodes) for nodes in combinations(held, spare))
            return
        assert set(freed) < set(held)
        assert len(held) - len(freed) == keep
        assert self.helps(claim, freed)
        self.book.tails.append(claim)
        for node in freed:
            del self.book.holder[node]
        granted = self.turns.release(claim, freed)
        assert granted
        self.check_grants(granted)

    @precondition(lambda self: self.empty_handed())
    @rule(data=st.data())
    def some_stop_waiting(self, data: st.DataObject) -> None:
        claims = data.draw(st.lists(st.sampled_from(self.empty_handed()), min_size=1, max_size=2, unique_by=id))
        for claim in claims:
            self.book.forget(claim)
        self.check_grants(self.turns.withdraw(claims))

    @precondition(lambda self: len(self.book.jobs) > 3)
    @rule(data=st.data())
    def one_leaves_whatever_it_does(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(self.book.jobs))
        for claim in job:
            self.book.forget(claim)
        self.book.jobs.remove(job)
        self.check_grants(self.turns.leave(job))

    def idle(self) -> list[Claim]:
        return [claim for claim in self.book.claims if claim not in self.book.waiting and not self.book.held(claim)]

    def empty_handed(self) -> list[Claim]:
        return [claim for claim in self.book.waiting if not self.book.held(claim)]

    def shrinkable(self) -> list[Claim]:
        """Who has all its nodes; a tail that has moved does not move again."""
        return [claim for claim in self.book.holding if set(self.book.held(claim)) == set(claim.nodes)]

    def whole(self) -> list[Claim]:
        """Who has all that it wants."""
        return [claim for claim in self.book.holding if len(self.book.held(claim)) == claim.wants]

    def helps(self, tail: Claim, freed: Sequence[str]) -> bool:
        """Whether somebody could start, or grow, if this claim shrank by these nodes."""
        book = self.book
        before, book.holder = book.holder, {n: holder for n, holder in book.holder.items() if n not in freed}
        book.tails.append(tail)
        found = any(self.could_have_more(claim) for claim in book.waiting)
        book.tails.remove(tail)
        book.holder = before
        return found

    def could_have_more(self, claim: Claim) -> bool:
        """Whether this waiting claim could be given a node, or all it needs to start."""
        book = self.book
        if claim.roams:
            return sum(n not in book.holder and self.next_at(n) is claim for n in claim.nodes) >= claim.wants
        if book.held(claim):
            return any(node not in book.holder and self.next_at(node) is claim for node in claim.nodes)
        if any(self.next_at(node) is not claim for node in claim.nodes):
            return False
        taken = [book.holder[node] for node in claim.nodes if node in book.holder]
        if len(taken) == len(claim.nodes):
            return False
        return not taken or (claim.elastic and all(holder in book.tails for holder in taken))

    def check_grants(self, granted: Iterable[tuple[Claim, tuple[str, ...]]]) -> None:
        for claim, nodes in granted:
            self.check_grant(claim, nodes)

    def check_grant(self, claim: Claim, nodes: tuple[str, ...]) -> None:
        book = self.book
        assert nodes
        assert all(book.wants(claim, node) for node in nodes)
        assert not any(node in book.holder for node in nodes), "a node has one holder"
        assert all(self.next_at(node) is claim for node in nodes), "nobody overtakes"
        if claim.roams:
            assert len(nodes) == claim.wants
            book.served[claim] += 1
        elif not book.held(claim):
            for node in claim.nodes:
                beside_a_tail = claim.elastic and book.holder.get(node) in book.tails
                assert node in nodes or beside_a_tail, "all nodes together, but for an elastic start beside a tail"
            book.served[claim] += 1
        book.holder.update(dict.fromkeys(nodes, claim))
        if len(book.held(claim)) == claim.wants:
            book.waiting.remove(claim)

    @invariant()
    def nobody_waits_who_could_be_served(self) -> None:
        assert not [claim for claim in self.book.waiting if self.could_have_more(claim)]

    @invariant()
    def both_books_agree(self) -> None:
        pinned = {node for claim in self.book.claims for node in claim.nodes}
        assert self.turns.holders == {node: self.book.holder.get(node) for node in pinned}
        for claim in self.book.claims:
            assert set(claim.held) == set(self.book.held(claim))
            assert claim.tail == (claim in self.book.tails)


class FirstComeFirstServed(Turning):
    """Here jobs may also join while others are at work."""

    @precondition(lambda self: len(self.book.jobs) < MOST_JOBS)
    @rule(joining=JOINING)
    def one_joins(self, joining: Joining) -> None:
        self.join(joining)

    @invariant()
    def nobody_waits_for_nobody(self) -> None:
        assert self.book.holder or not self.book.waiting


class MostUrgentFirst(FirstComeFirstServed):
    """The same by urgency."""

    order = Order.URGENCY

    def next_at(self, node: str) -> Claim | None:
        return min((claim for claim in self.book.waiting if self.book.wants(claim, node)), key=urgency, default=None)


class StrictRounds(Turning):
    """The same under strict rounds, where a node waits for the claim whose turn it is."""

    order = Order.ROUND_ROBIN

    def next_at(self, node: str) -> Claim | None:
        return self.book.once_a_round(node)

    @invariant()
    def no_claim_on_a_node_is_ever_two_rounds_ahead_of_another(self) -> None:
        for node in NODES:
            rounds = [self.book.served[claim] for claim in self.book.claims if node in claim.nodes]
            assert not rounds or max(rounds) - min(rounds) <= 1


@given(here=st.integers(0, 20), elsewhere=st.integers(0, 20), nodes=st.sampled_from((("a",), ("a", "b"))))
def test_a_newcomer_to_strict_rounds_waits_for_one_round_however_many_others_have_done(
    here: int, elsewhere: int, nodes: tuple[str, ...]
) -> None:
    turns: Turns[Claim] = turns_for(Order.ROUND_ROBIN)
    here_before, elsewhere_before, newcomer = Claim(("a",), (0, 0)), Claim(("b",), (1, 0)), Claim(nodes, (2, 0))
    for claim, rounds in ((here_before, here), (elsewhere_before, elsewhere)):
        turns.enter(claim)
        for _ in range(rounds):
            assert turns.request(claim) == claim.nodes
            turns.release(claim)
    turns.enter(newcomer)
    turns.request(newcomer)
    for claim in (here_before, elsewhere_before):
        if not newcomer.held:
            assert turns.request(claim) == claim.nodes
            turns.release(claim)
    assert newcomer.held == nodes


TestFirstComeFirstServed = FirstComeFirstServed.TestCase
TestMostUrgentFirst = MostUrgentFirst.TestCase
TestStrictRounds = StrictRounds.TestCase
for case in (TestFirstComeFirstServed, TestMostUrgentFirst, TestStrictRounds):
    case.settings = settings(max_examples=examples(150), stateful_step_count=40)
