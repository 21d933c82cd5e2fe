"""How fast a model decodes and prefills on a kind of device: a roofline, and fixed costs that no roofline shows.

A decode step reads all weights and the keys and values of every running request, or computes for all of them if that
takes longer. To this the fixed costs are added: kernel launches, the sampler, and the all-reduces of a parallel group.
"""

from dataclasses import dataclass

# Shares of the peak that kernels reach: memory in decode, arithmetic in decode and in prefill.
MEMORY_REACHED, DECODE_REACHED, PREFILL_REACHED = 0.75, 0.35, 0.5
# Calibrated on the table of eta sensitivity in RollPacker (arXiv 2509.21009): the time of a step beside the weights, of
# an all-reduce, and of a request's part in scheduling, sampling and detokenising. Used unchanged for all models.
STEP_OVERHEAD_S = 0.001
ALL_REDUCE_S = 53e-6
PER_REQUEST_S = 100e-6
# The part of a device's memory that the engine may use, for weights, keys and values.
MEMORY_FOR_ENGINE = 0.85


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator, as in its data sheet."""

    name: str
    memory_bytes: float
    memory_bytes_per_s: float
    flops: float
    per_server: int = 8
    host_bytes_per_s: float = 50e9


@dataclass(frozen=True, slots=True)
class Model:
    """One language model, as in its configuration."""

    name: str
    parameters: float
    layers: int
    kv_bytes_per_token: float

    @property
    def weight_bytes(self) -> float:
        """The bytes of the weights in bfloat16."""
        return 2 * self.parameters


H800 = Device("H800", 80e9, 3.35e12, 990e12)
H20 = Device("H20", 96e9, 4.0e12, 148e12)
DEVICES = {device.name: device for device in (H800, H20)}


def _qwen(name: str, billions: float, layers: int, kv_heads: int) -> Model:
    return Model(name, billions * 1e9, layers, 2 * 2 * layers * kv_heads * 128)


MODELS = {
    model.name: model
    for model in (
        _qwen("Qwen2.5-7B", 7.6, 28, 4),
        _qwen("Qwen2.5-14B", 14.8, 48, 8),
        _qwen("Qwen2.5-32B", 32.8, 64, 8),
        _qwen("Qwen3-8B", 8.2, 36, 8),
    )
}


@dataclass(frozen=True, slots=True)
class Rates:
    """One replica of a model over a tensor-parallel group: what a decode step costs, and its room."""

    base_s: float  # reading the weights, launching, reducing
    compute_s: float  # a request's arithmetic
    sample_s: float  # a request's share of the work that is done request by request
    kv_token_s: float  # reading the keys and values of one token
    prefill_token_s: float
    room_tokens: int
    weights_s: float

    def step_s(self, running: int) -> float:
        """The time of a step without reading keys and values."""
        return self.base_s + running * self.sample_s + max(0.0, running * self.compute_s - self.weights_s)


def rates(model: Model, device: Device, tp: int) -> Rates:
    """The rates of one replica on `tp` devices."""
    memory = device.memory_bytes_per_s * MEMORY_REACHED * tp
    weights_s = model.weight_bytes / memory
    reduce_s = 2 * model.layers * ALL_REDUCE_S * 2 * (tp - 1) / tp  # around a ring
    room = device.memory_bytes * MEMORY_FOR_ENGINE * tp - model.weight_bytes
    return Rates(
        base_s=weights_s + STEP_OVERHEAD_S + reduce_s,
        compute_s=2 * model.parameters / (device.flops * DECODE_REACHED * tp),
        sample_s=PER_REQUEST_S,
        kv_token_s=model.kv_bytes_per_token / memory,
        prefill_token_s=2 * model.parameters / (device.flops * PREFILL_REACHED * tp),
        room_tokens=max(0, int(room / model.kv_bytes_per_token)),
        weights_s=weights_s,
    )
