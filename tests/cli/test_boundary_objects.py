"""``ergon boundary put|get``: bytes in, the same bytes out, or a clear word."""

from __future__ import annotations

import hashlib
import io
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.boundary.http.client import HttpTransport
from ergon_framework.boundary.model import ObjectReceipt
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.cli import boundary_objects, invoke
from ergon_framework.cli.output import progress
from ergon_framework.errors import ConfigurationError, DataLossError, NodeUnavailableError
from tests.cli.boundary_node import BoundaryCommands, running
from tests.local_users import NOBODY, needs_root, shared_folder

pytestmark = pytest.mark.req("BOUNDARY:operator", "BOUNDARY:objects")

BLOB = bytes(range(256)) * 9000  # several pieces
DIGEST = f"sha256:{hashlib.sha256(BLOB).hexdigest()}"


@pytest.fixture
def commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[BoundaryCommands]:
    """The command line, a node, and a file to put."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "report.pdf").write_bytes(BLOB)
    settings = ZoneSettings(data=str(tmp_path / "data"), listen="127.0.0.1:0", insecure=True)
    with running(settings) as address:
        yield BoundaryCommands(tmp_path, capsys, monkeypatch, f"http://{address}")


def test_put_and_get(commands: BoundaryCommands) -> None:
    """The digest is told, and the file that comes back is the one that went."""
    stored = commands.ask("put", "batch-files", "7/report.pdf", "report.pdf", "--json")
    assert (stored.code, stored.err) == (0, "")
    assert stored.json == {
        "bucket": "batch-files",
        "key": "7/report.pdf",
        "digest": DIGEST,
        "size": len(BLOB),
    }
    again = commands.ask("put", "batch-files", "7/report.pdf", "-", "--json", typed=BLOB)
    assert again.json == stored.json
    got = commands.ask("get", "batch-files", "7/report.pdf", "-o", "copy.pdf", "--json")
    assert got.json == {**stored.json, "file": "copy.pdf"}
    assert Path("copy.pdf").read_bytes() == BLOB
    assert not Path("copy.pdf.part").exists()


def test_put_what_comes_through_a_pipe(commands: BoundaryCommands) -> None:
    """As a shell's ``<(…)`` gives it: it can be read once, and is.

    One with a name is refused: nobody may ever write into it.
    """
    reading, writing = os.pipe()

    def write() -> None:
        with os.fdopen(writing, "wb") as end:
            end.write(BLOB)

    writer = threading.Thread(target=write)
    writer.start()
    stored = commands.ask("put", "batch-files", "piped", f"/dev/fd/{reading}", "--json")
    writer.join()
    os.close(reading)
    assert (stored.code, stored.json["digest"], stored.json["size"]) == (0, DIGEST, len(BLOB))
    os.mkfifo("pipe")
    refused = commands.ask("put", "batch-files", "named", "pipe")
    assert refused.code == 2
    assert "pipe is a named pipe" in refused.err
    assert "- < pipe" in refused.err


@pytest.mark.req("BOUNDARY:badinput", "P15")
def test_put_refuses(commands: BoundaryCommands) -> None:
    """Other bytes under a name that stands, a bad name, and a file that is none."""
    commands.ask("put", "batch-files", "k", "report.pdf")
    other = commands.ask("put", "batch-files", "k", "-", "--json", typed=b"other")
    assert (other.code, other.json["error"]["details"]["reason"]) == (1, "object_conflict")
    assert commands.ask("put", "a b", "k", "report.pdf").code == 1
    missing = commands.ask("put", "batch-files", "k", "none.pdf")
    assert (missing.code, "cannot read none.pdf" in missing.err) == (2, True)
    folder = commands.ask("put", "batch-files", "k", ".")
    assert (folder.code, "is a folder" in folder.err) == (2, True)


def test_get_goes_on_where_it_stopped(
    commands: BoundaryCommands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what is missing of a part is asked for."""
    commands.ask("put", "batch-files", "k", "report.pdf")
    Path("copy.part").write_bytes(BLOB[:1000])
    starts: list[int] = []
    get_object = HttpTransport.get_object

    def seen(self: HttpTransport, bucket: str, key: str, *, start: int = 0) -> Any:
        starts.append(start)
        return get_object(self, bucket, key, start=start)

    monkeypatch.setattr(HttpTransport, "get_object", seen)
    assert commands.ask("get", "batch-files", "k", "-o", "copy").code == 0
    assert (starts, Path("copy").read_bytes()) == ([1000], BLOB)


def test_a_part_that_somebody_else_made_is_not_written_to(commands: BoundaryCommands) -> None:
    """Not through a link, which would add the bytes to another file; and no pipe is waited for."""
    commands.ask("put", "batch-files", "k", "report.pdf")
    Path("victim").write_text("mine")
    Path("copy.part").symlink_to("victim")
    refused = commands.ask("get", "batch-files", "k", "-o", "copy")
    assert (refused.code, Path("victim").read_text()) == (2, "mine")
    assert "copy.part" in refused.err
    assert "symbolic link" in refused.err
    Path("copy.part").unlink()
    os.mkfifo("copy.part")
    refused = commands.ask("get", "batch-files", "k", "-o", "copy")
    assert (refused.code, Path("copy").exists()) == (2, False)
    assert "named pipe" in refused.err


@needs_root
def test_a_part_of_another_user_in_a_folder_of_everybody_is_refused(
    commands: BoundaryCommands,
) -> None:
    """He could change the file after it was compared."""
    commands.ask("put", "batch-files", "k", "report.pdf")
    with shared_folder() as folder:
        part = folder / "copy.part"
        part.write_bytes(BLOB[:1000])
        os.chown(part, NOBODY, NOBODY)
        refused = commands.ask("get", "batch-files", "k", "-o", str(folder / "copy"))
        assert (refused.code, (folder / "copy").exists()) == (2, False)
        assert "belongs to user nobody" in refused.err


def test_the_umask_says_who_may_read_what_was_fetched(commands: BoundaryCommands) -> None:
    """It is a file of the user's, and none of ours."""
    commands.ask("put", "batch-files", "k", "report.pdf")
    before = os.umask(0o022)
    try:
        commands.ask("get", "batch-files", "k", "-o", "copy")
    finally:
        os.umask(before)
    assert Path("copy").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("part", [b"something else", BLOB + b"more", BLOB[:-1] + b"?"])
def test_a_part_of_something_else_is_given_up(commands: BoundaryCommands, part: bytes) -> None:
    """The digest tells; then everything is fetched anew."""
    commands.ask("put", "batch-files", "k", "report.pdf")
    Path("copy.part").write_bytes(part)
    assert commands.ask("get", "batch-files", "k", "-o", "copy").code == 0
    assert Path("copy").read_bytes() == BLOB


@pytest.mark.slow
def test_get_does_not_replace_another_file(commands: BoundaryCommands) -> None:
    """The same file is fine, another one only with --force."""
    commands.ask("put", "batch-files", "k", "report.pdf")
    assert commands.ask("get", "batch-files", "k", "-o", "report.pdf").code == 0
    Path("notes").write_bytes(b"mine")
    refused = commands.ask("get", "batch-files", "k", "-o", "notes")
    assert (refused.code, "is there already" in refused.err) == (2, True)
    assert Path("notes").read_bytes() == b"mine"
    assert commands.ask("get", "batch-files", "k", "-o", "notes", "--force").code == 0
    assert Path("notes").read_bytes() == BLOB


@pytest.mark.req("BOUNDARY:badinput")
def test_get_refuses(commands: BoundaryCommands) -> None:
    """An object that is not there, a folder that is not there, and two things on one stream."""
    missing = commands.ask("get", "batch-files", "none", "-o", "copy")
    assert (missing.code, "there is no object batch-files/none" in missing.err) == (1, True)
    assert not list(commands.place.glob("copy*"))
    commands.ask("put", "batch-files", "k", "report.pdf")
    nowhere = commands.ask("get", "batch-files", "k", "-o", "no/such/copy")
    assert (nowhere.code, "no/such/copy cannot be written" in nowhere.err) == (2, True)
    folder = commands.ask("get", "batch-files", "k", "-o", ".")
    assert (folder.code, ". is a folder" in folder.err) == (2, True)
    both = commands.ask("get", "batch-files", "k", "--json")
    assert (both.code, "give -o FILE" in both.err) == (2, True)


@pytest.mark.req("C7")
def test_get_notices_a_damaged_object(commands: BoundaryCommands) -> None:
    """A byte that changed on the node's disk is no success, and the file is not made.

    The answer breaks off before its end; from then on the node knows, and says so.
    """
    commands.ask("put", "batch-files", "k", "report.pdf")
    (blob,) = (path for path in Path("data/objects/sha256").glob("*/*/*") if path.is_file())
    blob.chmod(0o600)
    with open(blob, "r+b") as file:
        file.write(b"?")
    assert commands.ask("get", "batch-files", "k", "-o", "copy").code == 1
    assert not (commands.place / "copy").exists()
    again = commands.ask("get", "batch-files", "k", "-o", "copy")
    assert again.code == 1
    assert "cut off or changed" in again.err
    assert not list(commands.place.glob("copy*"))


class Pretender:
    """A transport whose bytes are not what it says, or break off."""

    def __init__(self, data: bytes, *, breaks: bool = False) -> None:
        self._data = data
        self._breaks = breaks

    def head_object(self, bucket: str, key: str) -> ObjectReceipt:
        return ObjectReceipt(bucket=bucket, key=key, digest=DIGEST, size=len(BLOB))

    def get_object(self, bucket: str, key: str, *, start: int = 0) -> Any:
        rest, breaks = io.BytesIO(self._data[start:]), self._breaks

        class Stream:
            digest = DIGEST

            def read(self, most: int) -> bytes:
                data = rest.read(most)
                if not data and breaks:
                    raise NodeUnavailableError("the connection was lost")
                return data

            def close(self) -> None: ...

        return Stream()


def test_a_broken_transfer_keeps_its_part(tmp_path: Path) -> None:
    """The next run has less to do, and ends with the whole file."""
    target = tmp_path / "copy"
    broken: Any = Pretender(BLOB[:5000], breaks=True)
    with pytest.raises(NodeUnavailableError):
        boundary_objects.ObjectDownload(broken, "b", "k", target).run(lambda _done: None)
    assert (target.exists(), (tmp_path / "copy.part").stat().st_size) == (False, 5000)
    whole: Any = Pretender(BLOB)
    moved: list[int] = []
    boundary_objects.ObjectDownload(whole, "b", "k", target).run(moved.append)
    assert (target.read_bytes(), moved[-1]) == (BLOB, len(BLOB))


def test_bytes_that_are_not_the_promised_ones() -> None:
    """On a stream it can only be told afterwards, but it is told."""
    liar: Any = Pretender(b"x" * len(BLOB))
    out = io.BytesIO()
    with pytest.raises(DataLossError, match="not those that the node promised"):
        boundary_objects.copied_out(liar, "b", "k", out)


def test_wrong_bytes_leave_nothing_behind(tmp_path: Path) -> None:
    """Neither the file nor a part that could spoil the next run."""
    liar: Any = Pretender(b"x" * len(BLOB))
    with pytest.raises(DataLossError):
        boundary_objects.ObjectDownload(liar, "b", "k", tmp_path / "copy").run(lambda _done: None)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be written is no download."""

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ergon_framework.cli.boundary_objects.sync_file", full)
    whole: Any = Pretender(BLOB)
    with pytest.raises(ConfigurationError, match="No space left"):
        boundary_objects.ObjectDownload(whole, "b", "k", tmp_path / "copy").run(lambda _done: None)
    assert not (tmp_path / "copy").exists()


def test_get_to_standard_output(
    commands: BoundaryCommands, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing but the bytes goes there."""
    commands.ask("put", "batch-files", "k", "report.pdf")
    taken = io.BytesIO()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", io.TextIOWrapper(taken, write_through=True))
        assert invoke(["boundary", "get", "batch-files", "k", "--url", commands.url]) == 0
        assert taken.getvalue() == BLOB


def test_the_bar_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal the name and the bytes are shown, elsewhere nothing."""
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("COLUMNS", "100")
    with progress("put [b]k[/b]", 10, in_bytes=True) as move:
        move(10)
    assert "put [b]k[/b]" in terminal.getvalue()
    plain = io.StringIO()
    monkeypatch.setattr(sys, "stderr", plain)
    with progress("put k", 10, in_bytes=True) as move:
        move(10)
    assert plain.getvalue() == ""
