"""``ergon boundary outbox``: what a producer's outbox holds, and sending it again."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ergon_framework.cli.command_run import JsonFlag, finite
from ergon_framework.cli.output import show_list, show_one

if TYPE_CHECKING:
    from ergon_framework.boundary.client.outbox_store import OutboxStore

COLUMNS = [
    "id",
    "state",
    "from_zone",
    "message_id",
    "size",
    "added_at",
    "code",
    "reason",
    "message",
]
app = typer.Typer(help="Inspect a producer's outbox; retry, discard or resend its facts.")

OutboxFile = Annotated[Path, typer.Argument(metavar="FILE", help="The producer's outbox file.")]
ItemId = Annotated[
    int,
    typer.Argument(
        metavar="ID", min=1, help="The number in the first column of `ergon boundary outbox list`."
    ),
]


@app.command("list")
def list_items(
    file: OutboxFile,
    refused: Annotated[
        bool, typer.Option("--refused", help="Only facts that the node refused.")
    ] = False,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Show at most this many.")] = 100,
    after: Annotated[
        int, typer.Option(metavar="ID", min=0, help="Only facts with a higher number than this.")
    ] = 0,
    as_json: JsonFlag = False,
) -> None:
    """List facts that wait for the node or were refused by it, in order.

    Their content is not shown.

    Example: ergon boundary outbox list outbox.db --refused
    """
    with _opened(file) as spool:
        items = [asdict(each) for each in spool.line(limit, after=after, only_refused=refused)]
    show_list(items, COLUMNS, as_json=as_json)


@app.command()
def show(file: OutboxFile, as_json: JsonFlag = False) -> None:
    """Show how many facts wait, and since when.

    Also how many were refused, and how many sent ones are kept.

    Example: ergon boundary outbox show outbox.db
    """
    with _opened(file) as spool:
        figures, kept, oldest = spool.figures(), spool.kept(), spool.oldest_at()
    view = asdict(figures) | {
        "oldest_at": oldest,
        "kept": kept.items,
        "kept_bytes": kept.bytes,
        "kept_from": kept.first_sent_at,
        "kept_to": kept.last_sent_at,
    }
    show_one(view, as_json=as_json)


@app.command()
def retry(file: OutboxFile, item: ItemId) -> None:
    """Send a refused fact again.

    It is sent before every fact that was added after it.

    Example: ergon boundary outbox retry outbox.db 3
    """
    with _opened(file) as spool:
        spool.retry(item)


@app.command()
def discard(file: OutboxFile, item: ItemId) -> None:
    """Give a refused fact up for good.

    Example: ergon boundary outbox discard outbox.db 3
    """
    with _opened(file) as spool:
        spool.discard(item)


@app.command()
def resend(
    file: OutboxFile,
    since: Annotated[
        float | None,
        typer.Option(
            metavar="T",
            callback=finite,
            help=(
                "Only facts sent since this time, in Unix seconds of the producer's clock "
                "[default: all]."
            ),
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Mark facts that were sent, and are still kept, to be sent again.

    Use it when the node was restored from a backup. The producer's own process sends them when it
    next reads its outbox; the node recognises those that it has. An outbox keeps sent facts for as
    long as its keep_sent says.

    Example: ergon boundary outbox resend outbox.db
    """
    with _opened(file) as spool:
        count = spool.resend(since)
    show_one({"resent": count}, as_json=as_json)


@contextmanager
def _opened(file: Path) -> Iterator[OutboxStore]:
    """The spool in a file that is there: a mistyped name makes no new one."""
    from ergon_framework.boundary.client.outbox_store import OutboxStore
    from ergon_framework.errors import ConfigurationError

    if not file.is_file():
        raise ConfigurationError(
            f"there is no outbox {file}", remedy="name the file that Outbox(…) was given"
        )
    if not _is_outbox(file):
        raise ConfigurationError(
            f"{file} is no outbox; nothing was changed",
            remedy="name the file that Outbox(…) was given",
        )
    spool = OutboxStore(file, clock=time.time)
    try:
        yield spool
    finally:
        spool.close()


def _is_outbox(file: Path) -> bool:
    """Whether a file has the tables: opening another database would give it some."""
    asked = "SELECT 1 FROM sqlite_master WHERE name = 'ergon_outbox'"
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as database:
            return database.execute(asked).fetchone() is not None
    except sqlite3.DatabaseError:
        return False
