"""Metrics in the text format of Prometheus, version 0.0.4: written here and nowhere else.

Processes without the OpenTelemetry SDK and ``prometheus_client`` answer ``/metrics`` as well, so
neither is imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Series = tuple[Mapping[str, str], float]
"""The labels of a series, and its value now."""


@dataclass(frozen=True, slots=True)
class Family:
    """A counter or gauge with all of its series."""

    name: str
    kind: Literal["gauge", "counter"]
    text: str
    series: Iterable[Series]

    def lines(self) -> Iterator[str]:
        """What a scrape reads of it."""
        yield from _head(self.name, self.kind, self.text)
        for labels, value in self.series:
            inside = _inside(labels)
            where = f"{{{inside}}}" if inside else ""
            yield f"{self.name}{where} {value}"


@dataclass(frozen=True, slots=True)
class HistogramFamily:
    """A histogram without labels: the number of values in each bucket, and their sum."""

    name: str
    text: str
    bounds: Sequence[float]
    counts: Sequence[int]
    """The counts of the buckets, one more than bounds: the last is for values above all of them."""
    total: float

    def lines(self) -> Iterator[str]:
        """What a scrape reads of it. Buckets are cumulative."""
        yield from _head(self.name, "histogram", self.text)
        yield from _histogram(self.name, "", self.bounds, self.counts, self.total)


class HistogramSeries(NamedTuple):
    """A series of a histogram with labels."""

    labels: Mapping[str, str]
    counts: Sequence[int]
    """The counts of the buckets, one more than bounds: the last is for values above all of them."""
    total: float


@dataclass(frozen=True, slots=True)
class LabelledHistogramFamily:
    """A histogram with all of its series."""

    name: str
    text: str
    bounds: Sequence[float]
    series: Iterable[HistogramSeries]

    def lines(self) -> Iterator[str]:
        """What a scrape reads of it. Buckets are cumulative."""
        yield from _head(self.name, "histogram", self.text)
        for labels, counts, total in self.series:
            yield from _histogram(self.name, _inside(labels), self.bounds, counts, total)


AnyFamily = Family | HistogramFamily | LabelledHistogramFamily


def _histogram(
    name: str, inside: str, bounds: Sequence[float], counts: Sequence[int], total: float
) -> Iterator[str]:
    below, comma = 0, "," if inside else ""
    for bound, count in zip((*bounds, "+Inf"), counts, strict=True):
        below += count
        yield f'{name}_bucket{{{inside}{comma}le="{bound}"}} {below}'
    where = f"{{{inside}}}" if inside else ""
    yield f"{name}_sum{where} {total:.6f}"
    yield f"{name}_count{where} {below}"


def text_of(families: Iterable[AnyFamily]) -> str:
    """The answer to a scrape."""
    text = "".join(f"{line}\n" for family in families for line in family.lines())
    # Half of a surrogate pair in a name has no bytes, and must not cost the whole answer.
    return text.encode("utf-8", "replace").decode()


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP {name} {_escaped(text)}"
    yield f"# TYPE {name} {kind}"


def _inside(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_label(text)}"' for name, text in labels.items())


def _label(text: str) -> str:
    return _escaped(text).replace('"', '\\"')


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
