from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergon_framework.providers.mapping import canonical
from ergon_framework.providers.redaction import MAX_MESSAGE, describe_safely, redact_text


@pytest.mark.req("PEF:T-8")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cannot reach https://ann:pw@host/path", "cannot reach https://***@host/path"),
        ("cannot reach redis://:p@ss:w@host:1/0", "cannot reach redis://***@host:1/0"),
        ("GET https://host/a/b?key=S3CRET&b=1 failed", "GET https://host/a/b?*** failed"),
        ("Max retries exceeded with url: /a?t=S3CRET (why)", None),
        ("https://host/cb#access_token=S3CRET", "https://host/cb#***"),
        ("sent Authorization: Bearer S3CRET.abc", None),
        ("sent authorization: Basic UzNDUkVU", None),
        ("api_key=S3CRET is not known", "api_key=*** is not known"),
        ("{'password': 'S3CRET'}", None),
        ("x-api-key: S3CRET", "x-api-key: ***"),
        ("client_secret = S3CRET", "client_secret = ***"),
        ("refresh-token=S3CRET", "refresh-token=***"),
        ("Authorization: Token S3CRET", "Authorization: ***"),
        ("{'Authorization': 'Token S3CRET', 'a': 1}", "{'Authorization': ***, 'a': 1}"),
        ("GET postgres://u:p/S3CRET@h/db failed", "GET postgres://***@h/db failed"),
        ("password: 'my S3CRET phrase' is wrong", "password: *** is wrong"),
        ('password="my \\" S3CRET" is wrong', "password=*** is wrong"),
        ("password: 'cut off S3CRET", "password: ***"),
        ("access_tokens=S3CRET", "access_tokens=***"),
        ("client_secret_value: S3CRET", "client_secret_value: ***"),
        ("password2=S3CRET", "password2=***"),
        ("http://h:80/@ann failed", "http://h:80/@ann failed"),
        ("is it? yes: no secret here", "is it? yes: no secret here"),
        ("password authentication failed", "password authentication failed"),
        ("Basic checks failed", None),
    ],
)
def test_what_looks_like_a_secret_is_left_out(text: str, shown: str | None) -> None:
    """Credentials and query strings of URLs, headers, and values with telling names."""
    veil = redact_text(text)
    assert "S3CRET" not in veil
    assert "UzNDUkVU" not in veil
    if shown is not None:
        assert veil == shown


JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----"


@pytest.mark.req("PEF:T-8")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"{JWT} has expired", "*** has expired"),
        (f"cannot load {PEM} for ann", "cannot load *** for ann"),
        ("cannot load -----BEGIN PRIVATE KEY----- MIIEow", "cannot load ***"),
        ("token S3CRET9 rejected", "token *** rejected"),
        ("the token 'S3CRET9' is not known", "the token *** is not known"),
        ("password hunter22 is wrong", "password *** is wrong"),
        (f"secret {'abcdefgh' * 4} is wrong", "secret *** is wrong"),
        ("invalid API key 9f8e7d6c5b", "invalid API key ***"),
        ("sk-live-S3CRET456789012345678 is not known", "sk-*** is not known"),
        ("rk_test_S3CRET456789012345678 is not known", "rk_*** is not known"),
        ("ghp_S3CRET456789012345678 is not known", "ghp_*** is not known"),
        ("glpat-S3CRET456789012345678 is not known", "glpat-*** is not known"),
        ("xoxb-123-S3CRET-456 is not known", "xoxb-*** is not known"),
        ("AKIAIOSFODNN7EXAMPLE is not known", "AKIA*** is not known"),
        (f"AIza{'S3CRET' * 6} is not known", "AIza*** is not known"),
    ],
)
def test_a_secret_that_nobody_calls_one_is_left_out(text: str, shown: str) -> None:
    """It gives itself away by its form, or by the word before it."""
    assert redact_text(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "token expired",
        "the secret ingredient was rejected",
        "unexpected token 4097 at position 128000",
        "password authentication failed",
        "disk-sk task-ask-for-something-else-entirely",
        "key user42:profile is not there",
        "-----BEGIN CERTIFICATE-----",
    ],
)
def test_what_is_no_secret_is_told(text: str) -> None:
    """Or nobody could say what went wrong."""
    assert redact_text(text) == text


def test_only_the_first_line_is_told() -> None:
    """The rest is detail, such as the parameters of a statement."""
    assert describe_safely(ValueError("\nfirst\nsecond")) == "ValueError: first"
    assert describe_safely(ValueError("   ")) == "ValueError"
    assert describe_safely(ValueError()) == "ValueError"


def test_a_message_is_bounded() -> None:
    """However much an exception has to say."""
    error = canonical(RuntimeError("x" * 1_000_000))
    assert len(error.message) == MAX_MESSAGE
    assert error.message.endswith("…")


def test_a_message_can_be_stored_and_shown() -> None:
    """No database refuses it and no terminal obeys it."""
    message = describe_safely(RuntimeError("a\x00b\x1b[31mc\ud800"))
    assert message.isprintable()
    assert message.encode().decode() == message


@given(st.text(max_size=5000))
def test_any_text_can_be_veiled(text: str) -> None:
    """Bounded, printable, and the same when it is veiled again."""
    veil = redact_text(text)
    assert len(veil) <= MAX_MESSAGE
    assert veil.isprintable()


SECRETS = st.text("abcdefXYZ0123456789-_.~%!:@", min_size=4, max_size=30)


@pytest.mark.req("PEF:T-8")
@given(SECRETS, st.sampled_from(["https://u:{}@host/p", "/p?a=1&t={}", "https://host/?t={} (x)"]))
def test_no_url_gives_its_secret_away(secret: str, form: str) -> None:
    """Whatever characters it is made of."""
    marked = f"q{secret}q"
    assert marked not in redact_text(f"failed for {form.format(marked)} today")


@pytest.mark.parametrize("unit", ["a-", "#", "?", "https://", "token", "bearer ", "@", "a:", "'"])
def test_a_long_text_takes_no_time(unit: str) -> None:
    """No pattern goes back and forth over it: the test would not end."""
    for _ in range(20):
        redact_text(unit * 1_000_000)
