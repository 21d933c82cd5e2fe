"""Random numbers by name: each purpose has a seed, made from the job's seed and the purpose.

Invariant: nothing here has a state, so a draw depends neither on earlier draws nor on the process that draws.
"""

from hashlib import blake2b

from rollmux.packer import Request


def derived(seed: int, *purpose: int | str) -> int:
    """The seed for this purpose: 64 bits."""
    digest = blake2b(repr((seed, *purpose)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def response_seed(seed: int, request: Request) -> int:
    """The seed of one response. One that is launched again, after a failure or in a later round, draws other tokens."""
    prompt = request.prompt
    return derived(seed, "response", prompt.epoch, prompt.domain, prompt.id, request.round, request.sample)
