"""A job that spans nodes: the process on its last training node leads, those on rollout nodes follow with an engine
each, and those on other training nodes with a replica of the learner.

See docs/design/ranks.md.
"""

from rollmux.trainer.ranks.follow import follow
from rollmux.trainer.ranks.lead import Ranks
from rollmux.trainer.ranks.roles import Roles

__all__ = ["Ranks", "Roles", "follow"]
