"""``ergon export`` and ``ergon import`` at the command line: streams, summaries, refusals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ergon_framework.cli import invoke
from ergon_framework.jobs.store_urls import open_store
from ergon_framework.testing.suites.jobstore.under_test import new as new_job
from tests import fork_server
from tests.app.move.stock import ergon, job_sums, with_jobs

pytestmark = pytest.mark.req("SCALE:export")

ERGON = (sys.executable, "-m", "ergon_framework.cli")


@pytest.fixture
def old(tmp_path: Path) -> str:
    """A store of jobs."""
    return with_jobs(f"sqlite:///{tmp_path}/old.db")


@pytest.fixture
def large(tmp_path: Path) -> str:
    """A store of more than a pipe holds."""
    jobs = [new_job(f"n{number}", args=b'["' + b"x" * 500 + b'"]') for number in range(2000)]
    return with_jobs(f"sqlite:///{tmp_path}/large.db", lambda s: s.store.add(jobs))


def test_people_get_a_table(old: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Counts and digests, the same as those of the import."""
    file = str(tmp_path / "a.jsonl")
    assert invoke(["export", old, file]) == 0
    said = capsys.readouterr()
    lines = [line.split() for line in said.out.splitlines()]
    assert lines[0] == ["what", "count", "digest"]
    [job] = [line for line in lines if line[0] == "job"]
    assert "exporting jobs: 1 of 9" in said.err
    assert f"{file} holds 13 records, sha256:" in said.err
    assert invoke(["import", file, f"sqlite:///{tmp_path}/new.db"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["part", "what", "written", "count", "digest"]
    assert ["jobs", "jobs", "9", "9", job[2]] in lines


def test_programs_get_lines_of_json(
    old: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """How far it is, and at the end one summary."""
    file, new = str(tmp_path / "a.jsonl"), f"sqlite:///{tmp_path}/new.db"
    assert invoke(["export", old, file, "--json"]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {"part": "jobs", "doing": "exporting jobs", "done": 1, "total": 9} in told
    assert (told[-1]["file"], told[-1]["parts"]) == (file, ["jobs"])
    assert told[-1]["kinds"] == {"queue": 2, "job": 9, "schedule": 2}
    digest = told[-1]["digest"]
    assert invoke(["import", file, new, "--json"]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert told[-1]["digest"] == digest
    [jobs] = [each for each in told[-1]["kinds"] if each["what"] == "jobs"]
    assert (jobs["written"], jobs["count"], len(jobs["digest"])) == (9, 9, 64)


def test_a_refusal_is_an_error(
    old: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, and an exit code that tells wrong use from damage."""
    file = tmp_path / "a.jsonl"
    assert invoke(["export", old, str(file)]) == 0
    assert invoke(["export", old, str(file)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert invoke(["import", str(file), old]) == 1
    assert "holds jobs already" in capsys.readouterr().err
    file.write_bytes(file.read_bytes()[:-100])
    assert invoke(["import", str(file), f"sqlite:///{tmp_path}/new.db", "--json"]) == 1
    out = capsys.readouterr().out.splitlines()
    assert "is cut off" in json.loads(out[-1])["error"]["message"]
    assert invoke(["export", f"sqlite:///{tmp_path}/none.db", str(tmp_path / "b")]) == 2
    assert "there is no file" in capsys.readouterr().err
    assert not (tmp_path / "none.db").exists()
    assert not (tmp_path / "b").exists()
    assert invoke(["export", old, "--json"]) == 2
    assert "name a FILE" in capsys.readouterr().err


def test_a_pipe_from_one_store_to_another(large: str, tmp_path: Path) -> None:
    """The records alone go through the standard streams."""
    new = f"sqlite:///{tmp_path}/new.db"
    with fork_server.start([*ERGON, "export", large], stdout=subprocess.PIPE) as source:
        done = fork_server.run(
            [*ERGON, "import", "-", new], stdin=source.stdout, check=False, timeout=60
        )
    assert (source.returncode, done.returncode) == (0, 0)
    assert job_sums(new) == job_sums(large)


def test_a_stream_of_anything_else(tmp_path: Path) -> None:
    """It is refused by its beginning: one without an end does not fill the disk first."""
    with open("/dev/zero", "rb") as zeros:
        done = fork_server.run(
            [*ERGON, "import", "-", f"sqlite:///{tmp_path}/new.db"],
            stdin=zeros,
            stderr=subprocess.PIPE,
            check=False,
            timeout=60,
        )
    assert done.returncode == 2
    assert b"the standard input is no file of records" in done.stderr
    assert not (tmp_path / "new.db").exists()


def test_a_reader_that_has_seen_enough(large: str) -> None:
    """``ergon export … | head`` ends without a traceback, and leaves nothing behind."""
    with fork_server.start(
        [*ERGON, "export", large], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        told = process.stderr.read().decode()
    assert process.returncode == 1
    assert "Traceback" not in told


def test_a_standard_output_that_is_full(large: str) -> None:
    """It is told, and the exit code says so."""
    with open("/dev/full", "wb") as full:
        done = fork_server.run(
            [*ERGON, "export", large], stdout=full, stderr=subprocess.PIPE, check=False, timeout=60
        )
    assert done.returncode == 1
    assert b"standard output cannot be written" in done.stderr


def test_a_standard_output_that_is_closed(old: str) -> None:
    """Nobody would read the records."""
    done = subprocess.run(  # noqa: S602 - to close a stream
        f'"{sys.executable}" -m ergon_framework.cli export "{old}" >&-',
        shell=True,
        stderr=subprocess.PIPE,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert b"name a FILE" in done.stderr


def test_a_folder_that_may_not_be_written(old: str, tmp_path: Path) -> None:
    """It is told by name; in one of them not even root can make a file."""
    (tmp_path / "closed").mkdir(mode=0o500)
    for folder in (tmp_path / "closed", Path("/proc/self")):
        if os.access(folder, os.W_OK) and folder != Path("/proc/self"):
            continue  # root may write everywhere
        told = ergon("export", old, str(folder / "a.jsonl"))
        assert told.returncode == 1
        assert "a.jsonl cannot be written" in told.stderr


def test_a_folder_that_is_not_there(old: str, tmp_path: Path) -> None:
    """Neither is it made."""
    told = ergon("export", old, str(tmp_path / "none" / "a.jsonl"))
    assert told.returncode == 1
    assert "a.jsonl cannot be written: No such file or directory" in told.stderr
    assert "Traceback" not in told.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_that_is_stopped(number: int, large: str, tmp_path: Path) -> None:
    """An export leaves nothing behind; an import is gone on with."""
    file, new = tmp_path / "a.jsonl", f"sqlite:///{tmp_path}/new.db"
    assert (
        _stopped(number, "export.page.written=pause@2", "export", large, str(file)) == 128 + number
    )
    assert not list(tmp_path.glob("*.jsonl*")) + list(tmp_path.glob(".*"))
    assert ergon("export", large, str(file)).returncode == 0
    step = "move.jobs.after_commit=pause@3"
    assert _stopped(number, step, "import", str(file), new) == 128 + number
    with pytest.raises(Exception, match="an import into this store has not ended"):
        open_store(new)
    assert ergon("import", str(file), new).returncode == 0
    assert job_sums(new) == job_sums(large)


def _stopped(number: int, step: str, *arguments: str) -> int:
    """Stop a command at a step; its exit code."""
    with fork_server.start(
        [*ERGON, *arguments],
        env=os.environ | {"ERGON_FAILPOINTS": step},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        os.waitpid(process.pid, os.WUNTRACED)
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)
        return process.wait(60)
