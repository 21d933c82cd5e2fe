"""What tests of the policies see of their work."""

import pytest

from rollmux.mux.group import Group
from rollmux.mux.policies.seeker import Fitting, Seeker


@pytest.fixture
def looked_into(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The groups whose nodes a phase was held against, each time that one was."""
    seen: list[str] = []
    real = Seeker._nodes

    def looking(phase: Seeker, group: Group) -> Fitting:
        seen.append(group.id)
        return real(phase, group)

    monkeypatch.setattr(Seeker, "_nodes", looking)
    return seen
