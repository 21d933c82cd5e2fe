"""A follower's side: an engine or a replica of the learner, which the leader drives, and a part in every phase.

Invariant: the engine or replica works only while this process has the lease of its phase, and the leader can't say that
the nodes are free before this process says so.
"""

import logging
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

from rollmux.client import AlreadyCommitted, LeaseLost, Mux, Phase
from rollmux.runtime.sync import Receiver, SyncFailed
from rollmux.runtime.sync.channel import Channel
from rollmux.trainer.device import Berth
from rollmux.trainer.errors import RanksApart
from rollmux.trainer.ranks.landing import plan_for
from rollmux.trainer.ranks.lead import JOIN_S
from rollmux.trainer.ranks.meeting import host_memory, reach, token
from rollmux.trainer.ranks.orders import FOLLOW, Bye, Enter, Joined, Order, Over, hear, say
from rollmux.trainer.ranks.roles import Roles
from rollmux.trainer.ranks.served import EngineHere, Make, Post, ReplicaHere, Served
from rollmux.trainer.update import Objective

log = logging.getLogger("rollmux")


def follow(mux: Mux, folder: Path, roles: Roles, model: Any, berth: Berth, make: Make, objective: Objective) -> None:
    """Follows the leader until the job is done. The model is in its berth only in phases. `make` makes an engine over
    the model with weights of a version; a replica climbs the objective.
    """
    kin = mux.kin
    with ExitStack() as resources:
        landing = resources.enter_context(host_memory())
        plan = plan_for(model, roles.engines, roles.replicas)
        receiver = Receiver(plan, kin.rank, landing, token(kin), [f"tcp://{kin.host}:0"])
        resources.callback(receiver.close, keep=False)
        leader = reach(folder, kin, FOLLOW, JOIN_S, Event())
        resources.callback(leader.close)
        say(leader, Joined(receiver.addresses))
        post = Post(folder, kin, leader, receiver, model, berth)
        served = EngineHere(post, make) if roles.draws else ReplicaHere(post, objective)
        resources.callback(served.close)
        served.start()
        nodes = (*mux.rollout_nodes, *mux.train_nodes)
        mux.runtime_hook("shrink")(lambda keep, free: served.leaves(nodes[kin.rank] in free))
        told = _Told(leader)
        mux.runtime_hook("lost")(told.lose)
        try:
            _obey(mux, told, served)
        except SyncFailed as trouble:
            raise served.failed or RanksApart(f"the process that leads the job is gone: {trouble}") from trouble


def _obey(mux: Mux, told: "_Told", served: Served) -> None:
    while not isinstance(order := told.order(), Bye):
        if isinstance(order, Enter):
            _take_part(mux, order, told, served)


def _take_part(mux: Mux, enter: Enter, told: "_Told", served: Served) -> None:
    """Takes part in a phase until the leader's work in it is over. If this process loses the lease it gives it back at
    once, while the leader may still work, and then takes part in the next one: nothing counts before the leader, too,
    has finished.
    """
    state, is_over = served if enter.kind == served.kind else None, False
    while not is_over:
        phase = mux.phase(enter.kind, state=state, iteration=enter.step)
        try:
            with phase:
                served.works.set()
                try:
                    is_over = told.over(phase)
                finally:
                    served.works.clear()
        except AlreadyCommitted:  # under an earlier lease: the leader's message of that is on its way
            is_over = told.over(phase)
        except LeaseLost:
            told.check()
            log.info("%s(%d) is done again", enter.kind, enter.step)


class _Told:
    """The leader's orders, in turn. A `None` among them means that a lease was lost (this one, or an earlier one, heard
    of late), or that the leader is gone.
    """

    def __init__(self, leader: Channel) -> None:
        self._leader = leader
        self._said = SimpleQueue[Order | None]()
        self._gone: SyncFailed | None = None
        Thread(target=self._listen, name="rollmux-orders", daemon=True).start()

    def lose(self, reason: str) -> None:
        self._said.put(None)

    def next(self) -> Order | None:
        said = self._said.get()
        if said is None:
            self.check()
        return said

    def check(self) -> None:
        """Raises the error by which the leader was lost, if it is gone."""
        if self._gone is not None:
            raise self._gone

    def over(self, phase: Phase) -> bool:
        """Waits for the end of the leader's work under this phase's lease or a later one; False if this lease is lost.

        If work ended under an earlier lease the leader asks for the phase again: this process is in that one already.
        """
        epoch = phase.epoch
        while (said := self.next()) is not None or not phase.lost:
            if isinstance(said, Over) and said.epoch >= epoch:
                return True
        return False

    def order(self) -> Order:
        while (said := self.next()) is None:
            pass
        return said

    def _listen(self) -> None:
        try:
            while True:
                self._said.put(hear(self._leader, Enter, Over, Bye))
        except SyncFailed as trouble:
            self._gone = trouble
            self._said.put(None)
