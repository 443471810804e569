"""Whatever is in a metric, ``prometheus_client`` reads it back from the text as it was."""

from __future__ import annotations

import math
from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from ergon_framework.telemetry.prometheus_text import Family, HistogramFamily, text_of

_names = st.from_regex(r"ergon_[a-z]{1,8}", fullmatch=True)
# Carriage returns and the like end a line for Python's readers, though not for Prometheus.
_texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Zl", "Zp"]), max_size=20)
_lines = st.lists(_texts, min_size=1, max_size=3).map("\n".join)
_labels = st.dictionaries(st.sampled_from(["queue", "state", "zone"]), _lines, max_size=3)
_series = st.lists(
    st.tuples(_labels, st.integers(-(10**15), 10**15) | st.floats()),
    max_size=4,
    unique_by=lambda one: tuple(sorted(one[0].items())),
)


def read(text: str) -> dict[str, list[tuple[str, dict[str, str], float]]]:
    """The samples of each metric, as another program reads them."""
    return {
        family.name: [(each.name, dict(each.labels), each.value) for each in family.samples]
        for family in text_string_to_metric_families(text)
    }


def same(ours: Iterable[float], theirs: Iterable[float]) -> bool:
    """Whether numbers are equal; NaN is itself here."""
    return all(
        a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(ours, theirs, strict=True)
    )


@given(st.dictionaries(_names, _series, max_size=4), _lines)
@settings(max_examples=150, deadline=None)
def test_gauges_are_read_back(
    given: dict[str, list[tuple[dict[str, str], float]]], text: str
) -> None:
    """Labels with quotes, backslashes and line ends, and every number there is."""
    found = read(text_of(Family(name, "gauge", text, series) for name, series in given.items()))
    for name, series in given.items():
        samples = found[name]
        assert [labels for _, labels, _ in samples] == [labels for labels, _ in series]
        assert same((value for _, _, value in samples), (value for _, value in series))


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=6),
    st.floats(0, 1e9),
    _lines,
)
@settings(max_examples=100, deadline=None)
def test_histograms_are_read_back(counts: list[int], total: float, text: str) -> None:
    """Buckets add up, and the last one has everything."""
    bounds = [0.1 * (n + 1) for n in range(len(counts) - 1)]
    samples = read(text_of([HistogramFamily("ergon_wait", text, bounds, counts, total)]))
    values = {(name, labels.get("le", "")): value for name, labels, value in samples["ergon_wait"]}
    for n, bound in enumerate([*bounds, math.inf]):
        le = "+Inf" if math.isinf(bound) else str(bound)
        assert values["ergon_wait_bucket", le] == sum(counts[: n + 1])
    assert values["ergon_wait_count", ""] == sum(counts)
    assert math.isclose(values["ergon_wait_sum", ""], total, abs_tol=1e-6)
