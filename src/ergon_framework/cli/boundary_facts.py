"""``ergon boundary append|fetch|confirm|lookup``: facts in and out by hand, one or many."""

from __future__ import annotations

import json
import sys
import time
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ergon_framework.cli.boundary_node import (
    ADMIN,
    CORE,
    DataFolder,
    NodeClient,
    asks_node,
    request,
)
from ergon_framework.cli.command_run import JsonFlag, finite
from ergon_framework.cli.output import (
    is_stdout_closed,
    progress,
    show_list,
    show_one,
    standard_input,
    stop_if_unread,
)
from ergon_framework.errors import BoundaryError, ConfigurationError, FactInvalidError

if TYPE_CHECKING:
    from ergon_framework.cli.boundary_node import NodeClient


MAX_ITEMS, MAX_BYTES = 500, 4 << 20
"""The most that one request holds."""
COLUMNS = ["line", "offset", "duplicate", "digest", "problem"]

Numbered = tuple[int, bytes]


def append_lines(
    node: NodeClient,
    lines: Iterable[bytes],
    *,
    as_json: bool,
    max_items: int = MAX_ITEMS,
    max_bytes: int = MAX_BYTES,
) -> int:
    """Append every line in order; 1 when one of them was refused or could not be sent.

    After trouble with the node itself nothing more is sent: the order would not be that of the
    file. Running the same file again is safe.
    """
    rows: list[dict[str, Any]] = []
    with progress("appended") as move:
        for batch in _batches(lines, max_items, max_bytes):
            results, is_over = _sent(node, batch)
            rows += results
            move(len(rows))
            if is_over:
                break
    show_list(rows if as_json else map(_outcome_row, rows), COLUMNS, as_json=as_json)
    return 1 if any("error" in row for row in rows) else 0


def _batches(lines: Iterable[bytes], max_items: int, max_bytes: int) -> Iterator[list[Numbered]]:
    batch: list[Numbered] = []
    size = 0
    for number, line in enumerate(lines, start=1):
        # Editors on Windows begin a file with a byte order mark, which is no JSON.
        text = (line.removeprefix(BOM_UTF8) if number == 1 else line).strip()
        if not text:
            continue
        if batch and (len(batch) == max_items or size + len(text) > max_bytes):
            yield batch
            batch, size = [], 0
        batch.append((number, text))
        size += len(text)
    if batch:
        yield batch


def _sent(node: NodeClient, batch: list[Numbered]) -> tuple[list[dict[str, Any]], bool]:
    """What became of each line, and whether it is better to stop."""
    # Looked at here: in one request with the others, a line that is no JSON would have all of them
    # refused.
    refused = {number: wrong for number, text in batch if (wrong := _wrong(text)) is not None}
    good = [text for number, text in batch if number not in refused]
    found, is_over = _answers(node, good)
    answers = iter(found)
    rows = [{"line": number, **(refused.get(number) or next(answers))} for number, _ in batch]
    return rows, is_over


def _answers(node: NodeClient, good: list[bytes]) -> tuple[list[dict[str, Any]], bool]:
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
        # The second half was not sent, and has the refusal after which nothing more is.
        return [*first, *[first[-1]] * (len(good) - half)], True
    rest, is_over = _answers(node, good[half:])
    return [*first, *rest], is_over


def _wrong(text: bytes) -> dict[str, Any] | None:
    """The refusal of a line that is no JSON; None for one that is."""
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


def _outcome_row(row: dict[str, Any]) -> dict[str, Any]:
    error = row.get("error")
    return {**row, "problem": f"{error['code']}: {error['message']}" if error else None}


STDIN = "-"

Consumer = Annotated[str, typer.Argument(metavar="CONSUMER", help="The consumer's name.")]
Holder = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=("Take the consumer's lease under this name: no other holder can fetch meanwhile."),
    ),
]


@asks_node
def append(
    node: NodeClient,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help='JSON {"envelope", "fact"}; - is standard input.'),
    ] = None,
    batch: Annotated[
        bool,
        typer.Option(
            "--batch",
            help="FILE has one such JSON object per line, and each line gets its own answer.",
        ),
    ] = False,
    subject: Annotated[
        str | None, typer.Option(metavar="KIND:ID", help="What the fact is about.")
    ] = None,
    predicate: Annotated[
        str | None, typer.Option(metavar="WORD", help="What happened to it, for example measured.")
    ] = None,
    object_json: Annotated[
        str | None,
        typer.Option(
            "--object", metavar="JSON", help="The details, as any JSON value [default: null]."
        ),
    ] = None,
    message_id: Annotated[
        str | None,
        typer.Option(metavar="ID", help="The key by which a repeated append is recognised."),
    ] = None,
    from_zone: Annotated[
        str | None,
        typer.Option("--from", metavar="ZONE", help="The zone that the fact comes from."),
    ] = None,
    to_zone: Annotated[
        str | None, typer.Option("--to", metavar="ZONE", help="The zone that the fact is for.")
    ] = None,
    produced_at: Annotated[
        int | None,
        typer.Option(
            metavar="MS", help="When the fact was produced, in Unix milliseconds [default: now]."
        ),
    ] = None,
    correlation_id: Annotated[
        str | None,
        typer.Option(metavar="ID", help="The id that all facts of one business process share."),
    ] = None,
    causation_id: Annotated[
        str | None,
        typer.Option(metavar="ID", help="The message id of the fact that caused this one."),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="A label of the fact; may be repeated."),
    ] = None,
    schema: Annotated[
        str | None, typer.Option(metavar="URN", help="The schema that the object follows.")
    ] = None,
    media_type: Annotated[
        str | None, typer.Option(metavar="TYPE", help="The media type of the artifact.")
    ] = None,
    as_json: JsonFlag = False,
) -> int:
    """Append a fact, or many with --batch.

    They go to the zone's outbound log. A fact is read from FILE or from the standard input, or is
    made of the options. When the answer comes, the fact is on disk. The same command again appends
    nothing and answers with the same offset. Exit code 1 when a fact was refused.

    Example: ergon boundary append fact.json
    """
    envelope = {
        "message_id": message_id,
        "from_zone": from_zone,
        "to_zone": to_zone,
        "produced_at_unix_ms": produced_at,
        "correlation_id": correlation_id,
        "causation_id": causation_id,
        "labels": _labels(label),
        "object_schema": schema,
        "object_media_type": media_type,
    }
    given = {name: value for name, value in envelope.items() if value is not None}
    is_given = bool(given) or any(word is not None for word in (subject, predicate, object_json))
    if is_given and (file is not None or batch):
        raise ConfigurationError("a file and options were given", remedy="give one of the two")
    if batch:
        return append_lines(node, _lines(file), as_json=as_json)
    body = _composed(given, subject, predicate, object_json) if is_given else _whole(file)
    show_one(node.send(CORE + "AppendFact", body), as_json=as_json)
    return 0


@asks_node
def fetch(
    node: NodeClient,
    consumer: Consumer,
    limit: Annotated[int, typer.Option(min=1, help="Print at most this many facts.")] = 100,
    wait: Annotated[
        float,
        typer.Option(
            metavar="S", min=0.0, callback=finite, help="Seconds to wait when there is no fact yet."
        ),
    ] = 0.0,
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Confirm the facts after they were printed.")
    ] = False,
    holder: Holder = None,
    as_json: JsonFlag = False,
) -> None:
    """Print the next facts of a consumer.

    The same facts are printed again until they are confirmed.

    Example: ergon boundary fetch billing --limit 10 --confirm
    """
    if confirm and is_stdout_closed():
        raise ConfigurationError(
            "the standard output is closed, and what nobody can read is not confirmed",
            remedy="let the output go somewhere, or leave --confirm out",
        )
    wait_ms = round(wait * 1000)
    asked = request(consumer_name=consumer, limit=limit, wait_ms=wait_ms, holder=holder)
    page = node.send(CORE + "FetchFacts", asked, wait=wait)
    show_page(page, as_json=as_json)
    sys.stdout.flush()  # a fact that the reader of the pipe did not get is not confirmed
    stop_if_unread()
    if confirm and (page["facts"] or page["through_offset"] > page["cursor"]):
        node.ask(
            CORE + "ConfirmReceipt",
            consumer_name=consumer,
            offset=page["through_offset"],
            holder=holder,
        )


@asks_node
def confirm(
    node: NodeClient,
    consumer: Consumer,
    offset: Annotated[int, typer.Argument(metavar="OFFSET", min=0)],
    holder: Holder = None,
    as_json: JsonFlag = False,
) -> None:
    """Confirm that a consumer has handled facts up to OFFSET.

    These facts are not delivered to it again.

    Example: ergon boundary confirm billing 42
    """
    answer = node.ask(CORE + "ConfirmReceipt", consumer_name=consumer, offset=offset, holder=holder)
    show_one(answer, as_json=as_json)


@asks_node
def lookup(
    node: NodeClient,
    from_zone: Annotated[
        str, typer.Argument(metavar="FROM_ZONE", help="The zone that the fact comes from.")
    ],
    message_id: Annotated[
        str, typer.Argument(metavar="MESSAGE_ID", help="The message id of the fact.")
    ],
    log: Annotated[
        str | None,
        typer.Option(
            metavar="LOG",
            help="Look in this log only: outbound or inbound:ZONE [default: all logs].",
        ),
    ] = None,
    data: DataFolder = None,
    as_json: JsonFlag = False,
) -> None:
    """Say whether a message id was appended, and where.

    The answer has the log and the offset. Exit code 1 when the id was never appended.

    Example: ergon boundary lookup plant order-7
    """
    if data is None:
        found = node.ask(ADMIN + "LookupFact", from_zone=from_zone, message_id=message_id, log=log)
    else:
        from ergon_framework.boundary.backup import open_read_only

        with open_read_only(data) as zone:
            found = zone.lookup(from_zone, message_id, log)
    show_one(found, as_json=as_json)


# ---- what goes in -------------------------------------------------------------------------------


def _composed(
    envelope: dict[str, Any], subject: str | None, predicate: str | None, text: str | None
) -> bytes:
    object_text = "null" if text is None else text
    try:
        json.loads(object_text)
    except ValueError as error:
        raise ConfigurationError(
            f"--object is not JSON: {error}", remedy="""write for example --object '{"step": 4}'"""
        ) from None
    fact = {"subject": subject, "predicate": predicate}
    stated = {name: word for name, word in fact.items() if word is not None}
    whole = {"produced_at_unix_ms": round(time.time() * 1000), **envelope}
    body = json.dumps({"envelope": whole, "fact": {**stated, "object_json": None}})
    # Spliced in as text: decoded and written again, a key that it has twice or a number with many
    # digits would be changed, and the node could not refuse it.
    return f"{body.removesuffix('null}}')}{object_text}}}}}".encode("utf-8", "surrogatepass")


def _labels(texts: list[str] | None) -> dict[str, str] | None:
    labels = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise ConfigurationError(
                f"--label {text!r} is not NAME=VALUE", remedy="write for example --label line=3"
            )
        labels[name] = value
    return labels or None


def _whole(file: Path | None) -> bytes:
    return b"".join(_lines(file))


def _lines(file: Path | None) -> Iterator[bytes]:
    """The lines of a file or of the standard input, as they are."""
    if file is None and standard_input().isatty():
        raise ConfigurationError(
            "there is no fact", remedy="name a file, give --subject and the like, or pipe it in"
        )
    if file is None or str(file) == STDIN:
        yield from standard_input().buffer
        return
    try:
        with open(file, "rb") as opened:
            yield from opened
    except OSError as error:
        raise ConfigurationError(
            f"{file} cannot be read: {error.strerror}", remedy="name a readable file"
        ) from error


# ---- what comes out -----------------------------------------------------------------------------


def show_page(page: dict[str, Any], *, as_json: bool) -> None:
    """Print a page of facts, and what was lost between them."""
    if as_json:
        show_one(page, as_json=True)
        return
    columns = ["offset", "from_zone", "message_id", "subject", "predicate", "object"]
    show_list((_row(each) for each in page["facts"]), columns, as_json=False)
    for gap in page.get("gaps", ()):
        print(f"lost: {_lost(gap)} ({gap['reason']})")


def _lost(gap: dict[str, Any]) -> str:
    """The offsets of a loss. A loss of a peer has one offset here, and others there."""
    if "source_first_offset" in gap:
        there = f"{gap['source_first_offset']} to {gap['source_last_offset']}"
        return f"{gap['first_offset']}, at the peer {there}"
    return f"{gap['first_offset']} to {gap['last_offset']}"


def _row(delivery: dict[str, Any]) -> dict[str, Any]:
    envelope, fact = delivery["envelope"], delivery["fact"]
    text = json.dumps(fact.get("object_json"), ensure_ascii=False)
    return {**envelope, **fact, "offset": delivery["offset"], "object": text}
