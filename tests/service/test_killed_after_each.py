"""A controller that is killed after each event comes back as it was (I11), whatever the event, and taken or refused.

The histories are those of the machine, with every kind of event; here a controller with its journal lives through them.
"""

from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from rollmux.mux.image import image
from rollmux.service.controller import Controller
from rollmux.service.journal import Image
from rollmux.service.recovery import recover
from tests.mux.test_histories import RULES, Histories
from tests.service.memory_journal import MemoryJournal
from tests.thorough import examples

pytestmark = pytest.mark.no_cover  # to be traced takes longer than to play


class Killed(Histories):
    """Once a history is over a controller lives through it again, a life for each event."""

    def replay(self) -> None:
        journal, rng = MemoryJournal(), Random(len(self.sent))
        controller, _ = recover(journal, self.cluster, self.make_policy(), RULES)
        never_killed, _ = recover(MemoryJournal(), self.cluster, self.make_policy(), RULES)
        for now, event, commands in self.sent:
            assert controller.tell(now, event) == never_killed.tell(now, event) == commands
            controller = self.next_life(journal, controller)
            assert controller.image() == never_killed.image(), event
            if rng.random() < 1 / 3 and (seq := controller.machine.state.ledger.seq):
                journal.keep(Image(seq, now, controller.image()))

    def next_life(self, journal: MemoryJournal, controller: Controller) -> Controller:
        batch, _, _ = controller.take()
        journal.append(batch)
        state = controller.machine.state
        back, _ = recover(journal, state.cluster, self.make_policy(), RULES)
        assert image(back.machine) == image(controller.machine)
        return back


def test_killed_after_each_event_a_controller_comes_back_as_one_that_was_never_killed() -> None:
    run_state_machine_as_test(
        Killed,
        settings=settings(
            max_examples=examples(400), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
