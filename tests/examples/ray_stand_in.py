"""What veRL has beneath it, for tests/examples/verl_stand_in.py: Ray, OmegaConf and TransferQueue, in their names.

All processes are one here, and a remote call is a task of one event loop.
"""

import asyncio
import concurrent.futures
import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

loop: Any = None  # each test has its own


# -- Ray ---------------------------------------------------------------------------------------------------------------


class Ref:
    """What a remote call gives at once."""

    def __init__(self, task: "asyncio.Task[Any]") -> None:
        self.task = task

    def __await__(self) -> Any:
        return asyncio.shield(self.task).__await__()  # whoever waits may be cancelled, and the call goes on

    def future(self) -> "concurrent.futures.Future[Any]":
        found: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self.task.add_done_callback(lambda done: found.set_result(None))
        return found


class Actor:
    def __init__(self, it: Any) -> None:
        self._it = it

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *given, **more: self._call(name, given, more))

    def _call(self, name: str, given: tuple[Any, ...], more: dict[str, Any]) -> Ref:
        async def call() -> Any:
            await asyncio.sleep(0)  # on its way
            found = getattr(self._it, name)(*given, **more)
            return await found if asyncio.iscoroutine(found) else found

        return Ref(loop.create_task(call()))


def remote(kind: type) -> Any:
    made = SimpleNamespace(remote=lambda *given, **more: Actor(kind(*given, **more)))
    made.__ray_metadata__ = SimpleNamespace(modified_class=kind)
    return made


def get(refs: Any) -> Any:
    if isinstance(refs, list):
        return [get(ref) for ref in refs]
    return loop.run_until_complete(refs.task)


def wait(refs: list[Ref], num_returns: int) -> tuple[list[Ref], list[Ref]]:
    assert num_returns == 1
    loop.run_until_complete(asyncio.wait([ref.task for ref in refs], return_when=asyncio.FIRST_COMPLETED))
    first = next(ref for ref in refs if ref.task.done())
    return [first], [ref for ref in refs if ref is not first]


def cancel(ref: Ref) -> None:
    ref.task.cancel()


# -- OmegaConf ---------------------------------------------------------------------------------------------------------


class DictConfig(dict[str, Any]):
    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


class OmegaConf:
    @staticmethod
    def create(content: Any = None) -> DictConfig:
        items = (content or {}).items()
        return DictConfig({name: OmegaConf.create(it) if isinstance(it, dict) else it for name, it in items})

    @staticmethod
    def to_container(config: DictConfig) -> dict[str, Any]:
        return dict(config)

    @staticmethod
    def select(config: DictConfig, key: str) -> Any:
        found: Any = config
        for name in key.split("."):
            found = None if found is None else found.get(name)
        return found


@contextmanager
def open_dict(config: DictConfig) -> Iterator[DictConfig]:
    yield config


# -- TransferQueue -----------------------------------------------------------------------------------------------------


@dataclass
class KVBatchMeta:
    partition_id: str
    keys: list[str]
    tags: list[dict[str, Any]]


stored: dict[str, dict[str, dict[str, Any]]] = {}


def kv_put(key: str, partition_id: str, tag: dict[str, Any]) -> None:
    stored.setdefault(partition_id, {}).setdefault(key, {}).update(tag)


def kv_list(partition_id: str | None = None) -> dict[str, dict[str, Any]] | None:
    return copy.deepcopy({partition_id: stored[partition_id]}) if partition_id in stored else None


def kv_clear(keys: list[str], partition_id: str) -> None:
    for key in keys:
        del stored[partition_id][key]
