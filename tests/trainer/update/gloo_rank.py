"""One replica among real processes: `python -m tests.trainer.update.gloo_rank RANK REPLICAS FOLDER`.

Samples are dealt out so that groups are split over the replicas. Prints, for each objective, how far this replica's
gradient is from the synchronous one, and what was trained when.
"""

import json
import sys
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from rollmux.trainer.update import Baseline, GradientSum, Objective, Replicas
from tests.trainer.update.naive import VERSION, Drawn, furthest, gradients, samples, synchronous, tiny

OBJECTIVES = {
    "grpo": Objective.grpo(group_size=3),
    "dapo": Objective.dapo(group_size=3),
    "whitened": Objective(baseline=Baseline.NONE, group_std=False, whiten=True),
}
DRAWN = [
    Drawn(group, float((place * group) % 3 == 1), 1 + group, 1 + place + group)
    for group in range(4)
    for place in range(3)
]


def main() -> None:
    rank, replicas, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, world_size=replicas, rank=rank, timeout=timedelta(seconds=60))
    batch = samples(DRAWN, 0.15)
    for name, objective in OBJECTIVES.items():
        model = tiny()
        mine = GradientSum(model, objective, version=VERSION, token_budget=16)
        for place, sample in enumerate(batch):
            if (place // 5) % replicas == rank:
                mine.add([sample])
        stats = mine.finish(Replicas())
        said = {"objective": name, "furthest": furthest(gradients(model), synchronous(objective, batch))}
        print(
            json.dumps(said | {"streamed": stats.streamed, "late": stats.late, "norm": stats.gradient_norm}), flush=True
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
