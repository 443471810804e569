"""Writes the table of connectors in docs/reference/connectors.md from results of the suite.

python tools/connector_docs.py            write the table
python tools/connector_docs.py --check    fail when the table is stale

The results are in docs/conformance/connectors.toml; tests of the connectors compare them with runs
against real systems.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = "docs/conformance/connectors.toml"
PAGE = "docs/reference/connectors.md"
BEGIN = "<!-- written by tools/connector_docs.py -->"
END = "<!-- end -->"
Results = dict[str, dict[str, dict[str, list[str]]]]

COLUMNS = {
    "work of a dead consumer": ("redelivers_after_a_crash",),
    "lost channel": ("lost_channel_is_never_settled_twice", "goes_on_after_a_cut"),
    "malformed messages": (
        "malformed_never_blocks",
        "malformed_flood_is_not_an_empty_source",
        "malformed_is_kept_with_its_reason",
    ),
    "other programs": ("foreign_message_is_work", "other_programs_can_read_it"),
    "order": ("first_in_first_out",),
}
SAYS = {
    "work of a dead consumer": "comes back",
    "lost channel": "never settles twice",
    "malformed messages": "set aside",
    "other programs": "read and write it",
    "order": "kept",
}


def read_results(root: Path = ROOT) -> Results:
    """What the suite found of each connector in each colour."""
    path = root / RESULTS
    return tomllib.loads(path.read_text("utf-8")) if path.exists() else {}


def write_results(results: Results, root: Path = ROOT) -> None:
    """Record them, in the order of the names."""
    lines = [
        "# What the connector suite finds. Written by tests with RECORD_CONNECTORS=1; do not edit."
    ]
    for name, colours in sorted(results.items()):
        for colour, found in sorted(colours.items()):
            lines += ["", f'["{name}".{colour}]']
            for how in ("passed", "waived", "skipped"):
                lines.append(f"{how} = [")
                lines += [f'    "{check}",' for check in found[how]]
                lines.append("]")
    (root / RESULTS).write_text("\n".join(lines) + "\n", encoding="utf-8")


def table(results: Results) -> str:
    """One row for each connector."""
    heads = ["connector", "colours", *COLUMNS, "parking"]
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for name, colours in sorted(results.items()):
        passed = set.intersection(*(set(found["passed"]) for found in colours.values()))
        cells = [
            f"`{name}`",
            " and ".join(
                {"sync": "threads", "async": "asyncio"}[c] for c in sorted(colours, reverse=True)
            ),
        ]
        cells += [
            SAYS[head] if passed.issuperset(checks) else "no" for head, checks in COLUMNS.items()
        ]
        cells.append(_parking(passed))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _parking(passed: set[str]) -> str:
    if "parked_waits_for_its_time" not in passed:
        return "none: it waits in place"
    return "by the broker" if "parked_outlives_its_consumer" in passed else "locally"


def page_with(text: str, results: Results) -> str:
    """The page with its table."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table(results)}\n{END}{after}"


def main(arguments: list[str]) -> int:
    """Write the table, or say that it is stale."""
    path = ROOT / PAGE
    text = path.read_text("utf-8")
    if BEGIN not in text or END not in text:
        print(f"{PAGE} has no place for the table: {BEGIN} … {END}")
        return 1
    wanted = page_with(text, read_results())
    if arguments == ["--check"]:
        if text != wanted:
            print(f"{PAGE} is stale: run make docs")
        return int(text != wanted)
    path.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
