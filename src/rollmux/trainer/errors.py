"""The errors of a training run.

RollmuxError
├── CheckpointRefused   a checkpoint can't be continued from
├── FetchFailed         a pretrained model could not be downloaded or made
├── ModelMissing        the folder of a model holds none that is whole
├── NotShared           the weights find no room in memory that several processes share
├── NotTaught           the model knows no form for what is said to it
├── RanksApart          the processes of a job that spans nodes don't find each other, or one is gone
├── ReplicasLost        the processes that compute a gradient fail again and again
├── RunExists           the folder holds a run, and nobody said that it is to be continued
└── RolloutStuck        a round can't come to its end

A job file that is wrong is an `InvalidSpec`, as everywhere. What an update refuses is in `update/errors.py`; a token of
other weights than those to be updated is `WrongVersion`, and ends the run.
"""

from rollmux.errors import RollmuxError


class CheckpointRefused(RollmuxError):
    """The message says which one and why."""


class FetchFailed(RollmuxError):
    """The message says why; nothing was left behind."""


class ModelMissing(RollmuxError):
    """Remedy: name another folder, or fetch a model into it."""


class NotShared(RollmuxError):
    """Remedy: give the machine's shared memory more room, or use one process."""


class NotTaught(RollmuxError):
    """Remedy: say it in another way, or take another model."""


class RanksApart(RollmuxError):
    """Remedy: start all processes again. The run goes on from its checkpoint."""


class ReplicasLost(RollmuxError):
    """The weights are unchanged. Remedy: go on from the checkpoint, with more memory, say, or with fewer replicas."""


class RunExists(RollmuxError):
    """Remedy: continue the run with `--resume`, or name another folder."""


class RolloutStuck(RollmuxError):
    """Nothing is under way and the round is not complete, or everything failed."""
