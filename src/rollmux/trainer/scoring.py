"""Rewards as responses end, and replies as their turns do: what is submitted comes back once, as a score or with the
reason why there is none.

`Direct` asks the task here and now; its order is that of submission, so a run with it repeats itself exactly. Processes
beside the rollout are asked by `pooled.Pooled`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rollmux.packer import Request
from rollmux.runtime.rewards import Reply, Reward, Status, Told
from rollmux.runtime.rewards.functions import scored


@dataclass(frozen=True, slots=True)
class Scored:
    """A response with its reward: a score, or what else scoring came to."""

    request: Request
    reward: Reward


class Scorer(Protocol):
    """Whoever gives rewards and replies. What was `said` are the model's turns, and what it was told between them."""

    @property
    def pending(self) -> int:
        """Submitted, neither collected nor cancelled."""

    def ask(self, request: Request, *said: Told) -> Reply | None:
        """What the response is told behind these turns; None where that is to come by `replies`."""

    def replies(self, wait_s: float) -> list[tuple[Request, Reply]]:
        """Those that have come; if none has, the first within so long."""

    def submit(self, request: Request, *said: Told) -> None: ...

    def cancel(self, requests: Iterable[Request]) -> None:
        """These need neither score nor reply any more. Those that are not there are no mistake."""

    def collect(self, wait: bool) -> list[Scored]:
        """What is to be told in this tick; if nothing is and one may wait, what is to be told next."""

    def state(self) -> dict[str, Any]:
        """What later rewards depend on, as plain data; asked for between rounds."""

    def close(self) -> None:
        """Calls off what is under way, and ends what was started. Harmless the second time."""


class Direct:
    """Scores in this process, when asked for, and replies at once."""

    def __init__(self, reward: Callable[..., float], reply: Callable[..., Told | None] = lambda *said: None) -> None:
        self._reward, self._reply = reward, reply
        self._waiting: dict[Request, Sequence[Told]] = {}

    @property
    def pending(self) -> int:
        return len(self._waiting)

    def ask(self, request: Request, *said: Told) -> Reply:
        try:
            return Reply(self._reply(int(request.prompt.id), *said))
        except Exception as error:  # noqa: BLE001 - a task's code may raise anything; that is no end
            return Reply(None, f"{type(error).__name__}: {error}")

    def replies(self, wait_s: float) -> list[tuple[Request, Reply]]:
        return []

    def submit(self, request: Request, *said: Told) -> None:
        self._waiting[request] = said

    def cancel(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self._waiting.pop(request, None)

    def collect(self, wait: bool) -> list[Scored]:
        waiting, self._waiting = self._waiting, {}
        return [Scored(request, self._scored(request, *said)) for request, said in waiting.items()]

    def state(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self._waiting.clear()

    def _scored(self, request: Request, *said: Told) -> Reward:
        try:
            return scored(self._reward(int(request.prompt.id), *said), 0.0, 0.0)
        except Exception as error:  # noqa: BLE001 - a task's code may raise anything; that is no zero
            return Reward(Status.ERROR, None, f"{type(error).__name__}: {error}")
