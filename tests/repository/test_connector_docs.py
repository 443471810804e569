"""The table of connectors is made of results of the suite, and told when it is stale."""

from __future__ import annotations

from pathlib import Path

from tools.connector_docs import BEGIN, END, page_with, read_results, table, write_results

FULL = [
    *("redelivers_after_a_crash", "lost_channel_is_never_settled_twice", "goes_on_after_a_cut"),
    *("malformed_never_blocks", "malformed_flood_is_not_an_empty_source"),
    *("malformed_is_kept_with_its_reason", "foreign_message_is_work"),
    *("other_programs_can_read_it", "first_in_first_out", "parked_waits_for_its_time"),
]


def found(*passed: str) -> dict[str, list[str]]:
    """What the suite finds of one connector in one colour."""
    return {"passed": sorted(passed), "waived": [], "skipped": []}


def row(results: dict[str, dict[str, list[str]]]) -> str:
    """The row of one connector."""
    return table({"x": results}).splitlines()[-1]


def test_a_row_says_what_passed_in_every_colour() -> None:
    """What one colour does not keep is not promised."""
    assert "no" not in row({"sync": found(*FULL)}).replace("none", "").split(" | ")
    both = row({"sync": found(*FULL), "async": found(*FULL[1:])})
    assert both.startswith("| `x` | threads and asyncio | no | never settles twice |")


def test_who_counts_the_wait_of_parked_transactions() -> None:
    """The broker, the consumer, or nobody."""
    assert row({"sync": found(*FULL)}).endswith("| locally |")
    assert row({"sync": found(*FULL, "parked_outlives_its_consumer")}).endswith("| by the broker |")
    assert row({"sync": found(*FULL[:-1])}).endswith("waits in place |")


def test_results_come_back_as_they_were_recorded(tmp_path: Path) -> None:
    """In both colours; without a file there are none."""
    assert read_results(tmp_path) == {}
    (tmp_path / "docs" / "conformance").mkdir(parents=True)
    results = {"redis-streams": {"async": found("a"), "sync": found("a", "b")}}
    write_results(results, tmp_path)
    assert read_results(tmp_path) == results


def test_only_the_table_of_the_page_is_written() -> None:
    """What stands around it is of people."""
    page = page_with(f"before\n{BEGIN}\nold\n{END}\nafter\n", {"x": {"sync": found(*FULL)}})
    assert page.startswith(f"before\n{BEGIN}\n| connector |")
    assert page.endswith(f"|\n{END}\nafter\n")
    assert "old" not in page
