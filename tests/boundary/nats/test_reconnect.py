"""A NATS server that does not let us in any more: who was in waits until it does again."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest

from ergon_framework.errors import StoreUnavailableError
from ergon_framework.storage.nats import NatsClient, address_of
from tests.servers.nats import NatsServer
from tests.servers.nats_keys import Realm
from tests.servers.tls import Papers

pytestmark = [pytest.mark.slow, pytest.mark.req("SCALE:boundary-nats", "SCALE:fleet-outage")]


def restart(server: NatsServer, more: str) -> None:
    """With other settings."""
    server.stop()
    server.configure(more=more)
    server.start()


def refusal(line: NatsClient, words: str) -> StoreUnavailableError:
    """What is said to who was connected before."""
    with pytest.raises(StoreUnavailableError, match=words) as caught:
        line.version()
    assert caught.value.details["is_lost"] is False
    return caught.value


def test_a_certificate_that_is_wrong_for_a_while(own_nats: NatsServer, signed: Papers) -> None:
    """It says what is wrong, and the same line is good again when that was fixed."""
    good, bad = (
        f'tls {{ cert_file: "{signed.certificate(name)}", key_file: "{signed.key(name)}" }}'
        for name in ("server", "elsewhere")
    )
    restart(own_nats, good)
    with closing(NatsClient(address_of(own_nats.url(options=f"?tls_ca={signed.ca}")))) as line:
        assert line.version()
        restart(own_nats, bad)
        assert "as the certificate has it" in (refusal(line, "another name").remedy or "")
        restart(own_nats, good)
        assert line.version()


def test_a_password_that_was_changed(own_nats: NatsServer) -> None:
    """It may be changed back, or the server had read the wrong file."""
    good, bad = (f"authorization {{ user: ergon, password: {word} }}" for word in ("right", "new"))
    restart(own_nats, good)
    with closing(NatsClient(address_of(own_nats.url(user="ergon:right")))) as line:
        assert line.version()
        restart(own_nats, bad)
        assert "password" in (refusal(line, "does not let this user in").remedy or "")
        restart(own_nats, good)
        assert line.version()


def test_credentials_that_expire(own_nats: NatsServer, tmp_path: Path) -> None:
    """They are renewed in their file while programs run, which may be missing for a moment."""
    realm = Realm()
    restart(own_nats, realm.config)
    file = realm.creds(tmp_path / "user.creds")
    with closing(NatsClient(address_of(own_nats.url(options=f"?creds={file}")))) as line:
        assert line.version()
        realm.creds(file, exp=int(time.time()) - 60)
        restart(own_nats, realm.config)
        assert "new credentials" in (refusal(line, "has expired").remedy or "")
        file.unlink()
        refusal(line, "creds")
        realm.creds(file)
        assert line.version()
