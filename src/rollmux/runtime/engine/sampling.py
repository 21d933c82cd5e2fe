"""From logits to tokens: the most likely one, or one draw for each request.

A draw turns one uniform number into a token by the cumulated probabilities in the order of the vocabulary, so it needs
no random state on any device. Invariant: a token of probability zero is never drawn.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from rollmux.runtime.engine.draw import uniform
from rollmux.runtime.engine.requests import GenerationRequest

# Anything less counts as nothing: float32 has few numbers below, and a quotient by one of them is no number.
LEAST = 1e-30
BLOCK = 256  # probabilities are cumulated within blocks and over them: quicker, and exact enough for any vocabulary

Due = tuple[GenerationRequest, int]  # a request and the place of the token to be drawn


def sample(logits: Tensor, due: Sequence[Due]) -> list[tuple[int, float]]:
    """A token for each row, with its log-probability under the model at temperature 1."""
    logprobs = torch.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), -1)
    drawn = [row for row, (request, _) in enumerate(due) if request.temperature > LEAST]
    if len(drawn) == len(due):
        tokens = _draw(logprobs, due)
    else:
        tokens = logprobs.argmax(-1)
        if drawn:
            rows = torch.tensor(drawn, device=logits.device)
            tokens[rows] = _draw(logprobs.index_select(0, rows), [due[row] for row in drawn])
    chosen = logprobs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    return list(zip(tokens.tolist(), chosen.tolist(), strict=True))


def _draw(logprobs: Tensor, due: Sequence[Due]) -> Tensor:
    device = logprobs.device
    single = partial(torch.tensor, dtype=torch.float32, device=device)  # whatever torch's default is
    heat = single([request.temperature for request, _ in due]).unsqueeze(-1)
    probabilities = torch.softmax(logprobs / heat, -1)
    if any(request.top_p < 1 for request, _ in due):
        top_p = single([max(request.top_p, LEAST) for request, _ in due])
        probabilities = _nucleus(probabilities, top_p)
    numbers = [uniform(request.seed, place) for request, place in due]
    return _inverse(probabilities, torch.tensor(numbers, dtype=torch.float64, device=device))


def _nucleus(probabilities: Tensor, top_p: Tensor) -> Tensor:
    """Only the most likely tokens, as many as it takes to reach `top_p`; their sum is no longer 1."""
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    kept = (before < top_p.unsqueeze(-1)) | (top_p.unsqueeze(-1) >= 1)
    return torch.zeros_like(probabilities).scatter_(-1, order, ordered * kept)


def _inverse(probabilities: Tensor, numbers: Tensor) -> Tensor:
    """The token at which the cumulated probabilities reach this share of their sum."""
    rows, vocabulary = probabilities.shape
    if vocabulary <= BLOCK:
        return _reached(probabilities, numbers)[0]
    blocks = functional.pad(probabilities, (0, -vocabulary % BLOCK)).view(rows, -1, BLOCK)
    block, within = _reached(blocks.sum(-1), numbers)
    inside = blocks[torch.arange(rows, device=block.device), block]
    token, _ = _reached(inside, within)
    return (block * BLOCK + token).clamp_(max=vocabulary - 1)  # values that are no numbers may lead anywhere


def _reached(sizes: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Where the cumulated sizes reach a share of their sum, and which share of that place is reached."""
    cumulated = sizes.double().cumsum(-1)
    target = (share * cumulated[:, -1]).clamp(min=torch.finfo(torch.float64).tiny)
    place = torch.searchsorted(cumulated, target.unsqueeze(-1)).clamp_(max=sizes.shape[-1] - 1)
    size = sizes.double().gather(-1, place)
    below = cumulated.gather(-1, place) - size
    part = ((target.unsqueeze(-1) - below) / size).clamp(0, 1)
    return place.squeeze(-1), part.squeeze(-1)
