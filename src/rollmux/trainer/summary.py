"""The summary of a run that is over: what became of every prompt, and the lengths that were trained and offered."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rollmux.packer import TailBatcher

SUMMARY = "summary.json"


def summary(batcher: TailBatcher) -> dict[str, Any]:
    """The summary as plain data."""
    accounts = batcher.accounts().items()
    return {
        "epochs": {str(epoch): {**asdict(account), "waiting": account.waiting} for epoch, account in accounts},
        "lengths": asdict(batcher.bias.report().overall),
    }


def write_summary(found: dict[str, Any], folder: Path) -> None:
    (folder / SUMMARY).write_text(json.dumps(found, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def in_words(found: dict[str, Any]) -> list[str]:
    """A line for each epoch, and one for the lengths."""
    lines = [
        f"epoch {epoch}: of {account['drawn']} prompts {account['trained']} trained, {account['waiting']} waiting, "
        f"{account['filtered']} filtered, {account['failed']} failed"
        for epoch, account in found["epochs"].items()
    ]
    lengths = found["lengths"]
    offered, trained = lengths["offered"], lengths["trained"]
    return [
        *lines,
        f"lengths: half of the responses up to {trained['p50']:.0f} tokens, 99 % up to {trained['p99']:.0f}; what is "
        f"trained is {lengths['mean_shift']:+.1%} longer than what was offered, {offered['mean']:.1f} tokens",
    ]
