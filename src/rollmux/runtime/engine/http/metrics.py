"""Numbers out of a server's Prometheus page. A name that is not there counts nothing."""

import math
from collections.abc import Iterable

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample


class Metrics:
    """All samples of a page."""

    def __init__(self, page: str) -> None:
        families: Iterable[Metric] = text_string_to_metric_families(page)
        self._samples: list[Sample] = [sample for family in families for sample in family.samples]

    def _of(self, name: str) -> list[Sample]:
        return [sample for sample in self._samples if sample.name == name and math.isfinite(sample.value)]

    def sum(self, name: str) -> int:
        """The sum over all engines behind the server."""
        return round(sum(sample.value for sample in self._of(name)))

    def share(self, name: str) -> float:
        """The mean over all engines behind the server."""
        found = self._of(name)
        return sum(sample.value for sample in found) / len(found) if found else 0.0

    def label_product(self, name: str, first: str, second: str) -> int:
        """The product of two numbers that are told as labels."""
        pairs = [(sample.labels.get(first, ""), sample.labels.get(second, "")) for sample in self._of(name)]
        return sum(int(a) * int(b) for a, b in pairs if a.isdecimal() and b.isdecimal())
