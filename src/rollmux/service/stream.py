"""What changes, as it changes: server-sent events of one reader, from the news that the history keeps anyway.

Nothing is kept for a reader but the number of the last record that it has heard of: one that reads too slowly finds
its place overrun, and is cut off. Invariant (I11): nothing is told that is not durable.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from itertools import takewhile

import msgspec

from rollmux.protocol.history import News
from rollmux.service.history.seen import Names, news_for
from rollmux.service.host import Host

# News that come within this time are sent together.
GATHER_S = 0.1
# A stream shows life this often, and whoever reads it is looked at anew: their token may have been revoked.
ALIVE_S = 10.0
# The most records that are sent at once.
MOST_AT_ONCE = 200

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Follower:
    """Somebody who follows the news from this record on (None: from now on)."""

    host: Host
    name: Names
    after: int | None

    async def chunks(self, gone: "asyncio.Future[None]", entitled: Callable[[], bool]) -> AsyncGenerator[bytes, None]:
        """What is to be sent, until the reader is gone, may read no more, is too slow, or the controller ends."""
        host, after = self.host, self.after
        history = host.controller.history
        clock = asyncio.get_running_loop().time
        if after is None or not history.news_after <= after <= host.durable:
            after = host.durable
            yield b'event: reset\nid: %d\ndata: {"seq":%d}\n\n' % (after, after)
        look_at = clock() + ALIVE_S
        while not (host.hurried or gone.done()):
            if after < history.news_after:
                return
            if clock() >= look_at:
                if not entitled():
                    return
                yield b": still here\n\n"
                look_at = clock() + ALIVE_S
            durable, news = host.durable, self._since(after)
            after = durable if len(news) < MOST_AT_ONCE else news[-1].seq  # most signs of life are no news
            if news:
                yield b"".join(map(self._said, news))
                await asyncio.sleep(GATHER_S if after == durable else 0)
            else:
                await host.news(after, gone, look_at - clock())

    def _since(self, after: int) -> list[News]:
        history, durable = self.host.controller.history, self.host.durable
        latest = list(takewhile(lambda news: news.seq > after, reversed(history.news)))
        return [news for news in reversed(latest) if news.seq <= durable][:MOST_AT_ONCE]

    def _said(self, news: News) -> bytes:
        heard = news_for(news, self.name)
        return b"id: %d\ndata: %b\n\n" % (news.seq, _encode(heard)) if heard.changes else b""
