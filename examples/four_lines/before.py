"""Teaches a tiny model to count, in plain PyTorch: REINFORCE with each group's mean as the baseline.

The argument is a seed. A prompt is a digit, a response goes on from it, and the reward is the share of right digits.
"""

import sys

import torch
from torch import Tensor, nn

STEPS, PROMPTS, GROUP, LENGTH, DIGITS, WIDTH = 25, 16, 16, 3, 10, 32

torch.set_num_threads(1)
torch.manual_seed(int(sys.argv[1]))


class Policy(nn.Module):
    """Says how likely each digit is to come next."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(DIGITS, WIDTH), nn.Linear(WIDTH, DIGITS)

    def forward(self, digits: Tensor) -> Tensor:
        return torch.log_softmax(self.head(self.embedding(digits)), -1)


policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), lr=0.05)


def rollout(prompts: Tensor) -> Tensor:
    digits = [prompts.repeat_interleave(GROUP)]
    with torch.no_grad():
        for _ in range(LENGTH):
            digits.append(torch.multinomial(policy(digits[-1]).exp(), 1)[:, 0])
    return torch.stack(digits, 1)


def score(digits: Tensor) -> Tensor:
    right = (digits[:, :1] + torch.arange(1, LENGTH + 1)) % DIGITS
    return (digits[:, 1:] == right).float().mean(1)


def train(digits: Tensor, rewards: Tensor) -> float:
    groups = rewards.view(PROMPTS, GROUP)
    advantages = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 0.1)).view(-1, 1)
    chosen = policy(digits[:, :-1]).gather(2, digits[:, 1:, None])[..., 0]
    loss = -(advantages * chosen).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


for step in range(STEPS):
    responses = rollout(torch.randint(DIGITS, (PROMPTS,)))
    reward = score(responses)
    loss = train(responses, reward)
    print(f"step {step:2}  reward {reward.mean():.3f}  loss {loss:+.4f}", flush=True)
