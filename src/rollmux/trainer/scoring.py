"""Rewards for responses that end, and replies to turns that end. Each submitted response comes back once, with a score
or with the reason why there is none.

`Direct` asks the task here and now, in the order of submission, so a run with it repeats itself exactly.
`pooled.Pooled` asks processes beside the rollout.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rollmux.packer import Request
from rollmux.runtime.rewards import Reply, Reward, Status, Told
from rollmux.runtime.rewards.functions import scored


@dataclass(frozen=True, slots=True)
class Scored:
    """A response with its reward: a score, or the reason why there is none."""

    request: Request
    reward: Reward


class Scorer(Protocol):
    """Gives rewards and replies. `said` are the model's turns, and what it was told between them."""

    @property
    def pending(self) -> int:
        """How many responses are submitted, and neither collected nor cancelled."""

    def ask(self, request: Request, *said: Told) -> Reply | None:
        """What the response is told behind these turns; None if that will come by `replies`."""

    def replies(self, wait_s: float) -> list[tuple[Request, Reply]]:
        """The replies that have come. If none has, waits up to `wait_s` for the first."""

    def submit(self, request: Request, *said: Told) -> None: ...

    def cancel(self, requests: Iterable[Request]) -> None:
        """These requests need neither score nor reply any more. Unknown requests are no mistake."""

    def collect(self, wait: bool) -> list[Scored]:
        """The rewards to be told in this tick. If there are none, and `wait`, those to be told next."""

    def state(self) -> dict[str, Any]:
        """The state that later rewards depend on, as plain data; asked for between rounds."""

    def close(self) -> None:
        """Calls off the work under way, and ends the processes that were started. Harmless the second time."""


class Direct:
    """Scores in this process, when the rewards are collected, and replies at once."""

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
        except Exception as error:  # noqa: BLE001 - a task's code may raise anything; the reward is then no zero
            return Reward(Status.ERROR, None, f"{type(error).__name__}: {error}")
