"""``ergon boundary append --batch``: a file of facts, each with an outcome of its own."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ergon_framework.cli.job_client import progress
from ergon_framework.cli.output import show_list
from ergon_framework.errors import BoundaryError, FactInvalidError

if TYPE_CHECKING:
    from ergon_framework.cli.boundary_node import Node

ITEMS, BYTES = 500, 4 << 20
"""What goes into one request at most."""
COLUMNS = ["line", "offset", "duplicate", "digest", "problem"]

Numbered = tuple[int, bytes]


def append_lines(node: Node, lines: Iterable[bytes], *, as_json: bool) -> int:
    """Append every line in order; 1 when one of them was refused or could not be sent.

    After trouble with the node itself nothing more is sent: the order would not be that of the
    file. Running the same file again is safe.
    """
    rows: list[dict[str, Any]] = []
    with progress("appended") as move:
        for batch in _batches(lines):
            results, is_over = _sent(node, batch)
            rows += results
            move(len(rows))
            if is_over:
                break
    show_list(rows if as_json else map(_row, rows), COLUMNS, as_json=as_json)
    return 1 if any("error" in row for row in rows) else 0


def _batches(lines: Iterable[bytes]) -> Iterator[list[Numbered]]:
    batch: list[Numbered] = []
    size = 0
    for number, line in enumerate(lines, start=1):
        text = (line.removeprefix(BOM_UTF8) if number == 1 else line).strip()
        if not text:
            continue
        if batch and (len(batch) == ITEMS or size + len(text) > BYTES):
            yield batch
            batch, size = [], 0
        batch.append((number, text))
        size += len(text)
    if batch:
        yield batch


def _sent(node: Node, batch: list[Numbered]) -> tuple[list[dict[str, Any]], bool]:
    """What became of each line, and whether it is better to stop."""
    told = {number: wrong for number, text in batch if (wrong := _wrong(text)) is not None}
    good = [text for number, text in batch if number not in told]
    found, is_over = _answers(node, good)
    answers = iter(found)
    rows = [{"line": number, **(told.get(number) or next(answers))} for number, _ in batch]
    return rows, is_over


def _answers(node: Node, good: list[bytes]) -> tuple[list[dict[str, Any]], bool]:
    """What the node says to each of these lines, in order, and whether it is better to stop.

    A request that it will not have is about its lines, and is sent in halves: one that is too
    large does not keep the others out.
    """
    from ergon_framework.cli.boundary_node import ADMIN

    if not good:
        return [], False
    try:
        body = b'{"items":[' + b",".join(good) + b"]}"
        return node.send(ADMIN + "AppendFacts", body)["results"], False
    except BoundaryError as error:
        refusal = {"error": error.to_dict()}
        if error.code != "invalid_argument":
            return [refusal] * len(good), True
    if len(good) == 1:
        return [refusal], False
    half = len(good) // 2
    first, is_over = _answers(node, good[:half])
    if is_over:
        return [*first, *[first[-1]] * (len(good) - half)], True
    rest, is_over = _answers(node, good[half:])
    return [*first, *rest], is_over


def _wrong(text: bytes) -> dict[str, Any] | None:
    """A line that is no JSON would spoil its neighbours' request."""
    import msgspec

    try:
        msgspec.json.decode(text, type=msgspec.Raw)
        text.decode()
    except RecursionError:
        problem = FactInvalidError(
            "the line is nested too deeply", reason="depth", remedy="put the data as an artifact"
        )
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        problem = FactInvalidError(f"the line is not JSON: {error}", reason="json")
    else:
        return None
    return {"error": problem.to_dict()}


def _row(row: dict[str, Any]) -> dict[str, Any]:
    error = row.get("error")
    return {**row, "problem": f"{error['code']}: {error['message']}" if error else None}
