"""The one engine of redaction: what it finds in messages and fields, and what it leaves alone.

No example here is a key. Each is put together from parts, so that no scanner takes this file for a
leak: a beginning that belongs to a vendor, and characters of no meaning.
"""

from __future__ import annotations

import time

import pytest

from ergon_framework.errors import ErgonError, describe, text_of
from ergon_framework.redaction import is_credential, is_secret, redacted_message, redacted_text

MIXED = "a1B2c3D4e5F6g7H8i9J0" * 5
HEX = "0f1e2d3c4b5a6978" * 5
UPPER = "A1B2C3D4E5F6G7H8"
DIGITS = "1234567890"


def made(*parts: str) -> str:
    """One secret of several parts."""
    return "".join(parts)


FORMATS = {
    "aws access key": made("AK", "IA", UPPER),
    "aws session key": made("AS", "IA", UPPER),
    "alibaba": made("LT", "AI", MIXED[:20]),
    "google api": made("AI", "za", MIXED[:35]),
    "google oauth": made("ya", "29.", MIXED[:40]),
    "google client": made("GOC", "SPX-", MIXED[:28]),
    "github classic": made("gh", "p_", MIXED[:36]),
    "github app": made("gh", "s_", MIXED[:36]),
    "github fine": made("github", "_pat_", MIXED[:60]),
    "gitlab": made("gl", "pat-", MIXED[:20]),
    "gitlab runner": made("gl", "rt-", MIXED[:20]),
    "slack bot": made("xo", "xb-", DIGITS, "-", MIXED[:24]),
    "slack app": made("xa", "pp-1-", MIXED[:30]),
    "slack webhook": made("https://hooks.slack", ".com/services/T0/B0/", MIXED[:24]),
    "discord webhook": made("https://discord", ".com/api/webhooks/", DIGITS, "/", MIXED[:60]),
    "teams webhook": made("https://acme.webhook", ".office.com/webhookb2/", MIXED[:36]),
    "telegram": made(DIGITS, ":", "AA", MIXED[:33]),
    "stripe live": made("sk", "_live_", MIXED[:24]),
    "stripe restricted": made("rk", "_live_", MIXED[:24]),
    "stripe webhook": made("wh", "sec_", MIXED[:32]),
    "razorpay": made("rzp", "_live_", MIXED[:14]),
    "square": made("sq0", "atp-", MIXED[:22]),
    "openai": made("sk", "-proj-", MIXED[:40]),
    "openai old": made("sk", "-", MIXED[:48]),
    "anthropic": made("sk", "-ant-", "api03-", MIXED[:60]),
    "hugging face": made("hf", "_", MIXED[:34]),
    "groq": made("gs", "k_", MIXED[:52]),
    "replicate": made("r8", "_", MIXED[:37]),
    "npm": made("np", "m_", MIXED[:36]),
    "pypi": made("py", "pi-AgEI", MIXED[:60]),
    "rubygems": made("ruby", "gems_", HEX[:48]),
    "docker": made("dckr", "_pat_", MIXED[:27]),
    "sendgrid": made("S", "G.", MIXED[:22], ".", MIXED[:43]),
    "mailgun": made("ke", "y-", HEX[:32]),
    "brevo": made("xkey", "sib-", HEX[:64]),
    "twilio": made("S", "K", HEX[:32]),
    "shopify": made("shp", "at_", HEX[:32]),
    "digitalocean": made("dop", "_v1_", HEX[:64]),
    "databricks": made("da", "pi", HEX[:32]),
    "doppler": made("dp", ".pt.", MIXED[:40]),
    "linear": made("lin", "_api_", MIXED[:40]),
    "notion": made("nt", "n_", MIXED[:46]),
    "postman": made("PM", "AK-", HEX[:24], "-", HEX[:34]),
    "grafana": made("gl", "sa_", MIXED[:32], "_", HEX[:8]),
    "vault": made("hv", "s.", MIXED[:90]),
    "terraform": made(MIXED[:14], ".atlas", "v1.", MIXED[:67]),
    "new relic": made("NR", "AK-", UPPER, UPPER[:11]),
    "sentry": made("sn", "trys_", MIXED[:60]),
    "figma": made("fi", "gd_", MIXED[:40]),
    "airtable": made("pa", "t", MIXED[:14], ".", HEX[:64]),
    "atlassian": made("ATA", "TT3", MIXED[:80]),
    "azure client": made("abc", "8", "Q~", MIXED[:34]),
    "dynatrace": made("dt0", "c01.", UPPER, ".", UPPER, UPPER),
    "planetscale": made("pscale", "_tkn_", MIXED[:43]),
    "tailscale": made("ts", "key-auth-", MIXED[:30]),
    "supabase": made("sb", "p_", HEX[:40]),
    "jwt": made("ey", "J", MIXED[:20], ".ey", "J", MIXED[:20], ".", MIXED[:30]),
    "age": made("AGE-SECRET", "-KEY-1", UPPER, UPPER, UPPER),
    "pem": made(
        "-----BEGIN RSA PRIV", "ATE KEY-----\n", MIXED, "\n-----END RSA PRIV", "ATE KEY-----"
    ),
}
"""A secret by its form alone: what public scanners look for."""

NAMED = [
    "aws_secret_access_key={}",
    "AWS_SECRET_ACCESS_KEY = {}",
    "DefaultEndpointsProtocol=https;AccountName=a;AccountKey={};EndpointSuffix=core.example",
    "Endpoint=sb://a.example/;SharedAccessKeyName=k;SharedAccessKey={}",
    "SharedAccessSignature={}",
    "BlobEndpoint=https://a.example/;SharedAccessSignature=sv=1&sig={}",
    "subscription_key={}",
    '{{"subscription_key": "{}"}}',
    '{{"card_number": "{}", "amount": 3}}',
    "signature={}",
    "pass={}",
    "db_pass={}",
    "DB_PASS='{}'",
    "dsn={}",
    "SENTRY_DSN={}",
    "connection_string={}",
    "client_secret={}",
    "api_key={}",
    "postgresql://me:{}@db.example/work",
]
"""A secret by the name before it."""

SECRET_FIELDS = [
    *("password", "passwd", "pass", "db_pass", "dbPass", "SMTP_PASS", "dsn", "sentry_dsn"),
    *("connection_string", "connectionString", "ConnectionStrings", "subscription_key"),
    *("Ocp-Apim-Subscription-Key", "signature", "x-signature", "card_number", "cardNumber"),
    *(
        "aws_secret_access_key",
        "AccountKey",
        "accountKey",
        "SharedAccessKey",
        "api_key",
        "x-api-key",
    ),
    *("client_secret", "access_token", "refreshToken", "private_key", "cvv", "webhook_url"),
    *("SharedAccessSignature", "security_code", "master_key", "Authorization", "set-cookie"),
]
PLAIN_FIELDS = [
    *("passed", "passenger", "boarding_pass", "first_pass", "compass", "bypass", "keyboard"),
    *("next_page_token", "max_tokens", "total_tokens", "card_type", "card_number_last4", "string"),
    *(
        "account",
        "account_name",
        "key",
        "monkey",
        "foreign_key",
        "primary_key",
        "signature_required",
    ),
    *("design", "signed_at", "connection", "subscription", "subscription_id", "webhook", "author"),
    *("secretary", "tokenizer", "authority", "pinned", "description", "dsname", "string_value"),
]
INNOCENT = [
    "connection to db.example:5432 refused: no route to host",
    "HTTP 503 Service Unavailable after 3 attempts, 2.5 s",
    "order 4711 of customer acme-gmbh was not found in table sk_orders",
    "file /var/lib/app/sk-backup/part-00000001.jsonl is missing",
    "commit 0f1e2d3c4b5a69780f1e2d3c4b5a69780f1e2d3c is not an ancestor",
    "request 6ba7b810-9dad-11d1-80b4-00c04fd430c8 timed out",
    "npm_config_registry is not set; hf_hub_offline is",
    "the model hf_model was loaded from r8_local",
    "first pass: 12, second pass: 9, boarding pass: gate A4",
    "see https://example.org/docs/errors/E1001 for details",
    "time 12:34:56, ratio 3:1, key: value, note: nothing",
    "Risk-based pricing was chosen; task-oriented design; ask-first policy",
    "SKU SK1234, page 12 of 90, EAN 4006381333931",
    "ya29 is a road, and SG. is short for something",
    "the signature of f(x) changed; table sk_orders_by_customer is gone",
    "max_tokens=4096 total_tokens=17",
]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("text", ["{}", "refused {}, try again", 'got "{}"', "x={}", "at {}."])
def test_a_secret_is_known_by_its_form(kind: str, text: str) -> None:
    """In a message and in a field alike, whatever stands around it; and what is around stays."""
    secret = FORMATS[kind]
    tail = secret.replace("-----", "").split("PRIVATE KEY")[1] if kind == "pem" else secret[-12:]
    for engine in (redacted_message, redacted_text):
        told = engine(text.format(secret))
        assert tail.strip() not in told
        assert "***" in told
    assert "try again" in redacted_text("refused, try again")


@pytest.mark.parametrize("text", NAMED)
def test_a_secret_is_known_by_the_name_before_it(text: str) -> None:
    """Messages and fields do not disagree, and each name has its value left out."""
    secret = made("Q", "w3rty", "Zx9")
    for engine in (redacted_message, redacted_text):
        assert secret not in engine(text.format(secret))


def test_fields_are_known_by_their_names() -> None:
    """Whatever case they are written in; words that only look similar are left alone."""
    assert [name for name in SECRET_FIELDS if not is_secret(name)] == []
    assert [name for name in PLAIN_FIELDS if is_secret(name)] == []


@pytest.mark.parametrize("text", INNOCENT)
def test_innocent_text_stays_as_it_is(text: str) -> None:
    """A message that is all stars helps nobody; ids, counts, paths and prose are no secrets."""
    assert redacted_text(text) == text
    assert redacted_message(text) == text


def test_what_makes_a_key_still_tells_requests_apart() -> None:
    """Two payments with two cards are two requests: only what lets somebody in is no part of it."""
    assert not is_credential("card_number")
    assert redacted_text("card_number=1", is_for_key=True) == "card_number=1"
    assert redacted_text("password=1", is_for_key=True) == "password=***"


@pytest.mark.parametrize(
    "unit", ["sk-", "a:", "x=", "AKIA", "ghp_a", "://a:", "pass", "\\'", "Q~ab"]
)
def test_no_text_takes_long(unit: str) -> None:
    """A megabyte of anything is read in a time that grows with its length alone."""
    began = time.process_time()
    redacted_text(unit * (100_000 // len(unit)))
    redacted_message(unit * (4_000 // len(unit)))
    assert time.process_time() - began < 10


class Refused(ErgonError):
    """One of ours."""


def test_what_an_exception_says_is_told_without_its_secrets() -> None:
    """Whoever tells of an error asks the one function, which asks this engine."""
    url = made("postgresql://svc:", "hunter2", "@db/work")
    told = describe(OSError(f"cannot reach {url}?sslmode=disable, password=hunter2"))
    assert told == "OSError: cannot reach postgresql://***@db/work?*** password=***"
    assert text_of(RuntimeError(FORMATS["github classic"])) == made("gh", "p_", "***")
    assert "hunter2" not in describe(Refused(f"no {url}"))


def test_the_remedy_of_an_error_of_ours_can_still_be_pasted() -> None:
    """A query string is left out of what others say, and shown where it is an option of ours."""
    remedy = "write redis://host/0?persistence=none, or ?acknowledge=unsynced"
    assert describe(Refused("it syncs later", remedy=remedy)).endswith(f"({remedy})")


def test_what_an_exception_says_is_bounded() -> None:
    """However long it is, the engine reads its beginning only, and a secret is not cut in two."""
    told = describe(ValueError("password='" + "x" * 1_000_000 + "'"))
    assert told == "ValueError: password=***"
    assert len(describe(ValueError("word " * 1_000_000))) < 20_000


@pytest.mark.parametrize(
    "advice",
    [
        'write token = "file:PATH", or listen on 127.0.0.1',
        'write pass_secrets = ["WORK_STORE"] into the [executors.…] table of the executor',
        "write redis://host:6379/0, redis://user:password@host/0, or rediss:// for TLS",
        "send the header Authorization: Bearer <token>",
        "password = env:MAIL_PASSWORD",
    ],
)
def test_advice_is_no_secret(advice: str) -> None:
    """Where a secret stands, and a word that stands for one, may be told: they are to be pasted."""
    assert redacted_text(advice) == advice
    assert redacted_message(advice) == advice
    assert describe(Refused("no", remedy=advice)).endswith(f"({advice})")
