"""The shipped setups: RollPacker's evaluation (arXiv 2509.21009). Figures that the paper lacks are calibrated.

Model, devices, caps, batch sizes and parallel sizes are the paper's. Sandbox workers, the judge's speed, the share of
the peak that training reaches and the sync time are fitted to the reported steps of 7B and 14B
(`benchmarks/rollpacker_tables.py` compares all of it with the paper). 32B is scaled from 14B, and no constant was
fitted to its figures.
"""

from dataclasses import replace

from rollmux.sim.job.lengths import LengthQuantiles
from rollmux.sim.job.machine import H800, MODELS
from rollmux.sim.job.setup import Domain, Reward, Scoring, Setup, Training

# Figure 2a: response lengths of Qwen2.5-14B at a cap of 16,384 tokens. From 4,096 tokens on it shows only two shares.
_SHARES = (0.005, 0.02, 0.05, *(n / 100 for n in range(10, 90, 5)), 0.88, 0.9, 0.92, 0.94, 0.96, 0.98, 0.99)
_MATH = (
    9, 59, 150, 243, 309, 364, 414, 464, 511, 558, 610, 660, 718, 785, 870, 981, 1128, 1362, 1752, 2179, 2554, 3050,
    3718,
)  # fmt: skip
_CODE = (
    159, 232, 286, 348, 400, 442, 481, 517, 554, 590, 625, 663, 700, 747, 799, 864, 944, 1062, 1261, 1443, 1620, 1923,
    2383, 3361,
)  # fmt: skip
_JUDGED = (
    3, 8, 12, 91, 177, 242, 295, 340, 389, 432, 476, 520, 564, 607, 653, 701, 755, 826, 914, 990, 1063, 1155, 1311,
    1614, 2577, 3797,
)  # fmt: skip


def _lengths(tokens: tuple[int, ...], above_4096: float, at_cap: float) -> LengthQuantiles:
    return LengthQuantiles(tokens, _SHARES[: len(tokens)], (4096, above_4096), (16384, at_cap))


EPOCH = 4096
DOMAINS = (
    Domain("math", 42, EPOCH, _lengths(_MATH, 0.05, 0.0099), Reward.RULE),
    Domain("code", 42, EPOCH, _lengths(_CODE, 0.029, 0.0091), Reward.SANDBOX),
    Domain("judge", 44, EPOCH, _lengths(_JUDGED, 0.008, 0.0018), Reward.JUDGE),
)

_7B = Setup(
    name="7B/8k",
    model=MODELS["Qwen2.5-7B"],
    device=H800,
    gpus=16,
    tp=1,
    cap=8192,
    domains=DOMAINS,
    scoring=Scoring(sandbox_workers=32, judge_s=0.36),
    training=Training(0.2, 5.0),
    sync_s=5.0,
    wake_s=10.0,
)
_14B = Setup(
    name="14B/16k",
    model=MODELS["Qwen2.5-14B"],
    device=H800,
    gpus=32,
    tp=2,
    cap=16384,
    domains=DOMAINS,
    scoring=Scoring(sandbox_workers=120, judge_s=0.14),
    training=Training(0.12, 20.0),
    sync_s=15.0,
    wake_s=25.0,
)
_32B = replace(_14B, name="32B/32k", model=MODELS["Qwen2.5-32B"], gpus=64, tp=4, cap=32768, sync_s=30.0, wake_s=50.0)

SETUPS = {setup.name: setup for setup in (_7B, _14B, _32B)}
