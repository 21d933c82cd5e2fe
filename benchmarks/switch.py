"""Warm starts against cold ones, and how near to a bare copy of memory they come.

*Moves*: load and offload of SmolLM2-135M's rollout and training state, each in turn with a bare copy of the same bytes
between the same two pieces of memory: same threads, and the target in the same condition (working memory that the
kernel has just taken back, or may take; host memory that is mapped). *Starts*: a new process that imports, reads its
state from files and takes a step, against a living one that loads it from the host's memory and takes the same step.
*Rotation*: three states take turns in one process; each is compared with itself after every turn, and the memory of
all is counted.

Weights are random: their values make no difference to any of this.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils.logging import disable_progress_bar

from benchmarks.figures.goals import Goal, show
from benchmarks.harness import ROOT, Row, arguments, record, seconds, table
from rollmux.runtime.residency import Budget, CpuMemory, Memory, Resident
from rollmux.runtime.residency.checksum import checksum
from rollmux.runtime.residency.cuda import CudaMemory

GOAL_COPY, GOAL_GPU, GOAL_START = 0.8, 0.9, 40.0
LIMIT_BYTES = 12 * 10**9
PROMPT = 16
# The model's published configuration.
SMOLLM2 = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
}
SMALL = SMOLLM2 | {"num_hidden_layers": 4, "vocab_size": 8192}
TINY = SMOLLM2 | {"num_hidden_layers": 1, "vocab_size": 1024}

# What a job does that starts in a new process. It says when its state is there, and when it has taken a step.
COLD = """
import sys
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar
disable_progress_bar()
sys.path.insert(0, sys.argv[4])
from benchmarks.switch import step
torch.set_num_threads(int(sys.argv[3]))
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
optimizer = None
if sys.argv[2] == "train":
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    kept = load_file(sys.argv[1] + "/moments.safetensors")
    for number, parameter in enumerate(model.parameters()):
        names = ("step", "exp_avg", "exp_avg_sq")
        optimizer.state[parameter] = {name: kept[f"{number}.{name}"] for name in names}
print("ready", flush=True)
step(model, optimizer)
print("stepped", flush=True)
"""


def built(
    shape: dict[str, Any], train: bool, device: str = "cpu"
) -> tuple[LlamaForCausalLM, torch.optim.Optimizer | None]:
    """A model, with gradients and moments if it is to be trained."""
    model = LlamaForCausalLM(LlamaConfig(**shape))
    nn.Module.to(model, torch.device(device))
    if not train:
        return model.requires_grad_(False), None
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    step(model, optimizer)
    return model, optimizer


def step(model: nn.Module, optimizer: torch.optim.Optimizer | None) -> Tensor:
    """The first thing that a phase does: a prompt's next token, or a training step whose gradients stay."""
    tokens = torch.arange(PROMPT, device=next(model.parameters()).device).reshape(1, -1)
    if optimizer is None:
        with torch.no_grad():
            return torch.as_tensor(model(tokens).logits[0, -1].argmax())
    optimizer.zero_grad(set_to_none=False)
    loss = model(tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    return torch.as_tensor(loss.detach())


# -- moves -----------------------------------------------------------------------------------------------------------


class Lane:
    """One state, and the bare copies between the same pieces of memory."""

    def __init__(self, budget: Budget, shape: dict[str, Any], train: bool, memory: Memory) -> None:
        self.memory = memory
        self.resident = Resident(built(shape, train, memory.device.type), name="moves", budget=budget, memory=memory)
        self.resident.offload()
        self.resident.load()

    def touch(self) -> None:
        """Changes something in each row, so that all of it has to be copied back."""
        flat = self.resident.device.flat
        assert flat is not None
        flat.view(torch.int64)[::512].bitwise_xor_(1)

    def slots(self) -> tuple[Tensor, Tensor]:
        """The host's memory that holds, and the one for the next version."""
        kept = self.resident.kept
        assert kept is not None
        assert kept.record is not None
        halves = kept.host.data.view(2, -1)
        now = kept.record.slots[0]
        return halves[now], halves[1 - now]

    def bare_load(self) -> float:
        """One copy into working memory that was just let go of, which is let go of again."""
        source, target = self.slots()[0], self.memory.allocate(self.resident.nbytes)
        taken = self.copied(target, source)
        self.memory.expect(target.numel(), in_one=True)
        del target
        self.memory.release()
        return taken

    def bare_offload(self) -> float:
        """One copy into mapped memory, without giving anything back."""
        source, target = self.resident.device.flat, self.slots()[1]
        assert source is not None
        return self.copied(target, source)

    def copied(self, target: Tensor, source: Tensor) -> float:
        def copy() -> None:
            target.copy_(source, non_blocking=True)
            if self.memory.device.type == "cuda":
                torch.cuda.synchronize()

        return seconds(copy)

    def turn(self) -> dict[str, float]:
        """Bare and ours in alternation; begins and ends on the device."""
        self.touch()
        bare_offload, offload = self.bare_offload(), seconds(self.resident.offload)
        bare_load, load = self.bare_load(), seconds(self.resident.load)
        clean = seconds(self.resident.offload)
        self.resident.load()
        return {
            "bare_load": bare_load,
            "load": load,
            "bare_offload": bare_offload,
            "offload": offload,
            "offload_unchanged": clean,
        }


def moves(args: Namespace, budget: Budget, train: bool, memory: Memory, told: str) -> dict[str, object]:
    lane = Lane(budget, TINY if args.quick else SMOLLM2, train, memory)
    lane.turn()
    turns = [lane.turn() for _ in range(3 if args.quick else args.rounds)]
    nbytes = lane.resident.nbytes
    lane.resident.close()
    per_s = {name: nbytes / median(turn[name] for turn in turns) / 1e9 for name in turns[0]}
    return {
        "state": "train" if train else "rollout",
        "working memory": told,
        "MB": nbytes / 1e6,
        **{f"{name} GB/s": value for name, value in per_s.items()},
        "load/bare": median(turn["bare_load"] / turn["load"] for turn in turns),
        "offload/bare": median(turn["bare_offload"] / turn["offload"] for turn in turns),
    }


# -- starts ----------------------------------------------------------------------------------------------------------


def written(shape: dict[str, Any], folder: Path) -> None:
    """The files that a cold start reads."""
    model, optimizer = built(shape, train=True)
    assert optimizer is not None
    model.save_pretrained(folder)
    parameters = enumerate(model.parameters())
    moments = {f"{number}.{name}": kept for number, each in parameters for name, kept in optimizer.state[each].items()}
    save_file(moments, folder / "moments.safetensors")


def cold(folder: Path, kind: str) -> tuple[float, float]:
    """Seconds until a new process has its state, and until it has taken its first step."""
    command = [sys.executable, "-c", COLD, str(folder), kind, str(torch.get_num_threads()), str(ROOT)]
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready_s, stepped_s = [(line.strip(), time.perf_counter() - began) for line in process.stdout]
    if (ready_s[0], stepped_s[0], process.returncode) != ("ready", "stepped", 0):
        raise RuntimeError(f"the cold start of {kind} ended with {process.returncode}")
    return ready_s[1], stepped_s[1]


def warm(resident: Resident, model: nn.Module, optimizer: torch.optim.Optimizer | None) -> tuple[float, float]:
    """The same for a process that lives, and whose state is on the host."""
    resident.offload()
    began = time.perf_counter()
    resident.load()
    ready_s = time.perf_counter() - began
    step(model, optimizer)
    return ready_s, time.perf_counter() - began


def starts(args: Namespace, budget: Budget, folder: Path, kind: str) -> list[Row]:
    """Cold starts, and after each of them several warm ones for each way to let go of memory."""
    model, optimizer = built(TINY if args.quick else SMOLLM2, kind == "train")
    colds: list[tuple[float, float]] = []
    warms: dict[str, list[tuple[float, float]]] = {told: [] for told, _ in memories()}
    for _ in range(1 if args.quick else args.starts):
        colds.append(cold(folder, kind))
        for told, memory in memories():
            resident = Resident((model, optimizer), name=kind, budget=budget, memory=memory, read_only=kind != "train")
            warm(resident, model, optimizer)
            warms[told] += [warm(resident, model, optimizer) for _ in range(3)]
            resident.close()
    cold_s, cold_step_s = (median(each) for each in zip(*colds, strict=True))
    rows: list[Row] = []
    for told, taken in warms.items():
        warm_s, warm_step_s = (median(each) for each in zip(*taken, strict=True))
        row = {"state": kind, "working memory": told, "cold s": cold_s, "warm s": warm_s, "cold/warm": cold_s / warm_s}
        step_row = {"cold with a step s": cold_step_s, "warm with a step s": warm_step_s}
        rows.append(row | step_row | {"cold/warm with a step": cold_step_s / warm_step_s})
    return rows


# -- rotation --------------------------------------------------------------------------------------------------------


class Tenant:
    """One of the three: its state, and what it answers."""

    def __init__(self, budget: Budget, shape: dict[str, Any], number: int) -> None:
        self.memory = CpuMemory()
        train = number == 0  # one that changes, two that do not
        self.model, self.optimizer = built(shape, train)
        self.resident = Resident(
            (self.model, self.optimizer), name=f"tenant{number}", budget=budget, memory=self.memory, read_only=not train
        )
        self.expected = self.answer()
        self.resident.offload()

    def answer(self) -> tuple[int, float]:
        """A canary: greedy token, and the sum over all logits."""
        with torch.no_grad():
            logits = self.model(torch.arange(PROMPT).reshape(1, -1)).logits
        return int(logits[0, -1].argmax()), float(logits.double().sum())

    def turn(self) -> bool:
        """Loads, compares, works, offloads; whether all was as it had been left."""
        self.resident.load()
        same = self.answer() == self.expected
        if self.optimizer is not None:
            step(self.model, self.optimizer)
            self.expected = self.answer()
        flat = self.resident.device.flat
        assert flat is not None
        left = checksum(flat)
        del flat
        self.resident.offload()
        self.resident.load()
        flat = self.resident.device.flat
        assert flat is not None
        same &= checksum(flat) == left
        del flat
        self.resident.offload()
        return same

    @property
    def mapped_bytes(self) -> int:
        return self.memory.resident_bytes()


def rss_bytes() -> int:
    """This process's own memory, without what it maps of files."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["RssAnon"].split()[0]) * 1024


def rotation(args: Namespace, budget: Budget) -> dict[str, object]:
    tenants = [Tenant(budget, TINY if args.quick else SMALL, number) for number in range(3)]
    count = 5 if args.quick else args.rotations
    wrong = left_bytes = 0
    settled = rss_bytes()
    for turn in range(count):
        for tenant in tenants:
            wrong += not tenant.turn()
            left_bytes = max(left_bytes, sum(each.mapped_bytes for each in tenants))
        if turn == min(20, count // 2):
            settled = rss_bytes()
    leaked = sum(tenant.resident.leaked_bytes for tenant in tenants)
    grown = rss_bytes() - settled
    sizes = sum(tenant.resident.nbytes for tenant in tenants)
    for tenant in tenants:
        tenant.resident.close()
    return {
        "turns": 3 * count,
        "bytes held": sizes,
        "wrong turns": wrong,
        "bytes left": left_bytes,
        "bytes leaked": leaked,
        "MB grown": grown / 1e6,
    }


# -- all -------------------------------------------------------------------------------------------------------------


@contextmanager
def places() -> Iterator[tuple[Budget, Path]]:
    """A budget in shared memory, and a folder on disk."""
    shared = Path(tempfile.mkdtemp(prefix="rollmux-switch-", dir="/dev/shm"))
    try:
        with tempfile.TemporaryDirectory() as disk:
            yield Budget(shared, LIMIT_BYTES), Path(disk)
    finally:
        shutil.rmtree(shared)


def memories() -> list[tuple[str, Memory]]:
    """How working memory is let go of."""
    return [("given back", CpuMemory()), ("reclaimable", CpuMemory(lazy=True))]


def gpus() -> list[tuple[str, Memory]]:
    return [("GPU", CudaMemory(torch.device("cuda")))] if torch.cuda.is_available() else []


def measure(args: Namespace) -> dict[str, object]:
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    disable_progress_bar()  # type: ignore[no-untyped-call]
    with places() as (budget, folder):
        kinds = memories() + gpus()
        rows = [moves(args, budget, train, memory, told) for told, memory in kinds for train in (False, True)]
        table(rows)
        written(TINY if args.quick else SMOLLM2, folder)
        begun = [row for kind in ("rollout", "train") for row in starts(args, budget, folder, kind)]
        table(begun)
        turned = rotation(args, budget)
        table([turned])
    if not gpus():
        print("there is no GPU here: moves to and from one were left out")
    found = show(goals(rows, begun, turned))
    return {"threads": args.threads, "rows": rows, "starts": begun, "rotation": turned, "goals": found}


def goals(rows: Sequence[Row], begun: Sequence[Row], turned: Row) -> list[Goal]:
    found = []
    for row in rows:
        for way in ("load", "offload"):
            name = f"{way} of {row['state']} state ({row['working memory']}) over a bare copy"
            limit = GOAL_GPU if row["working memory"] == "GPU" else GOAL_COPY
            found.append(Goal(name, number(row, f"{way}/bare"), limit, False))
    for row in begun:
        name = f"cold over warm start of {row['state']} ({row['working memory']})"
        found.append(Goal(name, number(row, "cold/warm"), GOAL_START, False))
    right = 1 - (number(turned, "wrong turns") / number(turned, "turns"))
    found.append(Goal("part of all turns after which a state was as it had been left", right, 1.0, False))
    free = 1 - (number(turned, "bytes left") + number(turned, "bytes leaked")) / number(turned, "bytes held")
    found.append(Goal("part of the working memory that was free after every offload", free, 1.0, False))
    return found


def number(row: Row, name: str) -> float:
    found = row[name]
    assert isinstance(found, int | float)
    return found


def main() -> None:
    parser = arguments("switch", __doc__)
    parser.add_argument("--rounds", type=int, default=15, help="turns of bare copy and move")
    parser.add_argument("--starts", type=int, default=5, help="cold starts of each kind")
    parser.add_argument("--rotations", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1, help="of a copy; a phase here has a core of its own")
    args = parser.parse_args()
    record("switch", args, lambda: measure(args))


if __name__ == "__main__":
    main()
