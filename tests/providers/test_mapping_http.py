from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergon_framework.providers.mapping import canonical
from ergon_framework.providers.mapping.clients import STATUS_REASONS, reason_of_status


class Answered(Exception):
    """What a client nobody has heard of raises."""

    def __init__(self, status_code: int, headers: dict[str, str] | None = None) -> None:
        super().__init__("secret words")
        self.status_code = status_code
        self.headers = headers


@pytest.mark.req("PEF:E-14")
@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "bad_request"),
        (401, "auth_failed"),
        (402, "quota_exhausted"),
        (403, "auth_failed"),
        (404, "bad_request"),
        (405, "bad_request"),
        (407, "auth_failed"),
        (408, "timeout"),
        (409, "bad_request"),
        (410, "bad_request"),
        (413, "bad_request"),
        (414, "bad_request"),
        (415, "bad_request"),
        (421, "connection_error"),
        (422, "bad_request"),
        (425, "rate_limited"),
        (429, "rate_limited"),
        (451, "bad_request"),
        (500, "dependency_unavailable"),
        (501, "bad_request"),
        (502, "dependency_unavailable"),
        (503, "dependency_unavailable"),
        (504, "timeout"),
        (505, "bad_request"),
        (520, "dependency_unavailable"),
        (524, "timeout"),
        (529, "dependency_unavailable"),
    ],
)
def test_a_status_stands_for_a_reason(status: int, code: str) -> None:
    """Whichever client reports it; the status is kept and the words are ours."""
    error = canonical(Answered(status))
    assert error.reason_code == code
    assert error.http_status == status
    assert error.message.startswith(f"HTTP {status}")
    assert "secret" not in error.message
    assert not error.never_sent


@pytest.mark.req("PEF:A-9")
@pytest.mark.parametrize("status", [429, 503, 500, 402])
def test_retry_after_is_kept(status: int) -> None:
    """Whatever the status, whoever asks for a pause is heard."""
    error = canonical(Answered(status, {"Retry-After": "7"}))
    assert error.retry_after_seconds == 7.0


@pytest.mark.req("PEF:A-9")
def test_a_date_is_read_by_the_clock_that_is_given() -> None:
    """The wall clock is an argument."""
    raw = Answered(503, {"Retry-After": "Thu, 01 Jan 1970 00:01:40 GMT"})
    assert canonical(raw, now=lambda: 40.0).retry_after_seconds == 60.0
    assert canonical(raw, now=lambda: 140.0).retry_after_seconds == 0.0


@pytest.mark.req("PEF:A-9")
def test_a_reset_counts_for_a_throttled_call_only() -> None:
    """A server error is not to wait until the hour's budget is renewed."""
    headers = {"X-RateLimit-Reset": "3000"}
    assert canonical(Answered(429, headers)).retry_after_seconds == 3000.0
    assert canonical(Answered(500, headers)).retry_after_seconds is None


@pytest.mark.parametrize("headers", [{"Retry-After": "60"}, {"X-RateLimit-Remaining": "0"}])
def test_403_is_a_throttle_when_it_says_until_when(headers: dict[str, str]) -> None:
    """Some providers throttle so; without such a header it is a refusal."""
    assert canonical(Answered(403, headers)).reason_code == "rate_limited"
    assert canonical(Answered(403, {"X-RateLimit-Remaining": "9"})).reason_code == "auth_failed"


def test_an_unknown_exception_with_a_status_that_is_no_error_tells_nothing() -> None:
    """An attribute that looks like a status of 200 does not make a bug an answer."""
    error = canonical(Answered(200))
    assert (error.reason_code, error.http_status) == ("internal_error", None)


@given(st.integers(-10, 1000))
def test_every_number_has_a_reason(status: int) -> None:
    """The rest follows from the first digit."""
    reason = reason_of_status(status)
    if status not in STATUS_REASONS:
        first = status // 100
        told = {4: "bad_request", 5: "dependency_unavailable"}.get(first, "response_invalid")
        assert reason == told
