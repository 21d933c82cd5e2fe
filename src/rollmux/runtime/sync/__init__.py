"""Weight sync: one copy over the slow link, shared within the receiving cluster, flipped when all of it is there.

plan = make_plan(Exchange(tensors, senders=Side(...), receivers=Side(...)))
receiver = Receiver(plan, rank, folder, token, ["tcp://10.0.0.7:0"])       # one for each rank that serves
sender = Sender(plan, rank, folder, token)                                 # one for each rank that trains
sender.publish(version, from_torch(plan, shards)); sender.sync(epoch, addresses_of_all_receivers)
"""

from rollmux.runtime.sync.errors import Broken, Corrupt, HalfServed, Refused, StillRead, SyncFailed
from rollmux.runtime.sync.give import Tally
from rollmux.runtime.sync.layout import Layout, TensorSpec
from rollmux.runtime.sync.plan import Exchange, Piece, Place, Plan, Side, make_plan
from rollmux.runtime.sync.reader import Weights
from rollmux.runtime.sync.receive import Receiver
from rollmux.runtime.sync.send import Sender
from rollmux.runtime.sync.shelf import Mark

__all__ = [
    "Broken",
    "Corrupt",
    "Exchange",
    "HalfServed",
    "Layout",
    "Mark",
    "Piece",
    "Place",
    "Plan",
    "Receiver",
    "Refused",
    "Sender",
    "Side",
    "StillRead",
    "SyncFailed",
    "Tally",
    "TensorSpec",
    "Weights",
    "make_plan",
]
