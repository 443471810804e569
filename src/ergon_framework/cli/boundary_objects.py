"""``ergon boundary put|get``: artifacts in and out by hand."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ergon_framework.cli.boundary_download import Download, copied_out
from ergon_framework.cli.boundary_node import Node, asks_node
from ergon_framework.cli.output import show_one
from ergon_framework.cli.session import JsonFlag
from ergon_framework.errors import ConfigurationError

Bucket = Annotated[str, typer.Argument(metavar="BUCKET", help="For example batch-files.")]
Name = Annotated[str, typer.Argument(metavar="KEY", help="The name in the bucket.")]


@asks_node
def put(
    node: Node,
    bucket: Bucket,
    name: Name,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The bytes; - is standard input.")],
    as_json: JsonFlag = False,
) -> None:
    """Store a file under a name, for ever. The answer means that it is on disk.

    The same again is fine; other bytes under the same name are refused.
    """
    from ergon_framework.boundary.client.artifacts import digest_of, source_of
    from ergon_framework.boundary.client.transport import Reported

    with closing(source_of(sys.stdin.buffer if str(file) == "-" else file)) as source:
        # The node compares: what arrives is what lies here, or nothing is stored.
        digest = digest_of(source)
        with byte_progress(f"put {name}", source.size) as move:
            answer = node.transport.put_object(
                bucket, name, Reported(source, move), size=source.size, digest=digest
            )
    show_one(json.loads(answer), as_json=as_json)


@asks_node
def get(
    node: Node,
    bucket: Bucket,
    name: Name,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Where to [standard output]."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it is there.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Fetch an object and compare its digest.

    With -o the bytes go to FILE.part first, which becomes FILE when they are all there and right;
    the next run goes on with a part that was left behind.
    """
    if output is None:
        if as_json:
            raise ConfigurationError(
                "--json and the bytes cannot both go to the standard output", remedy="give -o FILE"
            )
        copied_out(node.transport, bucket, name, sys.stdout.buffer)
        return
    download = Download(node.transport, bucket, name, output)
    if not download.is_done(force=force):
        with byte_progress(f"get {name}", download.about.size) as move:
            download.run(move)
    shape = {"bucket": bucket, "key": name, "digest": download.about.digest}
    show_one({**shape, "size": download.about.size, "file": str(output)}, as_json=as_json)


@contextmanager
def byte_progress(text: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on the standard error stream, in bytes; without a terminal nothing is shown."""
    if not sys.stderr.isatty():
        yield lambda _done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
    from rich.text import Text

    columns = (
        TextColumn(Text(text).plain, markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(text, total=total)
        yield lambda done: shown.update(task, completed=done)
