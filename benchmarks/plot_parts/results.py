"""Results that are kept in the repository: lines of JSON as the benchmarks print them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plot_parts.charts import Value

Record = dict[str, Any]
MACHINE = "machine"
_PATHS = re.compile(r"(?:/[\w.+-]+){2,}/?|\S+\.(?:sock|db)\b|https?://\S+")


class ResultsError(Exception):
    """Kept results are missing, damaged, or do not have what is asked of them."""


@dataclass(frozen=True)
class Results:
    """The records of each part, by case and contestant."""

    parts: dict[str, dict[tuple[str, str], Record]]

    def record(self, part: str, case: str, who: str) -> Record:
        """The record of one contestant."""
        try:
            return self.parts[part][case, who]
        except KeyError:
            raise ResultsError(
                f"{part}.jsonl has no result of {who!r} in the case {case!r}; "
                f"measure it with: make bench-plots ARGS='--measure {part}'"
            ) from None

    def peers(self, part: str, case: str, but: str) -> list[Record]:
        """Everybody else in a case, in the order of the benchmark."""
        return [
            record
            for (found, who), record in self.parts[part].items()
            if found == case and who != but
        ]


def read_results(folder: Path, parts: Iterable[str]) -> Results:
    """All parts; ``ResultsError`` names the file and the line that cannot be read."""
    return Results({part: _read(folder / f"{part}.jsonl") for part in parts})


def _read(path: Path) -> dict[tuple[str, str], Record]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ResultsError(f"{path.name} cannot be read: {error}") from error
    return {(each["case"], each.get("who", "")): each for each in parse(text, path.name)}


def parse(text: str, name: str) -> list[Record]:
    """The records of a text; each line is a JSON object with a case."""
    records = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise ResultsError(f"{name}, line {number}: not JSON: {error}") from error
        if not isinstance(record, dict) or not isinstance(record.get("case"), str):
            raise ResultsError(f"{name}, line {number}: not an object with a case")
        records.append(record)
    if not records:
        raise ResultsError(f"{name} is empty")
    return records


def value(record: Record, figure: str) -> Value:
    """A figure of a record with its spread, if it has one."""
    found = record.get(figure)
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise ResultsError(
            f"the result of {record.get('who')!r} in the case {record['case']!r} has no {figure}"
        )
    spread = record.get("spread" if figure == "per_second" else f"{figure}_spread")
    return Value(float(found), (spread[0], spread[1]) if spread else None)


def merged(kept: Sequence[Record], new: Sequence[Record], on: str) -> list[Record]:
    """What was measured now in place of what was known of the same cases; ``on`` is the day."""
    cases = {each["case"] for each in new}
    fresh = [_without_paths(each) | {"on": on} for each in new]
    there = [each for each in kept if each["case"] not in cases]
    both = [*there, *fresh]
    return [*(each for each in both if each["case"] == MACHINE),
            *(each for each in both if each["case"] != MACHINE)]  # fmt: skip


def _without_paths(record: Record) -> Record:
    """Why a contestant was skipped may name folders of a machine, which are nobody's business."""
    if "skipped" not in record:
        return record
    return record | {"skipped": _PATHS.sub("…", str(record["skipped"]))}


def to_text(records: Iterable[Record]) -> str:
    """One line for each."""
    return "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in records)
