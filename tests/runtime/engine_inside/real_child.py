"""A process that has a vLLM and engines inside it, and does what it is asked over a connection (see `real_llm`).

Run by a Python that need not have what tests want.
"""

import sys
from itertools import islice
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import vllm
import vllm._custom_ops
from safetensors.torch import load_file

from rollmux.errors import RollmuxError
from rollmux.runtime.engine.seam import Begun
from rollmux.runtime.engine.vllm_inside import VllmInside


class Owner:
    """Of an `LLM`: makes it, makes engines over it, and does with it what owners do."""

    def __init__(self) -> None:
        self.llm: Any = None
        self.engine: Any = None
        self.fails = 0

    def make(self, packed: bool, sleeps: bool, **config: Any) -> None:
        """Not `packed`: its matrices are read where they are, as on a GPU. `sleeps`: it is told to, and holds on."""
        if not packed:
            vllm._custom_ops._supports_onednn = False
        self.llm = vllm.LLM(**config)
        self.llm.llm_engine.vllm_config.model_config.enable_sleep_mode = sleeps
        self.executor = self.llm.llm_engine.model_executor
        self.execute, self.executor.execute_model = self.executor.execute_model, self._execute

    def _execute(self, *told: Any, **named: Any) -> Any:
        if self.fails:
            self.fails -= 1
            raise RuntimeError("told to fail")
        return self.execute(*told, **named)

    def begin(self, **said: Any) -> None:
        self.engine = VllmInside(self.llm, **said)

    def fail(self, times: int) -> None:
        self.fails = times

    def write_in_place(self, folder: str) -> None:
        """One by one, as TRL does."""
        model = self.executor.driver_worker.model_runner.model
        for each in load_file(Path(folder, "model.safetensors")).items():
            model.load_weights([each])
        self.llm.reset_prefix_cache()

    def update(self, version: int, folder: str, begun: Begun = Begun.REFUSE, breaks_after: int | None = None) -> None:
        """By names. It may break off after so many."""
        model = self.executor.driver_worker.model_runner.model
        whole = model.load_weights

        def breaks(given: Any) -> None:
            whole(islice(given, breaks_after))
            if given:
                raise RuntimeError("told to break off")

        model.load_weights = whole if breaks_after is None else breaks
        try:
            self.engine.update(version, load_file(Path(folder, "model.safetensors")), begun)
        finally:
            del model.load_weights

    def generates(self, prompt: tuple[int, ...], count: int) -> tuple[int, ...]:
        params = vllm.SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
        (output,) = self.llm.generate({"prompt_token_ids": list(prompt)}, params, use_tqdm=False)
        return tuple(output.outputs[0].token_ids)

    def has_unfinished(self) -> bool:
        return bool(self.llm.llm_engine.has_unfinished_requests())

    def is_sleeping(self) -> bool:
        return bool(self.llm.llm_engine.is_sleeping())

    def asked(self, of_engine: bool, name: str, told: tuple[Any, ...], named: dict[str, Any]) -> Any:
        found = getattr(self.engine if of_engine else self, name)
        return found(*told, **named) if callable(found) else found


def main() -> None:
    owner = Owner()
    with Connection(int(sys.argv[1])) as line:
        while True:
            call = line.recv()
            if call is None:
                return
            try:
                line.send((owner.asked(*call), None))
            except RollmuxError as error:
                line.send((None, error))
            except Exception as error:  # noqa: BLE001  # it goes to whoever asked, who may not have its class
                line.send((None, RuntimeError(f"{type(error).__name__}: {error}")))


if __name__ == "__main__":
    main()
