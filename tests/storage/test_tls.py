"""What is said about TLS that fails, by the words of each driver."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest

from ergon_framework.errors import ConfigurationError
from ergon_framework.storage.connection_errors import Options, context_of, refused
from tests.servers.tls import Papers, locked

pytestmark = pytest.mark.req("SCALE:url-errors")
OPTIONS = Options("?ca=FILE", "?cert=FILE", "plain://")


@pytest.mark.parametrize(
    ("text", "words", "remedy"),
    [
        (
            "certificate verify failed: Hostname mismatch, certificate is not valid for 'db'.",
            "another name",
            "write the host in the URL as the certificate has it",
        ),
        (
            'server certificate for "a" (and 1 other name) does not match host name "db"',
            "another name",
            "write the host",
        ),
        (
            "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: certificate has expired",
            "not valid now",
            "renew it",
        ),
        ("SSL error: certificate verify failed", "nobody who is trusted", "?ca=FILE"),
        ("certificate verify failed: self-signed certificate", "nobody who is", "?ca=FILE"),
        ("[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] tlsv13 alert", "of ours", "?cert=FILE"),
        ("SSL error: tlsv1 alert unknown ca", "of ours", "?cert=FILE"),
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number", "nothing was sent", "plain://"),
        ("server does not support SSL, but SSL was required", "nothing was sent", "plain://"),
    ],
)
def test_each_fault_has_an_error_of_its_own(text: str, words: str, remedy: str) -> None:
    """It names the server and says what to do."""
    found = refused("the server", text, OPTIONS)
    assert found is not None
    assert "the server" in found.message
    assert words in found.message
    assert remedy in (found.remedy or "")


@pytest.mark.parametrize("text", ["", "Connection refused", "SSL SYSCALL error: EOF detected"])
def test_what_is_not_about_certificates_is_left_to_others(text: str) -> None:
    """A server that is away is away, with TLS or without."""
    assert refused("the server", text, OPTIONS) is None


def test_a_context_checks_certificate_and_name(signed: Papers) -> None:
    """Whatever files there are, nothing is taken on trust."""
    files = (str(signed.ca), str(signed.certificate("client")), str(signed.key("client")))
    for found in (context_of(OPTIONS), context_of(OPTIONS, *files)):
        assert found.verify_mode is ssl.CERT_REQUIRED
        assert found.check_hostname


def test_files_that_cannot_be_used_are_told_by_their_option(
    signed: Papers, strange: Papers, tmp_path: Path
) -> None:
    """Missing, not a certificate, or not the key that belongs to it."""
    nonsense = tmp_path / "nonsense"
    nonsense.write_text("nothing of the kind")
    own, other = str(signed.certificate("client")), str(strange.key("client"))
    for files, words in (
        ((str(tmp_path / "missing"), None, None), rf"\?ca=FILE.*{os.strerror(2)}"),
        ((str(nonsense), None, None), r"\?ca=FILE.*no certificate"),
        ((None, own, other), r"\?cert=FILE.*the key is not the one"),
    ):
        with pytest.raises(ConfigurationError, match=words) as caught:
            context_of(OPTIONS, *files)
        assert "PEM" in (caught.value.remedy or "")


def test_a_key_with_a_passphrase_is_told(signed: Papers, tmp_path: Path) -> None:
    """Nobody is asked for it on the terminal, where nobody may be."""
    own, key = str(signed.certificate("client")), locked(signed, tmp_path)
    with pytest.raises(ConfigurationError, match=r"\?cert=FILE.*has a passphrase") as caught:
        context_of(OPTIONS, None, own, str(key))
    assert "openssl pkey" in (caught.value.remedy or "")
