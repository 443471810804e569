"""Certificates on both sides: who is let in, who is not, and how they are renewed."""

from __future__ import annotations

import datetime as dt
import shutil
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from ergon_framework.boundary.certs import issue, make_ca
from ergon_framework.boundary.http.tls import (
    Certificates,
    client_context,
    peer_identity,
    server_context,
)
from ergon_framework.boundary.node.node import certificates_of
from ergon_framework.boundary.reloading import ReloadingFile
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.errors import ConfigurationError, ErgonError, NotPermittedError
from tests.boundary.http.workbench import RunningServer, Wire, run, serving

pytestmark = pytest.mark.req("BOUNDARY:security")
NOW = dt.datetime.now(dt.UTC)
DAY = dt.timedelta(days=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An authority, the node's zone and a client's."""
    for name in ("good", "other"):
        make_ca(tmp_path / name)
        issue(tmp_path / name, "node")
        issue(tmp_path / name, "Plant A")
    return tmp_path / "good"


def _server(folder: Path, name: str = "node") -> Certificates:
    return Certificates(folder / f"{name}.pem", folder / f"{name}.key", folder / "ca.pem")


def _client(folder: Path, name: str = "Plant A", ca: Path | None = None) -> ssl.SSLContext:
    trusted = (ca or folder) / "ca.pem"
    return client_context(folder / f"{name}.pem", folder / f"{name}.key", trusted)


async def _refused(running: RunningServer, context: ssl.SSLContext) -> tuple[str, str]:
    """Why the server let a client not in, and what the client heard, at its first read at last."""

    async def call() -> None:
        wire = await running.wire(context)
        wire.ask("GET", "/who")
        await wire.rest()

    running.was_denied.clear()
    with pytest.raises(ssl.SSLError) as caught:
        await call()
    await running.was_denied.wait()
    return running.denied[-1], caught.value.reason


async def _who(wire: Wire) -> bytes:
    return (await wire.call("GET", "/who")).body


def test_a_caller_is_who_its_certificate_says(folder: Path) -> None:
    """The application sees the zone of the client's certificate."""

    async def main() -> None:
        async with serving(_server(folder)) as running:
            wire = await running.wire(_client(folder))
            assert await _who(wire) == b'{"identity": "Plant A", "secure": true}'
            body = b"x" * 3_000_000
            assert (await wire.call("POST", "/echo", body)).body == body
            assert (await wire.call("PUT", "/upload", body)).body == b"3000000"
            assert wire.writer.get_extra_info("ssl_object").version() == "TLSv1.3"
            assert running.denied == []

    run(main())


def test_many_callers_at_once(folder: Path) -> None:
    """Requests that come right behind the handshake are not lost."""

    async def main() -> None:
        async with serving(_server(folder)) as running:
            wires = [await running.wire(_client(folder)) for _ in range(10)]
            for wire in wires:
                wire.ask("GET", "/who")
            for wire in wires:
                assert (await wire.answer()).status == 200

    run(main())


@pytest.mark.req("BOUNDARY:badinput")
@pytest.mark.parametrize(
    ("case", "why", "alert"),
    [
        (
            "wrong authority",
            "self-signed certificate in certificate chain|unable to get",
            "TLSV1_ALERT_UNKNOWN_CA",
        ),
        ("expired", "certificate has expired", "SSLV3_ALERT_CERTIFICATE_EXPIRED"),
        ("not yet valid", "certificate is not yet valid", "SSLV3_ALERT_BAD_CERTIFICATE"),
        ("self-signed", "self-signed certificate", "TLSV1_ALERT_UNKNOWN_CA"),
        ("none", "peer did not return a certificate", "TLSV13_ALERT_CERTIFICATE_REQUIRED"),
        ("old protocol", "unsupported protocol", "TLSV1_ALERT_PROTOCOL_VERSION"),
    ],
)
def test_a_bad_certificate_is_not_let_in(folder: Path, case: str, why: str, alert: str) -> None:
    """The handshake fails, the node and the client are told why, and others are served."""
    context = _bad_client(folder, case)

    async def main() -> None:
        async with serving(_server(folder)) as running:
            told, heard = await _refused(running, context)
            assert heard == alert
            assert any(part in told for part in why.split("|")), told
            assert len(running.denied) == 1
            assert b"Plant A" in await _who(await running.wire(_client(folder)))

    run(main())


def _bad_client(folder: Path, case: str) -> ssl.SSLContext:
    if case == "wrong authority":
        return _client(folder.parent / "other", ca=folder)
    if case == "expired":
        issue(folder, "late", not_before=NOW - 2 * DAY, not_after=NOW - DAY)
        return _client(folder, "late")
    if case == "not yet valid":
        issue(folder, "early", not_before=NOW + DAY, not_after=NOW + 2 * DAY)
        return _client(folder, "early")
    if case == "self-signed":
        _self_sign(folder, "own")
        return _client(folder, "own")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(folder / "ca.pem")
    if case == "old protocol":
        context.load_cert_chain(folder / "Plant A.pem", folder / "Plant A.key")
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


def _self_sign(folder: Path, name: str) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "Plant A")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(NOW - DAY)
        .not_valid_after(NOW + DAY)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / f"{name}.pem").write_bytes(certificate.public_bytes(pem))
    (folder / f"{name}.key").write_bytes(key.private_bytes(pem, form, plain))


@pytest.mark.req("BOUNDARY:badinput")
def test_a_certificate_without_a_name_is_answered_401(folder: Path) -> None:
    """It is signed, but nobody: everything it asks is refused."""
    issue(folder, "")

    async def main() -> None:
        async with serving(_server(folder)) as running:
            wire = await running.wire(_client(folder, "nobody"))
            answer = await wire.call("GET", "/who")
            assert (answer.status, answer.error["code"]) == (401, "unauthenticated")
            assert running.denied == ["the certificate names no zone"]

    run(main())


@pytest.mark.req("BOUNDARY:badinput")
def test_what_is_no_handshake_does_no_harm(folder: Path) -> None:
    """Plain HTTP, rubbish and hanging up half-way are counted, and others are served.

    Who only looks whether somebody listens, as probes do, is nobody to be told of.
    """

    async def main() -> None:
        async with serving(_server(folder), connections=3) as running:
            plain = await running.wire()
            plain.ask("GET", "/who")
            await plain.rest()
            await running.until(lambda: len(running.denied) == 1)
            assert "http request" in running.denied[0]
            rubbish = await running.wire()
            rubbish.send(b"\x00" * 100)
            await rubbish.rest()
            await running.until(lambda: len(running.denied) == 2)
            probe = await running.wire()
            await probe.close()
            await running.until(lambda: running.server.connections == 0)
            gone = await running.wire()
            gone.send(b"\x16\x03\x01")  # the beginning of a handshake
            await gone.close()
            await running.until(lambda: len(running.denied) == 3)
            assert "hung up" in running.denied[2]
            silent = await running.wire()
            await running.until(lambda: running.server.connections == 1)
            assert b"Plant A" in await _who(await running.wire(_client(folder)))
            await running.server.stop(5)
            assert await silent.rest() == b""

    run(main())


@pytest.mark.req("BOUNDARY:badinput")
def test_a_handshake_does_not_take_for_ever(folder: Path) -> None:
    """A client that never finishes it is sent away."""

    async def main() -> None:
        async with serving(_server(folder), handshake_seconds=0.05) as running:
            silent = await running.wire()
            assert await silent.rest() == b""
            await running.until(lambda: bool(running.denied))
            assert running.server.connections == 0

    run(main())


def test_unfinished_handshakes_take_no_places(folder: Path) -> None:
    """Silent connections end each other, the oldest first, and never keep a client from coming."""

    async def main() -> None:
        async with serving(_server(folder), connections=2, handshakes=2) as running:
            silent = [await running.wire() for _ in range(5)]
            for gone in silent[:3]:
                assert await gone.rest() == b""
            assert set(running.denied) == {"too many TLS handshakes are under way"}
            for _ in range(2):
                wire = await running.wire(_client(folder))
                assert (await wire.call("GET", "/who")).status == 200
            with pytest.raises(OSError, match="reset"):
                await running.wire(_client(folder))
            assert running.denied[-1] == "2 connections are open already"

    run(main())


def test_a_server_of_another_authority_or_name_is_refused(folder: Path) -> None:
    """A client checks the node as well: its authority, its time, its host name."""
    issue(folder, "elsewhere", hosts=("elsewhere.example",))

    async def main() -> None:
        async with serving(_server(folder)) as running:
            with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
                await running.wire(_client(folder, ca=folder.parent / "other"))
        async with serving(_server(folder, "elsewhere")) as running:
            with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
                await running.wire(_client(folder))
            by_zone = _client(folder)
            by_zone.check_hostname = False
            wire = await running.wire(by_zone)
            certificate = wire.writer.get_extra_info("ssl_object").getpeercert()
            assert peer_identity(certificate) == "elsewhere"

    run(main())


def test_certificates_are_renewed_without_a_restart(folder: Path) -> None:
    """New files hold for the next connection; connections under the old ones end when idle."""

    async def main() -> None:
        certificates = _server(folder)
        async with serving(certificates) as running:
            before = await running.wire(_client(folder))
            assert b"Plant A" in await _who(before)
            for name in ("ca.pem", "node.pem", "node.key"):
                shutil.copy(folder.parent / "other" / name, folder / name)
            other = folder.parent / "other"
            assert b"Plant A" in await _who(await running.wire(_client(other)))
            running.later(1)
            assert await before.rest() == b""
            old = client_context(folder / "Plant A.pem", folder / "Plant A.key", other / "ca.pem")
            assert "certificate" in (await _refused(running, old))[0]

    run(main())


def test_a_busy_connection_outlives_a_renewal_until_its_answer(folder: Path) -> None:
    """The answer is given, and says that the connection ends."""

    async def main() -> None:
        async with serving(_server(folder)) as running:
            wire = await running.wire(_client(folder))
            wire.ask("POST", "/hold")
            exchange = await running.app.held.get()
            issue(folder, "node", force=True)
            running.later(1)
            exchange.reply(200, b"done")
            answer = await wire.answer()
            assert (answer.body, answer.headers["connection"]) == (b"done", "close")

    run(main())


def test_a_connection_ends_with_its_certificate(folder: Path) -> None:
    """A certificate that was good when the client came does not stay so for ever."""
    issue(folder, "soon", not_after=NOW + DAY)

    async def main() -> None:
        async with serving(_server(folder)) as running:
            wire = await running.wire(_client(folder, "soon"))
            await _who(wire)
            running.wall.now = (NOW + DAY / 2).timestamp()
            running.later(1)
            assert b"soon" in await _who(wire)
            running.wall.now = (NOW + 2 * DAY).timestamp()
            running.later(1)
            assert await wire.rest() == b""

    run(main())


@pytest.mark.req("BOUNDARY:badinput")
def test_bad_new_files_leave_the_old_ones_in_force(folder: Path) -> None:
    """Rubbish, a lone new key, a cut-off authority: told once, and nothing changes."""
    problems: list[ErgonError] = []
    certificates = Certificates(
        folder / "node.pem", folder / "node.key", folder / "ca.pem", on_problem=problems.append
    )
    before = certificates.server()
    good = {name: (folder / name).read_bytes() for name in ("node.pem", "node.key", "ca.pem")}
    other = folder.parent / "other"
    for name, content in (
        ("node.pem", b"rubbish"),
        ("node.key", (other / "node.key").read_bytes()),
        ("ca.pem", good["ca.pem"] + good["ca.pem"][:200]),
    ):
        (folder / name).write_bytes(content)
        assert certificates.server() is before
        assert certificates.server() is before
        assert certificates.problem is problems[-1]
        (folder / name).write_bytes(good[name])
        before = certificates.server()
        assert certificates.problem is None
    assert len(problems) == 3
    assert all(isinstance(each, ConfigurationError) for each in problems)

    async def main() -> None:
        async with serving(certificates) as running:
            (folder / "node.pem").unlink()
            assert b"Plant A" in await _who(await running.wire(_client(folder)))

    run(main())


def test_certificates_tell_about_themselves(folder: Path) -> None:
    """The zone and the end of the own certificate, for the node's status."""
    ends = (NOW + 3 * DAY).replace(microsecond=0)
    issue(folder, "short", not_after=ends)
    certificates = _server(folder, "short")
    assert certificates.identity == "short"
    assert certificates.not_after == ends.timestamp()
    assert certificates.client() is certificates.client()


@pytest.mark.req("BOUNDARY:badinput")
@pytest.mark.parametrize(
    ("name", "content"),
    [("node.pem", None), ("node.pem", b""), ("node.key", b"rubbish"), ("ca.pem", b"rubbish")],
)
def test_files_that_cannot_be_used_are_refused(
    folder: Path, name: str, content: bytes | None
) -> None:
    """A node does not start with certificates that do not work, and says which."""
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(ConfigurationError, match="cannot be used") as caught:
        _server(folder)
    assert name in str(caught.value)


@pytest.mark.req("BOUNDARY:badinput")
def test_an_encrypted_key_is_refused_and_not_asked_for(folder: Path) -> None:
    """Nobody sits at a node's terminal."""
    path = folder / "node.key"
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"x"),
        )
    )
    with pytest.raises(ConfigurationError, match="encrypted"):
        server_context(folder / "node.pem", path, folder / "ca.pem")


def test_a_withdrawn_certificate_is_not_let_in(folder: Path) -> None:
    """A revocation list that the settings name is looked at."""
    authority = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    signer = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    withdrawn = x509.load_pem_x509_certificate((folder / "Plant A.pem").read_bytes())
    entry = (
        x509.RevokedCertificateBuilder()
        .serial_number(withdrawn.serial_number)
        .revocation_date(NOW - DAY)
        .build()
    )
    path = folder / "list.pem"

    def write_list(until: dt.datetime) -> None:
        made = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(authority.subject)
            .last_update(NOW - 2 * DAY)
            .next_update(until)
            .add_revoked_certificate(entry)
            .sign(signer, hashes.SHA256())
        )
        path.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    write_list(NOW + DAY)
    files = {"cert": folder / "node.pem", "key": folder / "node.key", "ca": folder / "ca.pem"}
    given = {name: str(each) for name, each in (files | {"crl": path}).items()}
    certificates = certificates_of(ZoneSettings.model_validate(given))
    assert certificates is not None
    issue(folder, "Plant B")

    async def main() -> None:
        async with serving(certificates) as running:
            told, heard = await _refused(running, _client(folder))
            assert "certificate revoked" in told
            assert heard == "SSLV3_ALERT_CERTIFICATE_REVOKED"
            assert b"Plant B" in await _who(await running.wire(_client(folder, "Plant B")))
            write_list(NOW - DAY)  # nobody can be checked by it, and that is not the client's fault
            told, heard = await _refused(running, _client(folder, "Plant B"))
            assert "the list of revoked certificates of this node has run out" in told
            assert heard == "SSLV3_ALERT_CERTIFICATE_EXPIRED"

    run(main())


def test_a_plain_context_will_do_as_well(folder: Path) -> None:
    """Who never renews may give a context instead of certificates."""
    context = server_context(folder / "node.pem", folder / "node.key", folder / "ca.pem")

    async def main() -> None:
        async with serving(context) as running:
            wire = await running.wire(_client(folder))
            running.later(1)
            assert b"Plant A" in await _who(wire)

    run(main())


def _subject(*names: str) -> list[list[tuple[str, str]]]:
    return [[("commonName", name)] for name in names]


@pytest.mark.parametrize(
    ("certificate", "identity"),
    [
        ({"subjectAltName": [("URI", "bsfg://zone/plant-a")]}, "plant-a"),
        ({"subjectAltName": [("URI", "bsfg://zone/Plant%20A%2F%C3%BC")]}, "Plant A/ü"),
        ({"subjectAltName": [("URI", "bsfg://zone/a")], "subject": _subject("b")}, "a"),
        ({"subjectAltName": [("URI", "https://a"), ("DNS", "a")], "subject": _subject("b")}, "b"),
        ({"subject": [[("organizationName", "x")], *_subject("Plant B")]}, "Plant B"),
    ],
)
def test_the_uri_comes_before_the_common_name(certificate: Any, identity: str) -> None:
    """The zone in the SAN URI, else the common name."""
    assert peer_identity(certificate) == identity


@pytest.mark.req("BOUNDARY:badinput")
@pytest.mark.parametrize(
    "certificate",
    [
        None,
        {},
        {"subject": [[("organizationName", "x")]]},
        {"subject": _subject("a", "b")},
        {"subject": _subject("")},
        {"subject": _subject("a\x00b")},
        {"subjectAltName": [("URI", "bsfg://zone/a"), ("URI", "bsfg://zone/b")]},
        {"subjectAltName": [("URI", "bsfg://zone/")], "subject": _subject("a")},
        {"subjectAltName": [("URI", "bsfg://zone/%00")]},
        {"subjectAltName": [("URI", "bsfg://zone/%ff")]},
        {"subjectAltName": [("URI", "bsfg://zone/" + "x" * 129)]},
    ],
)
def test_a_certificate_that_names_nobody_is_unauthenticated(certificate: Any) -> None:
    """No name, two names, or one that is none."""
    with pytest.raises(NotPermittedError) as caught:
        peer_identity(certificate)
    assert caught.value.code == "unauthenticated"


def test_files_that_change_while_they_are_read_are_not_taken(tmp_path: Path) -> None:
    """A value from files that may not belong together waits for the next look."""
    path = tmp_path / "file"
    path.write_text("1")
    problems: list[ErgonError] = []
    writes = ["22", "333"]

    def load() -> str:
        text = path.read_text()
        if writes and text != "1":
            path.write_text(writes.pop())
            if len(text) == 1:
                raise ConfigurationError("half a file")
        return text

    watched = ReloadingFile((path,), load, on_problem=problems.append)
    path.write_text("2")
    assert watched.current() == "1"
    assert problems == []
    assert watched.current() == "1"
    assert watched.current() == "22"


def test_a_port_is_not_held_after_a_stop(folder: Path) -> None:
    """The address can be had again at once."""

    async def main() -> tuple[str, int]:
        async with serving(_server(folder)) as running:
            await _who(await running.wire(_client(folder)))
            return running.server.address

    address = run(main())
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(address)
