"""What the suite finds of each connector, beside what the documentation says of it.

`docs/conformance/connectors.toml` has the results that `tools/connector_docs.py` makes a table of.
A test of a connector compares them with a real run, and writes them with RECORD_CONNECTORS=1.
"""

from __future__ import annotations

import os

from ergon_framework.testing.suites import CheckOutcome, SuiteReport
from tools.connector_docs import RESULTS, read_results, write_results


def check_recorded(name: str, report: SuiteReport) -> None:
    """Fail when the documentation says something else of this connector and its colours."""
    colours = sorted({each.colour for each in report.results})
    found = {colour: _found(report, colour) for colour in colours}
    recorded = read_results()
    if os.environ.get("RECORD_CONNECTORS") == "1":
        recorded.setdefault(name, {}).update(found)
        write_results(recorded)
    assert {colour: recorded.get(name, {}).get(colour) for colour in colours} == found, (
        f"{RESULTS} says something else of {name}: run this test with RECORD_CONNECTORS=1, and then"
        " tools/connector_docs.py"
    )


def _found(report: SuiteReport, colour: str) -> dict[str, list[str]]:
    return {
        how.value: sorted(
            each.name for each in report.results if (each.outcome, each.colour) == (how, colour)
        )
        for how in (CheckOutcome.PASSED, CheckOutcome.WAIVED, CheckOutcome.SKIPPED)
    }
