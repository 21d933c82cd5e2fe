"""Random numbers by name: a seed for each purpose, from the job's seed and what it is for.

Invariant: nothing here has a state, so what is drawn depends neither on what was drawn before nor on who draws it.
"""

from hashlib import blake2b

from rollmux.packer import Request


def derived(seed: int, *purpose: int | str) -> int:
    """64 bits for this purpose."""
    digest = blake2b(repr((seed, *purpose)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def response_seed(seed: int, request: Request) -> int:
    """Of one response: what is launched again, after a failure or in a later round, draws anew."""
    prompt = request.prompt
    return derived(seed, "response", prompt.epoch, prompt.domain, prompt.id, request.round, request.sample)
