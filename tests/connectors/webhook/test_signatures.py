"""Signatures of webhooks: which requests are believed, and which are not."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from ergon_framework.connector.webhook import (
    HmacSignature,
    SignatureError,
    StripeSignature,
    github_signature,
)
from ergon_framework.connector.webhook.signatures import SignatureCheck
from ergon_framework.errors import ConfigurationError
from tests.connectors.webhook import sender
from tests.connectors.webhook.sender import NOW, SECRET

BODY = b'{"id":"evt_1"}'


def verify(
    check: SignatureCheck, headers: sender.Headers, body: bytes = BODY, now: float = NOW
) -> None:
    """As the receiver does it."""
    check.verify({name.lower(): value for name, value in headers.items()}, body, now)


def refusal(
    check: SignatureCheck, headers: sender.Headers, body: bytes = BODY, now: float = NOW
) -> str:
    """What is said of a request that is not believed."""
    with pytest.raises(SignatureError) as caught:
        verify(check, headers, body, now)
    assert SECRET not in str(caught.value)
    return caught.value.message


def test_stripe_as_its_manual_has_it() -> None:
    """The scheme of Stripe: the instant, a dot and the body, and any of several secrets."""
    verify(StripeSignature(SECRET), sender.stripe(BODY, SECRET))
    verify(StripeSignature(["new", SECRET]), sender.stripe(BODY, SECRET))
    verify(StripeSignature("new"), sender.stripe(BODY, SECRET, "new"))


@pytest.mark.parametrize("apart", [-301, 301])
def test_a_replay_and_a_clock_that_is_ahead_are_refused(apart: int) -> None:
    """A signature that fits is taken within the tolerance, on both sides of now."""
    headers = sender.stripe(BODY, SECRET)
    verify(StripeSignature(SECRET), headers, now=NOW + apart - apart // abs(apart))
    assert "301 s" in refusal(StripeSignature(SECRET), headers, now=NOW + apart)
    verify(StripeSignature(SECRET, tolerance=400), headers, now=NOW + apart)


def test_an_instant_that_somebody_changed_is_refused() -> None:
    """The timestamp is signed: a replay cannot be made young again."""
    old = sender.stripe(BODY, SECRET, at=NOW - 9999)["Stripe-Signature"]
    changed = old.replace(f"t={NOW - 9999:.0f}", f"t={NOW:.0f}")
    assert "fits" in refusal(StripeSignature(SECRET), {"Stripe-Signature": changed})
    both = f"t={NOW:.0f},{old}"
    assert "several" in refusal(StripeSignature(SECRET), {"Stripe-Signature": both})


@pytest.mark.parametrize(
    "header",
    ["", "t=", "v1=", "t=1,v1=", "t=,v1=zz", "t=x,v1=00", "v0=" + "0" * 64, ",=,=", "t=1" * 999],
)
def test_what_is_no_signature_of_stripe_is_refused(header: str) -> None:
    """Whatever stands in the header is refused as unsigned; nothing else is raised."""
    refusal(StripeSignature(SECRET), {"Stripe-Signature": header})
    refusal(StripeSignature(SECRET), {})
    refusal(StripeSignature(SECRET), sender.stripe(BODY, "another"))
    refusal(StripeSignature(SECRET), sender.stripe(BODY, SECRET), BODY + b" ")


def test_a_timestamp_that_is_signed_and_no_number_is_refused() -> None:
    """A sender's own mistake is told as one."""
    found = hmac.new(SECRET.encode(), b"soon." + BODY, hashlib.sha256).hexdigest()
    header = {"Stripe-Signature": f"t=soon,v1={found}"}
    assert "no number" in refusal(StripeSignature(SECRET), header)


def test_github() -> None:
    """``X-Hub-Signature-256`` with its prefix; the old header with SHA-1 is not believed."""
    check = github_signature(["old", SECRET])
    verify(check, sender.github(BODY))
    signature = sender.github(BODY)["X-Hub-Signature-256"]
    assert "fits" in refusal(check, {"X-Hub-Signature-256": signature.removeprefix("sha256=")})
    assert "fits" in refusal(check, {"X-Hub-Signature-256": signature[:-2]})
    sha1 = hmac.new(SECRET.encode(), BODY, "sha1").hexdigest()
    assert "no header" in refusal(check, {"X-Hub-Signature": f"sha1={sha1}"})
    assert "fits" in refusal(check, sender.github(BODY, "another"))


def test_the_scheme_of_anybody_else() -> None:
    """What is signed, how it is written and where its instant stands are arguments."""
    check = HmacSignature(
        b"key",
        header="webhook-signature",
        encoding="base64",
        prefix="v1,",
        content="{webhook-id}.{webhook-timestamp}.{body}",
        timestamp="webhook-timestamp",
    )
    headers = sender.standard(BODY, "msg_1", b"key")
    verify(check, headers)
    assert "fits" in refusal(check, {**headers, "webhook-id": "msg_2"})
    assert "301 s" in refusal(check, headers, now=NOW + 301)
    missing = {name: value for name, value in headers.items() if name != "webhook-id"}
    assert "webhook-id" in refusal(check, missing)


def test_several_signatures_in_one_header() -> None:
    """While a sender changes its secret, one of its signatures is enough."""
    check = HmacSignature(SECRET, header="X-Sign", prefix="v0=", content="v0:{body}")
    found = hmac.new(SECRET.encode(), b"v0:" + BODY, hashlib.sha256).hexdigest()
    verify(check, {"X-Sign": f"v0={'0' * 64} v0={found}"})
    refusal(check, {"X-Sign": " ".join([f"v0={'0' * 64}"] * 99 + [f"v0={found}"])})


@pytest.mark.parametrize("secrets", ["", [], [""], ["a", " "], None, [7], b""])
def test_an_empty_secret_is_refused(secrets: object) -> None:
    """A variable that is not set must not become a secret that anybody knows."""
    with pytest.raises(ConfigurationError, match="needs a secret"):
        StripeSignature(secrets)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="needs a secret"):
        github_signature(secrets)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"header": "a b"}, "no name"),
        ({"algorithm": "md5"}, "md5"),
        ({"encoding": "octal"}, "hex or base64"),
        ({"content": "{x-id}"}, "must have {body}"),
        ({"timestamp": "x-at"}, "anybody could change it"),
        ({"tolerance": 0}, "tolerance"),
        ({"tolerance": float("inf")}, "tolerance"),
    ],
)
def test_a_scheme_that_checks_nothing_is_refused(options: dict[str, object], problem: str) -> None:
    """A mistake in the arguments is found when the receiver is made."""
    with pytest.raises(ConfigurationError, match=problem):
        HmacSignature(SECRET, **{"header": "x-sign", **options})  # type: ignore[arg-type]


def test_secrets_are_in_no_repr() -> None:
    """Neither check shows what it knows."""
    for check in (StripeSignature(SECRET), github_signature([SECRET, "two"])):
        assert SECRET not in repr(check)
