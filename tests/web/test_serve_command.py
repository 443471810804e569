"""``ergon serve`` as an operator runs it: a real process, asked over HTTP, stopped by signals."""

from __future__ import annotations

import json
import signal
import socket
import sys
import time
from pathlib import Path

import httpx
import pytest

from ergon_framework.cli import invoke
from ergon_framework.jobs.client import JobClient
from ergon_framework.providers.execution import ProviderExecutionContext
from ergon_framework.providers.synthetic import SyntheticProvider
from tests.web.serving import serving

pytestmark = [
    pytest.mark.slow,
    pytest.mark.req("PROVIDERS:api", "PROVIDERS:cli", "ONE:serve"),
]

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


def ready(client: httpx.Client) -> httpx.Response:
    """The answer of the probe, asked again while a store takes its time, as on a busy machine."""
    deadline = time.monotonic() + 30
    while (answer := client.get("/health/ready")).status_code == 503:
        if time.monotonic() > deadline:
            break
        time.sleep(0.2)
    return answer


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_line_when_ready_and_a_clean_stop(place: Path, number: signal.Signals) -> None:
    """The line has the real port, the summary is there, and a stop is no failure."""
    with serving(place) as (process, line):
        assert line.startswith("listening on http://127.0.0.1:")
        url = line.split()[-1]
        assert int(url.rpartition(":")[2]) > 0
        with httpx.Client(base_url=url, trust_env=False) as client:
            assert ready(client).json() == {"status": "ready"}
            [item] = client.get(PATH).json()["providers"]
            assert (item["provider_name"], item["success_rate_1h"]) == ("synthetic", 1.0)
            forwarded = client.get(PATH, headers={"X-Forwarded-For": "127.0.0.1"})
            assert forwarded.status_code == 403
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, ""), err
    assert "Traceback" not in err


def test_what_the_setup_prints_is_kept_out_of_json(place: Path) -> None:
    """The first line of the standard output is the announcement."""
    text = 'print("imported")\n\ndef set_up():\n    print("set up")\n'
    (place / "talkative.py").write_text(text, encoding="utf-8")
    (place / "ergon.toml").write_text('[telemetry]\nsetup = "talkative:set_up"\n', encoding="utf-8")
    with serving(place, "--json") as (process, line):
        assert json.loads(line)["url"].startswith("http://127.0.0.1:")
        process.terminate()
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, ""), err
    assert "imported\nset up\n" in err


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
        (["--store", "postgers://db/work"], 2, "did you mean postgresql"),
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
            assert answer.status_code == 503
            assert answer.json()["details"] == {
                "remedy": "ask again in 5 seconds",
                "away": {"jobs": "store_unavailable", "providers": "store_unavailable"},
            }
            scraped = client.get("/metrics").text
            assert 'ergon_part_up{part="providers"} 0' in scraped
            assert 'ergon_part_up{part="jobs"} 0' in scraped
        process.terminate()
        process.communicate(timeout=60)
        assert process.returncode == 0


def test_everything_comes_from_the_settings(place: Path) -> None:
    """Where to listen, what to tell and the token; a store that is not there yet is waited for."""
    (place / "secret").write_text(TOKEN)
    (place / "ergon.toml").write_text(
        '[store]\nurl = "sqlite:///later.db"\n'
        '[server]\nport = 0\ntoken = "file:secret"\naccess_log = true\n'
    )
    with serving(place, "--config", "ergon.toml", "--log-level", "info") as (process, line):
        with httpx.Client(base_url=line.split()[-1], trust_env=False, timeout=60) as client:
            assert client.get("/live").status_code == 200
            assert client.get("/ready").json()["details"] == {"remedy": "ask again in 5 seconds"}
            assert client.get("/api/v1/jobs").status_code == 401
            client.headers["Authorization"] = f"Bearer {TOKEN}"
            assert client.get("/api/v1/jobs").status_code == 503
            assert not (place / "later.db").exists()
            fill_later(place)
            assert client.get("/ready").status_code == 200
            assert [job["id"] for job in client.get("/api/v1/jobs").json()["items"]] == ["j1"]
            assert client.head("/api/v1/jobs").content == b""
            assert client.post("/api/v1/jobs", json={}).status_code == 405
            foreign = client.get("/api/v1/jobs?queue=unseen", headers={"Host": "evil.example"})
            assert (foreign.status_code, foreign.json()["code"]) == (403, "foreign_host")
        process.terminate()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "GET /api/v1/jobs 200" in err
    assert "GET /api/v1/jobs 401" in err
    assert TOKEN not in err
    assert "unseen" not in err


def fill_later(place: Path) -> None:
    """The store comes to be."""
    with JobClient(f"sqlite:///{place}/later.db") as client:
        client.enqueue("mail", ["x"], id="j1")


def test_tokens_change_while_it_runs(place: Path) -> None:
    """A file that changes is read again; SIGHUP ends nothing."""
    file = place / "tokens"
    file.write_text("alice: first-0123456789\n")
    with serving(place, "--token-file", "tokens") as (process, line):
        with httpx.Client(base_url=line.split()[-1], trust_env=False, timeout=60) as client:

            def status(token: str) -> int:
                headers = {"Authorization": f"Bearer {token}-0123456789"}
                return client.get("/api/v1/queues", headers=headers).status_code

            assert (status("first"), status("second")) == (200, 401)
            file.write_text("bob: second-0123456789\n")
            process.send_signal(signal.SIGHUP)
            assert (status("first"), status("second")) == (401, 200)
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_head_that_is_too_long_is_cut_off(place: Path) -> None:
    """Nobody can make the server remember endless headers."""
    with (
        serving(place) as (_process, line),
        httpx.Client(base_url=line.split()[-1], trust_env=False, timeout=60) as client,
    ):
        # One that has not come at once is given up before the application sees it.
        refused = client.get("/live", headers={"X-Long": "x" * 17_000})
        known = {(400, "bad_request"), (431, "too_large")}
        assert (refused.status_code, refused.json()["code"]) in known
        assert client.get("/live").status_code == 200


def test_what_is_no_http_is_refused_in_the_same_shape(place: Path) -> None:
    """Code, message and details, and the connection ends."""
    with serving(place) as (_process, line):
        host, _, port = line.split()[-1].removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), 60) as connection:
            connection.sendall(b"hello?\r\n\r\n")
            with connection.makefile("rb") as reader:
                head, _, body = reader.read().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert sorted(json.loads(body)) == ["code", "details", "message"]


@pytest.mark.req("ONE:wheel")
@pytest.mark.parametrize("name", ["fastapi", "uvicorn", "jinja2"])
def test_a_missing_extra_is_named(
    place: Path,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line says what to install, before anything else is looked at."""
    monkeypatch.chdir(place)
    monkeypatch.setitem(sys.modules, name, None)
    assert invoke(["serve", "--store", "sqlite:///missing.db"]) == 2
    told = capsys.readouterr().err
    assert "ergon-framework[api]" in told
    assert told.count("\n") == 1
