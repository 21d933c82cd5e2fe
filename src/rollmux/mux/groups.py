"""The groups of one cluster by name, and which of them have the most room: asked for at nearly every event."""

from rollmux.mux.group import Group
from rollmux.mux.hardware import Cluster


class Groups(dict[str, Group]):
    """Groups in the order in which they came. The free time of those that have not changed is not counted again.

    Change them by `groups[name] = group` and `del groups[name]` alone: other methods of a dict go unnoticed here.

    `news`, if somebody has set it, collects the names of the groups that come, change and go.
    """

    __slots__ = ("_cluster", "_free_usd", "_uncounted", "news")

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._cluster = cluster
        self._free_usd: dict[str, float] = {}  # in the same order
        self._uncounted: dict[str, None] = {}
        self.news: dict[str, None] | None = None

    def __setitem__(self, name: str, group: Group) -> None:
        super().__setitem__(name, group)
        self._free_usd[name] = 0.0
        self._uncounted[name] = None
        if self.news is not None:
            self.news[name] = None

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        del self._free_usd[name]
        self._uncounted.pop(name, None)
        if self.news is not None:
            self.news[name] = None

    def become(self, cluster: Cluster) -> None:
        """Nodes cost something else from now on."""
        self._cluster = cluster
        self._uncounted = dict.fromkeys(self)

    def roomiest(self, count: int) -> dict[str, Group]:
        """The `count` groups whose free time is worth the most; of equals, those that came first."""
        for name in self._uncounted:
            self._free_usd[name] = self[name].free_usd(self._cluster)
        self._uncounted.clear()
        first = sorted(self._free_usd, key=self._free_usd.__getitem__, reverse=True)[:count]
        return {name: self[name] for name in first}
