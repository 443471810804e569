"""``ergon serve`` as an operator runs it: a real process, asked over HTTP, stopped by signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from ergon_framework.cli import invoke
from ergon_framework.providers.execution import ProviderExecutionContext
from ergon_framework.providers.synthetic import SyntheticProvider

pytestmark = [pytest.mark.slow, pytest.mark.req("PROVIDERS:api", "PROVIDERS:cli")]

ERGON = [sys.executable, "-m", "ergon_framework.cli", "serve"]
TENANT = "3f2b8c1e-0d4a-4f6b-9c58-a1b2c3d4e5f6"
PATH = f"/api/v1/provider-health/summary?tenant_id={TENANT}"
TOKEN = "correct-horse-battery"  # noqa: S105 - of no server


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a store in which one call was made."""
    with SyntheticProvider("ok", store=f"sqlite:///{tmp_path}/work.db") as provider:
        provider.execute(
            tenant_id=TENANT,
            campaign_id=None,
            operation="fetch",
            payload={},
            context=ProviderExecutionContext(),
        )
    return tmp_path


@contextmanager
def serving(
    place: Path, *arguments: str, **environ: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server that is ready, and its first line; it is killed at the end if it still runs."""
    process = subprocess.Popen(  # noqa: S603 - our own command
        [*ERGON, "--store", "sqlite:///work.db", "--port", "0", *arguments],
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_line_when_ready_and_a_clean_stop(place: Path, number: signal.Signals) -> None:
    """The line has the real port, the summary is there, and a stop is no failure."""
    with serving(place) as (process, line):
        assert line.startswith("listening on http://127.0.0.1:")
        url = line.split()[-1]
        assert int(url.rpartition(":")[2]) > 0
        with httpx.Client(base_url=url, trust_env=False) as client:
            assert client.get("/health/ready").json() == {"status": "ready"}
            [item] = client.get(PATH).json()["providers"]
            assert (item["provider_name"], item["success_rate_1h"]) == ("synthetic", 1.0)
            forwarded = client.get(PATH, headers={"X-Forwarded-For": "127.0.0.1"})
            assert forwarded.status_code == 403
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, ""), err
    assert "Traceback" not in err


def test_a_token_is_wanted_and_never_shown(place: Path) -> None:
    """From a file or the environment; the summary is told to who has it, on any address."""
    (place / "token").write_text(f"{TOKEN}\n")
    everywhere = ["--host", "0.0.0.0"]  # noqa: S104 - with a token
    for arguments, environ in (
        ([*everywhere, "--token-file", "token"], {}),
        (["--json"], {"ERGON_SERVER_TOKEN": TOKEN}),
    ):
        with serving(place, *arguments, "--log-level", "debug", **environ) as (process, line):
            told = json.loads(line)["url"] if "--json" in arguments else line.split()[-1]
            url = told.replace("0.0.0.0", "127.0.0.1")  # noqa: S104
            with httpx.Client(base_url=url, trust_env=False) as client:
                assert client.get(PATH).status_code == 401
                wrong = client.get(PATH, headers={"Authorization": "Bearer wrong"})
                assert (wrong.status_code, wrong.json()["code"]) == (401, "unauthenticated")
                right = client.get(PATH, headers={"Authorization": f"Bearer {TOKEN}"})
                assert len(right.json()["providers"]) == 1
            process.terminate()
            out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert TOKEN not in line + out + err


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["--host", "0.0.0.0"], 2, "there is no token"),  # noqa: S104
        (["--token-file", "nowhere"], 2, "cannot be read"),
        (["--port", "65536"], 2, "65535"),
        (["--store", "sqlite:///missing.db"], 1, "there is no file"),
        (["--store", "memory://"], 2, "only its own process"),
    ],
)
def test_what_is_refused(
    place: Path,
    arguments: list[str],
    code: int,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line says why, before anything listens, and no file is made."""
    monkeypatch.chdir(place)
    monkeypatch.delenv("ERGON_SERVER_TOKEN", raising=False)
    assert invoke(["serve", "--store", "sqlite:///work.db", *arguments]) == code
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert told in captured.err
    assert not (place / "missing.db").exists()


def test_a_server_that_is_away_is_waited_for(place: Path) -> None:
    """The process starts and is live, and says that it is not ready."""
    away = "postgresql://nobody@127.0.0.1:9/none"
    with serving(place, "--store", away, "--log-level", "critical") as (process, line):
        with httpx.Client(base_url=line.split()[-1], trust_env=False, timeout=60) as client:
            assert client.get("/health/live").status_code == 200
            answer = client.get("/health/ready")
            assert (answer.status_code, answer.json()["details"]) == (
                503,
                {"remedy": "ask again in 5 seconds"},
            )
        process.terminate()
        process.communicate(timeout=60)
        assert process.returncode == 0
