"""What the ranks of an attempt have printed: read from the logs of the nodes that they run on, through Ray."""

import asyncio

from rollmux.service.local.attempt_files import file_name
from rollmux.service.local.attempt_log import last_lines
from rollmux.service.ray.gateway import RayGateway, RayTrouble
from rollmux.service.ray.intents import Intent

# Each rank is a call to Ray.
MOST_RANKS = 16


async def printed(ray: RayGateway, intent: Intent, logs: str, lines: int) -> list[str]:
    """The last lines of the first ranks; if there are several, each has its share, after its number."""
    ranks = range(min(len(intent.ranks), MOST_RANKS, lines))
    tails = await asyncio.gather(*[_tail(ray, intent, rank, logs, lines // len(ranks)) for rank in ranks])
    if len(intent.ranks) == 1:
        return tails[0]
    return [f"[{rank}] {line}" for rank, tail in zip(ranks, tails, strict=True) for line in tail]


async def _tail(ray: RayGateway, intent: Intent, rank: int, logs: str, lines: int) -> list[str]:
    node = intent.ranks[rank]
    file = f"{logs}/{node}/logs/{file_name(intent.job)}/{intent.attempt}.{rank}.log"
    try:
        found = await _lines(await ray.tail(node, file, lines), lines)  # what Ray takes for one line may be many
        if len(found) < lines:
            more = lines - len(found)
            found = await _lines(await ray.tail(node, f"{file}.1", more), more) + found
    except RayTrouble as error:
        return [f"(can't be read: {error})"]
    return found


async def _lines(text: str, most: int) -> list[str]:
    """Cuts lines beside the event loop: megabytes in colour take a third of a second."""
    return await asyncio.to_thread(last_lines, text, most)
