"""The time that batches save a judge whose layers are streamed from host memory: once for all texts of a batch."""

from functools import cache

from rollmux.packer.judge import JudgeBudget, JudgeModel, JudgePlan
from rollmux.sim.job.machine import MODELS, PREFILL_REACHED, Device

# The judge, the tokens that it reads (a prompt, a response and the question), and the memory of a device that the actor
# leaves to it.
JUDGE, TEXT_TOKENS, FREE_BYTES = MODELS["Qwen2.5-7B"], 1200, 4 * 10**9


@cache
def part_of_time(device: Device, batch: int) -> float:
    """A text's time in a batch, divided by its time alone."""
    return _pass_s(device, batch) / batch / _pass_s(device, 1)


def _pass_s(device: Device, batch: int) -> float:
    model = JudgeModel(JUDGE.layers, round(JUDGE.weight_bytes / JUDGE.layers), 2 * JUDGE.parameters / JUDGE.layers)
    budget = JudgeBudget(model, device.host_bytes_per_s, device.flops * PREFILL_REACHED)
    plan = budget.plan(TEXT_TOKENS, FREE_BYTES, batch)
    assert isinstance(plan, JudgePlan), "the judge's buffers fit beside any actor"
    return plan.pass_s
