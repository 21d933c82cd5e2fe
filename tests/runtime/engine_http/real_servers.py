"""A real vLLM and a real SGLang on processors, with weights that they take from folders and vLLM also tensor by tensor.

ROLLMUX_TEST_VLLM and ROLLMUX_TEST_SGLANG are the Pythons of environments that have them (docs/design/engine_http.md).
What differs from those on a GPU: they take sleeps and wakes, pause and go on, but hold their memory all the while.
"""

import os
import signal
import socket
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import httpx
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rollmux.runtime.engine.http import HttpEngine, Memory, Server, Settings, Sglang, Vllm
from rollmux.runtime.engine.http.dialect import Dialect
from rollmux.runtime.engine.requests import GenerationRequest
from tests.runtime.engine.models import generated, tiny
from tests.runtime.engine_http.rigs import eventually

VOCABULARY, LENGTH, STREAMS = 512, 512, 8
SHAPE = {
    "vocab_size": VOCABULARY, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "head_dim": 32,
    "max_position_embeddings": 2 * LENGTH,
}  # fmt: skip
READY = Settings(max_length=LENGTH, wait_s=0.02, retry_s=0.2, drain_s=2.0, cuts=1000)
# Loads what it is told of as vLLM's own way over NCCL loads what it receives, and may break off in the middle.
PLUGIN = """
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file
from vllm.distributed.weight_transfer.base import WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine


@dataclass
class Update(WeightTransferUpdateInfo):
    folder: str
    breaks_after: int = -1


class Files(NCCLWeightTransferEngine):
    init_info_cls, update_info_cls = WeightTransferInitInfo, Update

    def receive_weights(self, update_info):
        for number, each in enumerate(load_file(Path(update_info.folder, "model.safetensors")).items()):
            if number == update_info.breaks_after:
                raise RuntimeError("the trainer is gone")
            self.model.load_weights([each])


def register():
    WeightTransferEngineFactory.register_engine("files", Files)
"""


# What SGLang imports and does not use where it computes on processors: kernels, a memory saver, pictures.
STUBS = {
    "sitecustomize.py": """
import importlib.machinery
import sys
import traceback
import types


class Name(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class Empty(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name[0].isupper():
            return Name(name, (), {})
        return sys.modules.setdefault(f"{self.__name__}.{name}", Empty(f"{self.__name__}.{name}"))


class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in ("sgl_kernel", "torchvision"):
            return None
        asking = [each.f_code for each, _ in traceback.walk_stack(None)]
        if any(code.co_name.startswith(("_is_", "is_")) and "transformers" in code.co_filename for code in asking):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return Empty(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.append(Finder())
""",
    "torch_memory_saver.py": """
import os
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def nothing(*args, **kwargs):
    yield


class Saver:
    asleep = set()
    region = cuda_graph = disable = staticmethod(nothing)

    def pause(self, tag=None):
        assert tag not in self.asleep, f"{tag} is asleep"
        self.asleep.add(tag)
        self.tell()

    def resume(self, tag=None):
        self.asleep.remove(tag)
        self.tell()

    def tell(self):
        Path(os.environ["ASLEEP"]).write_text(" ".join(sorted(self.asleep)))


configure_subprocess = nothing
torch_memory_saver = Saver()
""",
}


@dataclass(slots=True)
class RealServer(ABC):
    """A server's process, and models in folders beside it."""

    python: ClassVar[str]  # none where there is no such server
    dialect: ClassVar[Dialect]
    crowded: ClassVar[tuple[str, ...]]  # flags for room that is not enough for all who run
    root: Path
    flags: tuple[str, ...] = ()
    port: int = 0
    models: dict[str, Any] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def folder(self, name: str) -> str:
        return str(self.root / name)

    def write(self, name: str, seed: int, **changed: Any) -> None:
        self.models[name] = tiny(seed=seed, **SHAPE | changed)
        self.models[name].save_pretrained(self.folder(name))
        words = Tokenizer(models.WordLevel({f"w{n}": n for n in range(VOCABULARY)}, unk_token="w0"))
        words.pre_tokenizer = pre_tokenizers.Whitespace()
        PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(self.folder(name))

    @abstractmethod
    def prepared(self) -> tuple[dict[str, str], list[str]]:
        """What its environment is to have, and its command line."""

    def start(self) -> None:
        with socket.socket() as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            free.bind(("127.0.0.1", self.port))  # the one it had, started anew
            self.port = free.getsockname()[1]
        told, command = self.prepared()
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--dtype", "float32", *self.flags]
        with (self.root / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                env=os.environ | {"HF_HUB_OFFLINE": "1"} | told,
                cwd=self.root,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        assert eventually(self.is_ready, within_s=300.0), (self.root / "server.log").read_text()[-3000:]

    def is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, "it has ended"
        try:
            return httpx.get(f"{self.url}/health").is_success
        except httpx.HTTPError:
            return False

    def kill(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def version(self) -> int:
        """0 of a server that nobody has told one."""
        said = httpx.get(f"{self.url}{self.dialect.version().path}", timeout=60.0).json()["weight_version"]
        return int(said) if said.isdecimal() else 0

    def held(self) -> int:
        """All are asleep where nobody can see what it holds."""
        return 0

    @contextmanager
    def engine(self, canary: tuple[int, ...] = ()) -> Iterator[HttpEngine]:
        memory = Memory(self.held, {}, asleep_bytes=0, leak_bytes=0, settle_s=0.1)
        server = Server(self.url, call_s=60.0)
        with closing(HttpEngine(server, self.dialect, READY, self.version(), memory, canary)) as made:
            yield made

    def says(self, name: str, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
        """Greedily, by the model itself."""
        return tuple(generated(self.models[name], GenerationRequest("asked", prompt, count)))


@dataclass(slots=True)
class RealVllm(RealServer):
    python: ClassVar[str] = os.environ.get("ROLLMUX_TEST_VLLM", "")
    dialect: ClassVar[Dialect] = Vllm()
    crowded: ClassVar[tuple[str, ...]] = ("--block-size", "32", "--num-gpu-blocks-override", "17")

    def prepared(self) -> tuple[dict[str, str], list[str]]:
        plugin = self.root / "plugin"
        described = plugin / "files_transfer-0.dist-info"
        described.mkdir(parents=True, exist_ok=True)
        (plugin / "files_transfer.py").write_text(PLUGIN)
        (described / "METADATA").write_text("Metadata-Version: 2.1\nName: files-transfer\nVersion: 0\n")
        (described / "entry_points.txt").write_text("[vllm.general_plugins]\nfiles = files_transfer:register\n")
        told = {
            "PYTHONPATH": str(plugin), "VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }  # fmt: skip
        return told, [
            self.python, "-m", "vllm.entrypoints.openai.api_server", "--model", self.folder("a"), "--enforce-eager",
            "--max-model-len", str(LENGTH), "--max-num-seqs", str(STREAMS), "--generation-config", "vllm",
            "--logprobs-mode", "raw_logprobs", "--weight-transfer-config", '{"backend": "files"}',
        ]  # fmt: skip


@dataclass(slots=True)
class RealSglang(RealServer):
    python: ClassVar[str] = os.environ.get("ROLLMUX_TEST_SGLANG", "")
    dialect: ClassVar[Dialect] = Sglang(raw_logprobs=True)
    crowded: ClassVar[tuple[str, ...]] = ("--max-total-tokens", "544", "--schedule-conservativeness", "0.1")

    @property
    def asleep(self) -> Path:
        return self.root / f"asleep-{self.port}"

    def held(self) -> int:
        asleep = self.asleep.read_text().split()
        return 2 - ("weights" in asleep) - ("kv_cache" in asleep)

    def prepared(self) -> tuple[dict[str, str], list[str]]:
        stubs = self.root / "stubs"
        stubs.mkdir(exist_ok=True)
        for name, text in STUBS.items():
            (stubs / name).write_text(text)
        self.asleep.write_text("")
        told = {
            "PYTHONPATH": str(stubs), "ASLEEP": str(self.asleep), "SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1",
            "TORCHDYNAMO_DISABLE": "1", "CUDA_VISIBLE_DEVICES": "", "SGLANG_RETURN_ORIGINAL_LOGPROB": "1",
        }  # fmt: skip
        return told, [
            self.python, "-m", "sglang.launch_server", "--model-path", self.folder("a"), "--device", "cpu",
            "--attention-backend", "torch_native", "--sampling-backend", "pytorch", "--disable-cuda-graph",
            "--grammar-backend", "none", "--context-length", str(LENGTH), "--max-running-requests", str(STREAMS),
            "--max-total-tokens", "8192", "--enable-metrics", "--enable-memory-saver", "--enable-weights-cpu-backup",
            "--enable-deterministic-inference",
        ]  # fmt: skip


KINDS: dict[str, type[RealVllm | RealSglang]] = {"vllm": RealVllm, "sglang": RealSglang}
