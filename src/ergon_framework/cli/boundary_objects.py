"""``ergon boundary put|get``: artifacts in and out by hand.

A file gets its name when all bytes of its object are there and their digest is right, not before.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from ergon_framework.cli.boundary_node import NodeClient, asks_node
from ergon_framework.cli.command_run import JsonFlag
from ergon_framework.cli.output import StdoutBytes, progress, show_one, standard_input
from ergon_framework.errors import ConfigurationError, DataLossError
from ergon_framework.storage.fsync import sync_file, sync_folder
from ergon_framework.storage.secure_files import Folder, UnsafeFileError

if TYPE_CHECKING:
    from ergon_framework.boundary.client.transport import Transport


CHUNK = 1 << 20


class ObjectDownload:
    """Downloads one object into a file."""

    def __init__(self, transport: Transport, bucket: str, key: str, target: Path) -> None:
        if target.is_dir():
            raise ConfigurationError(f"{target} is a folder", remedy="name a file in it")
        self._transport = transport
        self._target = target
        self._part = target.with_name(f"{target.name}.part")
        self.about = transport.head_object(bucket, key)

    def is_done(self, *, force: bool) -> bool:
        """Whether the file is there already; another file is not replaced unless forced."""
        if not self._target.exists():
            return False
        try:
            with open(self._target, "rb") as file:
                if _spelled(hashlib.file_digest(file, "sha256")) == self.about.digest:
                    return True
        except OSError as error:
            raise _unusable(self._target, error) from error
        if force:
            return False
        raise ConfigurationError(
            f"{self._target} is there already and is another file",
            remedy="name another one, or give --force",
        )

    def run(self, report: Callable[[int], None]) -> None:
        """Fetch what is missing; a part of something else is given up and fetched anew."""
        try:
            # A part of an earlier run may be of other bytes: then the object is fetched once more,
            # from its start. If that is wrong as well, the bytes themselves are.
            is_fresh = not self._part.exists()
            while not self._attempt(report):
                self._part.unlink()
                if is_fresh:
                    raise _is_damaged(self.about.bucket, self.about.key)
                is_fresh = True
            self._part.replace(self._target)
            # Without it, a power failure may take the new name away although its bytes are on the
            # disk.
            sync_folder(self._target.absolute().parent)
        except DataLossError:
            self._part.unlink(missing_ok=True)  # nothing of a spoilt object is worth keeping
            raise
        except UnsafeFileError as error:
            raise ConfigurationError(
                f"{error.filename} is not used: {error.strerror}",
                remedy="see who made it; then remove it, or name a file in a folder of your own",
            ) from error
        except OSError as error:
            raise _unusable(self._target, error) from error

    def _attempt(self, report: Callable[[int], None]) -> bool:
        with open(self._opened(), "r+b") as file:
            hashed = hashlib.file_digest(file, "sha256")
            done = file.tell()
            if done < self.about.size:
                self._receive(file, hashed, done, report)
            file.flush()
            sync_file(file.fileno())
        return _spelled(hashed) == self.about.digest

    def _opened(self) -> int:
        """A descriptor of the part file; one that another user owns is refused."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        with Folder.open(self._part.absolute().parent, follow=True) as folder:
            return folder.open_file(self._part.name, flags, is_public=True)

    def _receive(
        self, file: BinaryIO, hashed: Any, done: int, report: Callable[[int], None]
    ) -> None:
        about = self.about
        stream = self._transport.get_object(about.bucket, about.key, start=done)
        with closing(stream):
            while piece := stream.read(CHUNK):
                file.write(piece)
                hashed.update(piece)
                done += len(piece)
                report(done)


def copied_out(transport: Transport, bucket: str, key: str, out: BinaryIO | StdoutBytes) -> None:
    """Write an object's bytes to a stream; a wrong digest can only be reported after the bytes."""
    hashed = hashlib.sha256()
    with closing(transport.get_object(bucket, key)) as stream:
        while piece := stream.read(CHUNK):
            hashed.update(piece)
            out.write(piece)
        out.flush()
        expected = stream.digest
    if _spelled(hashed) != expected:
        raise _is_damaged(bucket, key)


def _spelled(hashed: Any) -> str:
    return f"sha256:{hashed.hexdigest()}"


def _is_damaged(bucket: str, key: str) -> DataLossError:
    return DataLossError(
        f"the bytes of {bucket}/{key} that came are not those that the node promised",
        reason="digest_mismatch",
        remedy="try again; if that does not help, see what `ergon boundary verify` says there",
        details={"bucket": bucket, "key": key},
    )


def _unusable(path: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"{path} cannot be written: {error.strerror or error}",
        remedy="name a file in a folder that can be written and has room",
    )


Bucket = Annotated[
    str, typer.Argument(metavar="BUCKET", help="The bucket, for example batch-files.")
]
Name = Annotated[str, typer.Argument(metavar="KEY", help="The name in the bucket.")]


@asks_node
def put(
    node: NodeClient,
    bucket: Bucket,
    name: Name,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The file to store; - reads the standard input.")
    ],
    as_json: JsonFlag = False,
) -> None:
    """Store a file under a bucket and a key, for ever.

    When the answer comes, the file is on disk. The same file again changes nothing; other bytes
    under the same key are refused.

    Example: ergon boundary put batch-files report.pdf report.pdf
    """
    from ergon_framework.boundary.client.artifacts import digest_of, source_of
    from ergon_framework.boundary.client.transport import Reported

    blob = standard_input().buffer if str(file) == "-" else file
    with closing(source_of(blob, takes_pipes=True)) as source:
        # The node compares: what arrives is what lies here, or nothing is stored.
        digest = digest_of(source)
        with progress(f"put {name}", source.size, in_bytes=True) as move:
            answer = node.transport.put_object(
                bucket, name, Reported(source, move), size=source.size, digest=digest
            )
    show_one(json.loads(answer), as_json=as_json)


@asks_node
def get(
    node: NodeClient,
    bucket: Bucket,
    name: Name,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="The file to write [default: the standard output].",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace FILE if it is there.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Fetch an object and compare its digest.

    With -o the bytes are written to FILE.part, which is renamed to FILE when all of them are there
    and right. A FILE.part that an earlier command left is continued.

    Example: ergon boundary get batch-files report.pdf -o report.pdf
    """
    if output is None:
        if as_json:
            raise ConfigurationError(
                "--json and the bytes cannot both go to the standard output", remedy="give -o FILE"
            )
        copied_out(node.transport, bucket, name, StdoutBytes())
        return
    download = ObjectDownload(node.transport, bucket, name, output)
    if not download.is_done(force=force):
        with progress(f"get {name}", download.about.size, in_bytes=True) as move:
            download.run(move)
    view = {"bucket": bucket, "key": name, "digest": download.about.digest}
    show_one({**view, "size": download.about.size, "file": str(output)}, as_json=as_json)
