"""What has happened lately and what it has cost, in bounded memory: made of the same events as the machine's state.

`History` hears every event once the machine has taken it, live and in a replay alike, so that both come to the same.
"""

from rollmux.service.history.history import History

__all__ = ["History"]
