"""The text format of Prometheus, written by hand: families, labels, and a bound on both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MOST = 1000
"""Series of one family. Names of queues, consumers and providers are nobody's to bound but ours."""
LONGEST = 200
"""Characters of a label's value."""

Series = tuple[Mapping[str, str], float]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric with all its series."""

    name: str
    kind: Literal["gauge", "counter"]
    text: str
    series: Iterable[Series]


def exposed(families: Iterable[Family]) -> str:
    """Everything, and how many series had to be left out."""
    lines: list[str] = []
    left_out = 0
    for family in merged(families):
        series = list(family.series)
        left_out += max(0, len(series) - MOST)
        lines += _lines(family, series[:MOST])
    dropped = Family(
        "ergon_series_left_out",
        "gauge",
        f"Series left out of this answer: a metric has at most {MOST}.",
        [],
    )
    lines += _lines(dropped, [({}, left_out)])
    return "".join(f"{line}\n" for line in lines)


def merged(families: Iterable[Family]) -> list[Family]:
    """Each family once, with the series of all that have its name, in their order.

    What has the same labels is added up: two stores may know calls of the same provider.
    """
    found: dict[str, Family] = {}
    for each in families:
        known = found.get(each.name)
        series = [*(() if known is None else known.series), *each.series]
        found[each.name] = Family(each.name, each.kind, each.text, _added_up(series))
    return list(found.values())


def _added_up(series: Iterable[Series]) -> list[Series]:
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    for labels, value in series:
        key = tuple(labels.items())
        sums[key] = sums.get(key, 0) + value
    return [(dict(key), value) for key, value in sums.items()]


def _lines(family: Family, series: Iterable[Series]) -> Iterator[str]:
    yield f"# HELP {family.name} {_escaped(family.text)}"
    yield f"# TYPE {family.name} {family.kind}"
    for labels, value in series:
        inside = ",".join(f'{name}="{_label(text)}"' for name, text in labels.items())
        where = f"{{{inside}}}" if inside else ""
        yield f"{family.name}{where} {value}"


def _label(text: str) -> str:
    return _escaped(text[:LONGEST]).replace('"', '\\"')


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
