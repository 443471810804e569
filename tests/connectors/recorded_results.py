"""What the suite finds of each connector, beside what the documentation says of it.

`docs/conformance/connectors.toml` has the results that `tools/connector_docs.py` makes a table of.
A test of a connector compares them with a real run, and writes them with RECORD_CONNECTORS=1.
"""

from __future__ import annotations

import os

from ergon_framework.testing.suites import CheckOutcome, SuiteReport
from tools.connector_docs import RESULTS, read_results, write_results


def check_recorded(name: str, report: SuiteReport) -> None:
    """Fail when the documentation says something else of this connector and colour."""
    (colour,) = {each.colour for each in report.results}
    found = {
        how.value: sorted(each.name for each in report.results if each.outcome is how)
        for how in (CheckOutcome.PASSED, CheckOutcome.WAIVED, CheckOutcome.SKIPPED)
    }
    recorded = read_results()
    if os.environ.get("RECORD_CONNECTORS") == "1":
        recorded.setdefault(name, {})[colour] = found
        write_results(recorded)
    assert recorded.get(name, {}).get(colour) == found, (
        f"{RESULTS} says something else of {name}: run this test with RECORD_CONNECTORS=1, and then"
        " tools/connector_docs.py"
    )
