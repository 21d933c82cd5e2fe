"""Answers that are made step by step, so that the host can hear other calls between the steps.

Each step sees the state as it is then: an answer says of each thing how it stood at some moment while it was made, and
names the record at which it began. A reader who hears of all later records misses nothing.
"""

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
