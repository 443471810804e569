"""Clients a node does not trust, between real processes: what each of them gets to hear."""

from __future__ import annotations

import asyncio
import datetime as dt
import shutil
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ergon_framework.boundary import AsyncProducer, Outbox, Producer
from ergon_framework.boundary.certs import issue, make_ca
from ergon_framework.boundary.http.tls import client_context
from ergon_framework.errors import BoundaryError, NotPermittedError
from tests.boundary.client.raw_server import Colour, reach
from tests.boundary.node.processes import ADMIN, CORE, PATIENCE, NodeProcess, fact, running
from tests.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.req("BOUNDARY:security", "BOUNDARY:badinput", "BSFG:Errors"),
]
BOTH = pytest.mark.parametrize("colour", ["threads", "tasks"])
METHOD = "bsfg.v1.Boundary/AppendFact"
NOW = dt.datetime.now(dt.UTC)
DAY = dt.timedelta(days=1)
UNTRUSTED = {
    "unknown CA": ("it does not know the authority of this client's certificate", "plant-a"),
    "expired": ("this client's certificate has expired, or its list of revoked ones", "late"),
    "not yet valid": ("this client's certificate is damaged, or not valid yet", "early"),
    "missing": ("it asks for a certificate, and this client shows none", ""),
    "TLS 1.2": ("this client does not speak its version of TLS", "plant-a"),
}
POLICY = """
[identities."plant-a"]
operations = ["admin"]
assert = ["plant-a"]
target = ["*"]
logs = ["*"]
consumers = ["*"]
buckets = ["*"]

[identities."plant-b"]
operations = ["pull"]
logs = ["outbound"]
consumers = ["zone:plant-b"]
"""
CASES = pytest.mark.parametrize("case", UNTRUSTED)


class Site:
    """A node with certificates, and those of others."""

    def __init__(self, folder: Path) -> None:
        self.certs = folder / "certs"
        self.other = folder / "other"
        for each in (self.certs, self.other):
            make_ca(each)
            issue(each, "plant-a")
            issue(each, "plant-b")
        issue(self.certs, "late", not_before=NOW - 2 * DAY, not_after=NOW - DAY)
        issue(self.certs, "early", not_before=NOW + DAY, not_after=NOW + 2 * DAY)
        issue(self.certs, "nowhere")
        self.policy = folder / "policy.toml"
        self.policy.write_text(POLICY, encoding="utf-8")
        options = [*self.options("plant-a"), "--policy", str(self.policy)]
        self.node = NodeProcess("plant-a", folder / "plant-a", *options)
        self.node.tls = self.context("plant-a")

    def files(self, zone: str, *, folder: Path | None = None) -> tuple[Path, Path, Path]:
        """Certificate, key, and the authority that the node's certificate is of."""
        mine = folder or self.certs
        return mine / f"{zone}.pem", mine / f"{zone}.key", self.certs / "ca.pem"

    def options(self, zone: str, *, folder: Path | None = None) -> list[str]:
        """For a command."""
        named = zip(("--cert", "--key", "--ca"), self.files(zone, folder=folder), strict=True)
        return [str(each) for pair in named for each in pair]

    def context(self, zone: str, *, folder: Path | None = None) -> ssl.SSLContext:
        """For a client."""
        return client_context(*self.files(zone, folder=folder))

    def untrusted(self, case: str) -> ssl.SSLContext:
        """The context of a client that the node refuses."""
        name = UNTRUSTED[case][1]
        if case == "unknown CA":
            return self.context(name, folder=self.other)
        if case in {"expired", "not yet valid"}:
            return self.context(name)
        bare = ssl.create_default_context(cafile=self.certs / "ca.pem")
        if case == "TLS 1.2":
            bare.load_cert_chain(*self.files(name)[:2])
            bare.maximum_version = ssl.TLSVersion.TLSv1_2
        return bare

    def handshakes_denied(self) -> int:
        """What the node counted."""
        lines = self.node.request("GET", "/metrics")[2].decode().splitlines()
        counted = 'bsfg_denied_total{reason="handshake"} '
        return sum(int(line.removeprefix(counted)) for line in lines if line.startswith(counted))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One node for all tests: it keeps nothing of those whom it refuses."""
    site = Site(tmp_path_factory.mktemp("site"))
    yield site
    site.node.kill()


def refusal(colour: Colour, site: Site, act: Callable[[Any], Any], tls: Any) -> BoundaryError:
    """The error of a client that is refused."""
    with pytest.raises(NotPermittedError) as caught:
        reach(colour, site.node.url, act, tls=tls)
    assert not caught.value.is_retryable
    assert caught.value.remedy
    return caught.value


def call(transport: Any) -> Any:
    """One small call."""
    return transport.call(METHOD, b"{}")


def put(transport: Any) -> Any:
    """One that is still being sent when the refusal comes."""
    chunks = [b"x" * 65536] * 500
    return transport.put_object("b", "k", chunks, size=65536 * len(chunks))


def get(transport: Any) -> Any:
    """One whose answer is a stream."""
    return transport.get_object("b", "k")


def head(transport: Any) -> Any:
    """One whose answer has no body."""
    return transport.head_object("b", "k")


@BOTH
@CASES
@pytest.mark.parametrize("act", [call, put, get, head])
def test_a_client_that_is_not_trusted_is_told(
    colour: Colour, case: str, act: Callable[[Any], Any], site: Site
) -> None:
    """Whatever it asks: unauthenticated, why, and nothing of a lost connection."""
    error = refusal(colour, site, act, site.untrusted(case))
    assert (error.code, error.reason) == ("unauthenticated", "tls")
    assert error.message == f"{site.node.url} does not trust this client: {UNTRUSTED[case][0]}"


@BOTH
def test_a_refusal_is_certain(colour: Colour, site: Site) -> None:
    """Not once in many times does a refused client see a mere loss of its connection."""
    stranger = site.untrusted("unknown CA")
    for _ in range(50):
        assert refusal(colour, site, call, stranger).reason == "tls"


def test_a_refusal_is_logged_in_sums_and_counted_once(site: Site) -> None:
    """The operator sees who came first of each kind, why it was sent away, and how many more."""
    before, logged = site.handshakes_denied(), len(site.node.log())
    for case in UNTRUSTED:
        refusal("threads", site, call, site.untrusted(case))
    until(lambda: site.handshakes_denied() >= before + len(UNTRUSTED), "counted")
    assert site.handshakes_denied() == before + len(UNTRUSTED)
    whole = site.node.log()
    assert "its certificate was refused: certificate has expired" in whole
    assert "peer did not return a certificate" in whole
    assert whole[logged:].count("a connection from 127.0.0.1:") <= len(UNTRUSTED)


@BOTH
def test_a_name_the_policy_does_not_know(colour: Colour, site: Site) -> None:
    """The certificate is good, and nobody here has heard of its zone: an answer says so."""
    error = refusal(colour, site, call, site.context("nowhere"))
    assert (error.code, error.reason) == ("permission_denied", "unknown_identity")
    assert "nowhere" in error.message


def test_a_producer_does_not_try_again(site: Site) -> None:
    """Neither colour: trying again would not help."""
    cert, key, ca = (str(each) for each in site.files("plant-a", folder=site.other))
    told = fact("order:1:created")
    before = site.handshakes_denied()
    with (
        Producer(site.node.url, cert=cert, key=key, ca=ca) as producer,
        pytest.raises(NotPermittedError),
    ):
        producer.append_fact(told["envelope"], told["fact"])

    async def main() -> None:
        async with AsyncProducer(site.node.url, cert=cert, key=key, ca=ca) as producer:
            with pytest.raises(NotPermittedError):
                await producer.append_fact(told["envelope"], told["fact"])

    asyncio.run(main())
    until(lambda: site.handshakes_denied() >= before + 2, "counted")
    assert site.handshakes_denied() == before + 2


def test_an_outbox_keeps_what_a_refused_producer_adds(site: Site, tmp_path: Path) -> None:
    """A wrong certificate says nothing about a fact: it goes out with the right one."""
    told = fact("order:2:created")
    path = tmp_path / "outbox.db"
    cert, key, ca = (str(each) for each in site.files("plant-a", folder=site.other))
    with (
        Producer(site.node.url, cert=cert, key=key, ca=ca) as producer,
        Outbox(path, producer) as outbox,
    ):
        outbox.add(told["envelope"], told["fact"])
        outbox.start()
        until(lambda: outbox.last_error is not None, "the refusal is noticed")
        assert isinstance(outbox.last_error, NotPermittedError)
        assert (outbox.pending(), outbox.refused()) == (1, [])
    cert, key, ca = (str(each) for each in site.files("plant-a"))
    with (
        Producer(site.node.url, cert=cert, key=key, ca=ca) as producer,
        Outbox(path, producer) as outbox,
    ):
        assert outbox.drain(until_empty=True).sent == 1


def test_a_link_says_that_it_is_refused(site: Site, tmp_path: Path) -> None:
    """The node that pulls shows it in its status, and goes on with a certificate that is good."""
    mine = tmp_path / "certs"
    mine.mkdir()

    def use(folder: Path) -> None:
        for name in ("plant-b.pem", "plant-b.key"):
            shutil.copy(folder / name, mine / name)

    def link() -> dict[str, Any]:
        (found,) = node.ask(f"{ADMIN}GetStatus", {})["links"]
        return dict(found)

    use(site.other)
    options = [*site.options("plant-b", folder=mine), "--policy", str(site.policy)]
    peer = ["--peer", f"plant-a={site.node.url}"]
    with running("plant-b", tmp_path / "plant-b", *options, *peer) as node:
        node.tls = site.context("plant-a")
        node.tls.load_verify_locations(site.other / "ca.pem")
        until(lambda: bool(link()["error"]), "an error of the link")
        why = UNTRUSTED["unknown CA"][0]
        assert f"{site.node.url} does not trust this client: {why}" in link()["error"]
        use(site.certs)
        until(lambda: not link()["error"], "a link that is well")


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
@pytest.mark.parametrize(
    ("case", "said"),
    [("unknown CA", "alert unknown ca"), ("missing", "alert certificate required")],
)
def test_curl_hears_it_too(case: str, said: str, site: Site) -> None:
    """People who try it by hand see the alert, not an empty answer."""
    curl = shutil.which("curl")
    assert curl is not None
    cert, key, ca = (str(each) for each in site.files("plant-a", folder=site.other))
    shown = ["--cert", cert, "--key", key] if case == "unknown CA" else []
    done = subprocess.run(  # noqa: S603 - a test
        [curl, "--silent", "--show-error", "--cacert", ca, *shown, f"{site.node.url}{CORE}"],
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode != 0
    if b"OpenSSL" in done.stderr:  # others have words of their own
        assert said in done.stderr.decode(), done.stderr
