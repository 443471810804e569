"""``ergon boundary serve`` as an operator runs it: real processes, signals, one line when ready."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.app.signals import REPEAT_WINDOW
from ergon_framework.boundary.backup import back_up, open_read_only
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.boundary.verification import VerificationFinding, verified
from ergon_framework.boundary.zone import LocalZone
from ergon_framework.cli import invoke
from tests import fork_server
from tests.cli.boundary_node import message
from tests.jobs.real_worker import wait_until
from tests.servers.server import free_port

pytestmark = [pytest.mark.slow, pytest.mark.req("BOUNDARY:operator", "BOUNDARY:node")]

ERGON = [sys.executable, "-m", "ergon_framework.cli", "boundary"]
NODE = ["--zone", "plant-a", "--data", "data", "--listen", "127.0.0.1:0", "--insecure"]


@contextmanager
def serving(
    place: Path, arguments: Sequence[str] = NODE, **environ: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A node that is ready, and its address; it is killed at the end if it still runs."""
    process = fork_server.start(
        [*ERGON, "serve", *arguments],
        cwd=place,
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield process, line
    finally:
        process.kill()
        process.communicate()


def ergon(place: Path, *arguments: str, code: int = 0, typed: bytes | None = None) -> Any:
    """Run a command to its end."""
    done = fork_server.run(
        [*ERGON, *arguments], cwd=place, capture_output=True, input=typed, timeout=60, check=False
    )
    assert done.returncode == code, done.stderr
    return done


def url_in(line: str) -> str:
    """The URL of the node that printed this line."""
    return "http://" + line.strip().rpartition("listen=")[2]


def test_one_line_when_ready_and_a_clean_stop(tmp_path: Path) -> None:
    """The pinned line with the real port, nothing else on standard output, exit code 0."""
    for number in (signal.SIGTERM, signal.SIGINT):
        with serving(tmp_path) as (process, line):
            host, port = line.removeprefix("ready zone=plant-a listen=").strip().split(":")
            assert (host, int(port) > 0) == ("127.0.0.1", True)
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
            assert (process.returncode, out) == (0, ""), err
            assert "Traceback" not in err


def test_facts_outlive_the_node(tmp_path: Path) -> None:
    """What was acknowledged is there after SIGKILL, at the same offset."""
    with serving(tmp_path) as (process, line):
        url = url_in(line)
        first = json.loads(
            ergon(tmp_path, "append", "--url", url, "--json", typed=message("m-1")).stdout
        )
        assert first["offset"] == 1
        process.kill()
        process.wait(60)
    assert json.loads(
        ergon(tmp_path, "lookup", "plant-a", "m-1", "--data", "data", "--json").stdout
    )["offset"] == 1  # fmt: skip
    with serving(tmp_path) as (_process, line):
        again = ergon(tmp_path, "append", "--url", url_in(line), "--json", typed=message("m-1"))
        assert json.loads(again.stdout) == {**first, "duplicate": True}


def test_looking_and_copying_while_the_node_runs(tmp_path: Path) -> None:
    """verify, status --data and backup come from other processes, and the node goes on."""
    with serving(tmp_path) as (_process, line):
        url = url_in(line)
        ergon(tmp_path, "append", "--batch", "--url", url, typed=message("m-1") + b"\n")
        ergon(tmp_path, "put", "batch-files", "k", "-", "--url", url, typed=b"bytes")
        assert ergon(tmp_path, "verify", "--data", "data").stdout == (
            b"no flaws in 1 facts and 1 objects\n"
        )
        ergon(tmp_path, "status", "--data", "data")
        ergon(tmp_path, "backup", "copy", "--data", "data")
        ergon(tmp_path, "append", "--url", url, typed=message("m-2"))
        live = json.loads(ergon(tmp_path, "status", "--url", url, "--json").stdout)
    ergon(tmp_path, "verify", "--data", "copy")
    arguments = ["--zone", "plant-a", "--data", "copy", "--listen", "127.0.0.1:0", "--insecure"]
    with serving(tmp_path, arguments) as (_process, line):
        # A copy is another store: it begins a new epoch, which is an alert.
        told = ergon(tmp_path, "status", "--url", url_in(line), "--json", code=1)
        restored = json.loads(told.stdout)
        assert [each["kind"] for each in restored["alerts"]] == ["new_epoch"]
        got = ergon(tmp_path, "get", "batch-files", "k", "--url", url_in(line))
    assert restored["epoch"] != live["epoch"]
    assert (restored["logs"][0]["head_offset"], live["logs"][0]["head_offset"]) == (1, 2)
    assert got.stdout == b"bytes"


@pytest.mark.req("BOUNDARY:badinput")
def test_two_nodes_on_one_folder_or_one_port(tmp_path: Path) -> None:
    """The second is refused with exit code 2, and the first does not notice."""
    with serving(tmp_path) as (process, line):
        second = ergon(tmp_path, "serve", *NODE, code=2)
        assert f"is in use by another node, process {process.pid}".encode() in second.stderr
        address = line.strip().rpartition("listen=")[2]
        other = ["--zone", "b", "--data", "b", "--listen", address, "--insecure"]
        taken = ergon(tmp_path, "serve", *other, code=2)
        assert f"cannot listen on {address}: another process listens there".encode() in taken.stderr
        ergon(tmp_path, "status", "--url", url_in(line))
        process.terminate()
        assert process.wait(60) == 0
    wrong = ["--zone", "plant-b", "--data", "data", "--listen", "127.0.0.1:0", "--insecure"]
    refused = ergon(tmp_path, "serve", *wrong, code=2)
    assert b"belongs to the zone 'plant-a', not to 'plant-b'" in refused.stderr


@pytest.mark.req("BOUNDARY:badinput")
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--zone", "a\tb", "--insecure"], "'a\\tb' cannot be a zone"),
        (["--zone", "a", "--insecure", "--peer", "b"], "--peer 'b' is not NAME=URL"),
        (["--zone", "a", "--insecure", "--peer", "b=b:1"], "peer 'b': 'b:1' is no URL"),
        (["--zone", "a", "--insecure", "--listen", "0.0.0.0:0"], "plain HTTP is spoken on a loop"),
        (["--zone", "a", "--listen", "127.0.0.1:0"], "there are no certificates"),
        (["--zone", "a", "--insecure", "--listen", "here"], "'here' is no address to listen on"),
        (["--zone", "a", "--cert", "c.pem"], "key and ca is missing"),
        (["--zone", "a", "--cert", "c", "--key", "k", "--ca", "a"], "cannot be used: No such file"),
        (["--zone", "a", "--crl", "list.pem"], "revoked certificates was given, and no cert"),
        (["--zone", "a", "--insecure", "--policy", "none.toml"], "none.toml"),
        (["--zone", "a", "--insecure", "--capacity", "0"], "--capacity"),
        (["--zone", "a", "--insecure", "--log-level", "loud"], "log level 'loud' is unknown"),
        (["--insecure"], "which zone? The settings have none"),
        (["--zone", "a", "--insecure", "--config", "none.toml"], "there is no such file"),
    ],
)
def test_mistakes_are_told_before_anything_starts(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    told: str,
) -> None:
    """Exit code 2, one clear line, and no folder was made."""
    monkeypatch.chdir(tmp_path)
    code = invoke(["boundary", "serve", "--data", "data", *arguments])
    captured = capsys.readouterr()
    assert (code, captured.out) == (2, "")
    assert told in captured.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.req("BOUNDARY:badinput")
def test_failpoints_that_nobody_has_are_refused(tmp_path: Path) -> None:
    """A mistake in the name of a failpoint must not look like a passed test."""
    done = fork_server.run(
        [*ERGON, "serve", *NODE],
        cwd=tmp_path,
        env={**os.environ, "ERGON_FAILPOINTS": "boundary.nowhere.before=kill"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert b"boundary.nowhere.before" in done.stderr


def test_the_settings_file_is_enough(tmp_path: Path) -> None:
    """Zones, their folders and where they listen; the commands find the node by it."""
    port = free_port()
    (tmp_path / "ergon.toml").write_text(
        f'[boundary]\ninsecure = true\n[zones.plant-a]\ndata = "d"\nlisten = "127.0.0.1:{port}"\n'
    )
    with serving(tmp_path, ["--json"]) as (_process, line):
        assert json.loads(line) == {"zone": "plant-a", "listen": f"127.0.0.1:{port}"}
        ergon(tmp_path, "append", typed=message("m-1"))
        assert json.loads(ergon(tmp_path, "status", "--json").stdout)["zone"] == "plant-a"
        ergon(tmp_path, "verify")
    assert (tmp_path / "d" / "facts.db").exists()


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    """Although a client still holds on."""
    with serving(tmp_path) as (process, line):
        assert process.stderr is not None
        url = url_in(line)
        ergon(tmp_path, "consumers", "create", "c", "--url", url)
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(
                b"PUT /v1/objects/files/k HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 9\r\n\r\nab"
            )
            uploads = tmp_path / "data" / "objects" / "uploads"
            wait_until(lambda: any(uploads.iterdir()))
            process.terminate()
            while "stopping" not in (told := process.stderr.readline()):
                assert told
            time.sleep(REPEAT_WINDOW + 0.1)  # sooner, it is taken for the same wish
            process.terminate()
            assert process.wait(60) == 128 + signal.SIGTERM


def test_a_node_whose_output_nobody_reads(tmp_path: Path) -> None:
    """A closed pipe does not stop it, nor spoil its exit code."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    arguments = [*NODE[:-2], f"127.0.0.1:{free_port()}", "--insecure"]
    process = fork_server.start(
        [*ERGON, "serve", *arguments], cwd=tmp_path, stdout=write_end, stderr=subprocess.DEVNULL
    )
    os.close(write_end)
    try:
        wait_until(lambda: answers(arguments[-2]), "an answer")
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait(60)


@pytest.mark.req("BOUNDARY:store")
@pytest.mark.parametrize(
    ("failpoint", "is_made"),
    [
        ("boundary.backup_log.before", False),
        ("boundary.backup_log.after", False),
        ("boundary.backup_name.before", False),
        ("boundary.backup_name.after", True),
    ],
)
def test_a_backup_that_is_killed(tmp_path: Path, failpoint: str, is_made: bool) -> None:
    """It is whole or has no name; and the next one succeeds."""
    with LocalZone.open("plant-a", ZoneSettings(data=str(tmp_path / "data"))) as zone:
        zone.put("batch-files", "k", b"bytes")
        asked = json.loads(message("m-1"))
        zone.append(asked["envelope"], asked["fact"])
    killed = fork_server.run(
        [*ERGON, "backup", "copy", "--data", "data"],
        cwd=tmp_path,
        env={**os.environ, "ERGON_FAILPOINTS": f"{failpoint}=kill"},
        timeout=60,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    assert (tmp_path / "copy").exists() is is_made
    assert back_up(tmp_path / "data", tmp_path / "copy-2").facts == 1
    for copy in ("copy", "copy-2")[not is_made :]:
        with open_read_only(tmp_path / copy) as zone:
            assert not [told for told in verified(zone) if isinstance(told, VerificationFinding)]
            assert zone.found("batch-files", "k").size == 5


def answers(address: str) -> bool:
    """Whether somebody listens there."""
    host, port = address.split(":")
    try:
        socket.create_connection((host, int(port))).close()
    except OSError:
        return False
    return True
