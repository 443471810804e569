"""Webhooks of the settings: ``ergon serve`` takes them, ``ergon check`` finds what is wrong."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest

from ergon_framework.app.diagnostics.check import check
from ergon_framework.app.settings import load_settings
from ergon_framework.app.webhooks import webhooks_of
from ergon_framework.connector import JobsConnector
from ergon_framework.connector.webhook import SignatureError, standard_signature
from ergon_framework.errors import ConfigurationError, ErgonError, SettingsError
from tests.web.serving import started

STORE = '[store]\nurl = "sqlite:///work.db"\n'
BANK = STORE + '[webhooks.bank]\nkind = "stripe"\nsecret = "env:BANK"\nhandler = "book"\n'
BODY = json.dumps({"id": "t-1", "amount": 5}).encode()


def signed(secret: str) -> dict[str, str]:
    """As Stripe signs it."""
    now = int(time.time())
    found = hmac.new(secret.encode(), f"{now}.".encode() + BODY, hashlib.sha256).hexdigest()
    return {"Stripe-Signature": f"t={now},v1={found}"}


@pytest.mark.slow
def test_a_server_takes_what_is_signed_and_keeps_its_other_pages_closed(tmp_path: Path) -> None:
    """No token is needed for a webhook, under whatever name its server is known; one is for all
    others. What was answered with 202 is a job, and one that came again is the same.
    """
    (tmp_path / "ergon.toml").write_text(BANK)
    words = ("--config", "ergon.toml", "--port", "0")
    environ = {"BANK": "old\nnew", "ERGON_SERVER_TOKEN": "a-token-of-some-length"}
    with started(tmp_path, *words, **environ) as (process, line):
        url = line.split()[-1]
        with httpx.Client(base_url=url, headers={"Host": "shop.example.com"}) as http:

            def post(headers: Mapping[str, str], place: str = "bank") -> int:
                return http.post(f"/webhooks/{place}", content=BODY, headers=headers).status_code

            assert [post(signed("new")), post(signed("old"))] == [202, 202]
            assert post(signed("guessed")) == 401
            assert post({"Authorization": "Bearer a-token-of-some-length"}) == 401
            assert http.get("/webhooks/bank").status_code == 405
            assert post(signed("new"), "other") in (401, 403)
            assert http.get("/api/v1/jobs").status_code in (401, 403)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
    with JobsConnector(f"sqlite:///{tmp_path}/work.db") as jobs:
        (job,) = jobs.fetch_transactions(10)
        assert job.transaction_id == "bank:t-1"
        assert job.payload == {"event": {"id": "t-1", "amount": 5}}
        jobs.ack(job)


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ('kind = "stripe"\nsecret = "s"', "one place"),
        ('kind = "stripe"\nsecret = "s"\nhandler = "a"\nconnector = "b"', "one place"),
        ('kind = "stripe"\nsecret = "s"\nconnector = "inbux"', "did you mean 'inbox'"),
        ('kind = "stripe"\nsecret = "s"\nconnector = "fleeting"', "keeps things in memory"),
        ('kind = "stripe"\nsecret = " "\nhandler = "a"', "needs a secret"),
        ('kind = "stripe"\nsecret = "s"\nhandler = "a"\nheader = "X"', "kind hmac"),
        ('kind = "standard"\nsecret = "whsec_?"\nhandler = "a"', "no base64"),
        ('kind = "hmac"\nsecret = "s"\nhandler = "a"', "which header"),
        ('kind = "hmac"\nsecret = "s"\nheader = "X"\nhandler = "a"\ncontent = "x"', "{body}"),
        ('kind = "strip"\nsecret = "s"\nhandler = "a"', "kind"),
        ('kind = "stripe"\nhandler = "a"', "secret"),
        ('kind = "stripe"\nsecret = "env:NOT_SET"\nhandler = "a"', "NOT_SET"),
    ],
)
def test_check_finds_what_is_wrong(
    tmp_path: Path, table: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the table it stands in, and without a store or a folder that was made for it."""
    monkeypatch.chdir(tmp_path)
    others = (
        '[connectors.inbox]\ntype = "jsonl"\noutbox = "out"\n[connectors.fleeting]\ntype = "memory"'
    )
    (tmp_path / "ergon.toml").write_text(f"{STORE}{others}\n[webhooks.bank]\n{table}\n")
    with pytest.raises(SettingsError) as caught:
        check(tmp_path / "ergon.toml", {})
    assert problem in str(caught.value)
    assert "webhooks" in str(caught.value)
    assert "mistakes" not in str(caught.value), "it is told once"
    assert [each.name for each in tmp_path.iterdir()] == ["ergon.toml"]


def test_check_shows_receivers_and_their_targets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What would be served, and what would be refused when it is served."""
    monkeypatch.chdir(tmp_path)
    inbox = '[connectors.inbox]\ntype = "jsonl"\noutbox = "out"\n'
    hook = '[webhooks.hub]\nkind = "github"\nsecret = "s"\nconnector = "inbox"\n'
    (tmp_path / "ergon.toml").write_text(BANK + inbox + hook)
    rows = {row.name: row for row in check(tmp_path / "ergon.toml", {"BANK": "secret"})}
    assert rows["bank"].where == "/webhooks/bank to job book"
    assert (rows["hub"].kind, rows["hub"].what) == ("webhook", "github")
    assert not (tmp_path / "out").exists()
    (tmp_path / "ergon.toml").write_text(f'{hook}[connectors.inbox]\ntype = "memory"\n')
    with pytest.raises(ErgonError, match=r"webhooks.hub: .*memory"):
        webhooks_of(load_settings(tmp_path / "ergon.toml", {}))


def test_standard_webhooks_are_known_by_their_signature() -> None:
    """The secret is what follows ``whsec_``, decoded; another one, or another body, is refused."""
    key, now = b"the key", 1_700_000_000
    check = standard_signature([f"whsec_{base64.b64encode(key).decode()}", "old"])
    digest = hmac.new(key, b"m-1.1700000000." + BODY, hashlib.sha256).digest()
    headers = {
        "webhook-id": "m-1",
        "webhook-timestamp": str(now),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }
    check.verify(headers, BODY, now + 1)
    for body, at in ((BODY + b" ", now), (BODY, now + 301)):
        with pytest.raises(SignatureError):
            check.verify(headers, body, at)
    with pytest.raises(ConfigurationError, match="base64"):
        standard_signature("whsec_?")
