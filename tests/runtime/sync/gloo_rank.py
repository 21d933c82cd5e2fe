"""One rank of an exchange whose pieces go by gloo: `python -m tests.runtime.sync.gloo_rank NUMBER FOLDER DEVICE`.

Number 0 sends, the others receive. Each prints what came of it.
"""

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from rollmux.runtime.sync import Receiver, Sender
from rollmux.runtime.sync.channel import Party
from rollmux.runtime.sync.transports.distributed import carrying
from tests.runtime.sync.models import TOKEN, filling, holds, small, whole

VERSIONS = (1, 2, 3)
CHANGED_BY = 0.02


def main() -> None:
    number, folder, device = int(sys.argv[1]), Path(sys.argv[2]), torch.device(sys.argv[3])
    plan = small(senders=(1, 1), receivers=(1, 2))
    numbers: dict[Party, int] = {("sender", 0): 0, ("receiver", 0): 1, ("receiver", 1): 2}
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", world_size=3, rank=number)
    carry = carrying(plan, numbers, device)
    if number == 0:
        sender = Sender(plan, 0, folder / "sender", TOKEN, delta=True, carry=carry)
        addresses = [address_of(folder, rank) for rank in plan.exchange.receivers.ranks]
        for version in VERSIONS:
            sender.publish(version, filling(plan, plan.exchange.senders, 0, whole(plan, version, CHANGED_BY)))
            tally = sender.sync(version, addresses)
            print(json.dumps({"plain": tally.plain, "delta": tally.delta, "kept": tally.kept}), flush=True)
    else:
        rank = number - 1
        receiver = Receiver(plan, rank, folder / f"receiver-{rank}", TOKEN, ["tcp://127.0.0.1:0"], carry=carry)
        (folder / f"address-{rank}.new").write_text(receiver.addresses[0])
        (folder / f"address-{rank}.new").rename(folder / f"address-{rank}")
        served = receiver.wait_for(VERSIONS[-1], 60)
        print(json.dumps(served and holds(plan, receiver, whole(plan, VERSIONS[-1], CHANGED_BY))), flush=True)
    dist.barrier()  # a receiver may serve what its leader has not yet been told of
    (sender if number == 0 else receiver).close()
    dist.destroy_process_group()


def address_of(folder: Path, rank: int) -> tuple[str, ...]:
    while not (folder / f"address-{rank}").exists():
        time.sleep(0.01)
    return ((folder / f"address-{rank}").read_text(),)


if __name__ == "__main__":
    main()
