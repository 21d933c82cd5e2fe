"""What a batch spares a judge whose layers are streamed from host memory: they come once for all its texts."""

from functools import cache

from rollmux.packer.judge import JudgeBudget, JudgeModel, JudgePlan
from rollmux.sim.job.machine import MODELS, PREFILL_REACHED, Device

# The judge, the text that it reads (a prompt, a response and the question), and what the actor leaves it of a device.
JUDGE, TEXT_TOKENS, FREE_BYTES = MODELS["Qwen2.5-7B"], 1200, 4 * 10**9


@cache
def part_of_time(device: Device, batch: int) -> float:
    """A text's time in a batch, over its time alone."""
    return _pass_s(device, batch) / batch / _pass_s(device, 1)


def _pass_s(device: Device, batch: int) -> float:
    model = JudgeModel(JUDGE.layers, round(JUDGE.weight_bytes / JUDGE.layers), 2 * JUDGE.parameters / JUDGE.layers)
    budget = JudgeBudget(model, device.host_bytes_per_s, device.flops * PREFILL_REACHED)
    plan = budget.plan(TEXT_TOKENS, FREE_BYTES, batch)
    assert isinstance(plan, JudgePlan), "the judge's buffers fit beside any actor"
    return plan.pass_s
