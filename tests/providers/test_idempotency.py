"""Keys: what they are made of, who gets them, and what is kept under them."""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergon_framework.ports.providerstore import ClaimState, LaneKey
from ergon_framework.providers.delivery.idempotency import KeyClaim, check_key
from ergon_framework.providers.delivery.owner_locks import OWNER_LOCKS
from ergon_framework.providers.errors import ProviderBadRequestError, Reason
from ergon_framework.providers.pipeline.request import fingerprint
from ergon_framework.providers.redaction import (
    normalised_names,
    plain_json,
    safe_message,
    strip_secrets,
)
from ergon_framework.providers.stores.memory import MemoryProviderStore
from ergon_framework.providers.tasks import CallProgress, TaskEnd, TaskGate
from ergon_framework.redaction import is_secret
from ergon_framework.testing import VirtualClock
from tests.local_users import NOBODY, acting_as, needs_root, shared_folder
from tests.providers.scripted_tasks import (
    call,
    fingerprint_of,
    lock_as_another_process,
    provider,
    runner,
)

pytestmark = [pytest.mark.req("PEF:A-16", "PEF:T-3"), pytest.mark.usefixtures("own_place", "clock")]

LANE = LaneKey("t", "rank", "snapshot")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


def key_of(payload: dict[str, Any], **other: Any) -> str:
    """The key of a call."""
    values: dict[str, Any] = {"lane": LANE, "campaign_id": None, "operation": "fetch", **other}
    return fingerprint(payload=payload, **values)


# -- keys -----------------------------------------------------------------------------------------


def test_a_key_does_not_depend_on_how_the_payload_is_written() -> None:
    """Neither on the order of names nor on how a number is spelled."""
    assert key_of({"a": 1, "b": [1, 2]}) == key_of({"b": [1.0, 2], "a": 1})
    assert len(key_of({})) == 64


@pytest.mark.parametrize(
    "other",
    [
        {"lane": LANE._replace(tenant_id="u")},
        {"lane": LANE._replace(provider_name="u")},
        {"lane": LANE._replace(capability="u")},
        {"campaign_id": "c"},
        {"operation": "push"},
        {"payload": {"q": 2}},
        {"payload": {"q": "1"}},
        {"payload": {"q": 1, "r": None}},
        {"payload": {"q": [1]}},
    ],
)
def test_everything_that_makes_another_request_makes_another_key(other: dict[str, Any]) -> None:
    """Two calls that differ in one thing are two calls."""
    payload = other.pop("payload", {"q": 1})
    assert key_of({"q": 1}) != key_of(payload, **other)


@pytest.mark.req("PEF:T-8")
def test_secrets_and_what_changes_with_every_sending_are_left_out() -> None:
    """At any depth; a name of one's own can be added to both."""
    plain = key_of({"q": 1, "login": {"user": "u"}, "list": [{"x": 1}]})
    assert plain == key_of(
        {
            "q": 1,
            "api_key": "s1",
            "request_id": "r",
            "login": {"user": "u", "Password": "p"},
            "list": [{"x": 1, "accessToken": "t", "traceparent": "00"}],
        }
    )
    assert key_of({"q": 1, "nonce": 5}) != key_of({"q": 1})
    assert key_of({"q": 1, "nonce": 5}, volatile_names=frozenset({"nonce"})) == key_of({"q": 1})
    mine = normalised_names({"My-Pin-Code"})
    assert key_of({"q": 1, "my_pin_code": 5}, secret_names=mine) == key_of({"q": 1})


def test_numbers_that_json_cannot_carry_exactly_still_make_keys() -> None:
    """Two large numbers that are one float are two requests."""
    assert key_of({"id": 2**60}) != key_of({"id": 2**60 + 1})
    assert key_of({"id": 2**60}) != key_of({"id": str(2**60)})


def test_values_that_json_knows_how_to_say_make_keys() -> None:
    """As for the call itself: instants and bytes have a spelling."""
    assert key_of({"at": datetime(2026, 1, 1, tzinfo=UTC), "raw": b"x"})


@given(payload=st.dictionaries(st.text(max_size=5), JSON))
def test_any_payload_has_one_key(payload: dict[str, Any]) -> None:
    """Reading the payload back from JSON does not change it."""
    assert key_of(payload) == key_of(plain_json(payload))


@pytest.mark.parametrize("wrong", ["", "a\nb", "a\x00", "k" * 256, 7, b"k"])
def test_keys_that_are_refused(wrong: Any) -> None:
    """A key is a printable text of 1 to 255 characters."""
    with pytest.raises(ProviderBadRequestError, match="idempotency_key"):
        check_key(wrong)


def test_keys_that_are_taken() -> None:
    """Up to the length of the column."""
    assert check_key("k" * 255) == "k" * 255
    assert check_key("Bestellung Nr. 7 für ü") == "Bestellung Nr. 7 für ü"


# -- secrets --------------------------------------------------------------------------------------


@pytest.mark.req("PEF:T-8")
@pytest.mark.parametrize(
    "name",
    [
        *("password", "PASSWORD", "user_password", "apiKey", "x-api-key", "API-Key", "secret"),
        *("client_secret", "access_token", "token", "refreshToken", "Authorization", "cookie"),
        *("aws_secret_access_key", "private_key", "passphrase", "credentials", "pin", "otp"),
        # Others end with the letters of names that are plain, or with more than the word.
        *("backend_token", "frontendToken", "send_token", "restart_token", "input_token"),
        *("api_keys", "tokens", "access_tokens", "passwords", "password2", "X-API-KEY2"),
        *("token_value", "client_secret_value", "PasswordConfirmation", "accesstoken", "APIKEY"),
    ],
)
def test_names_of_secrets(name: str) -> None:
    """However the words are joined."""
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "max_tokens",
            "maxTokens",
            "page_token",
            "nextPageToken",
            "continuation_token",
            "keyword",
        ),
        *("start_token", "end_token", "nextpagetoken", "total_tokens", "tokenizer", "pins"),
        *("key", "keys", "author", "spin", "shipping", "signal", "monkey", "secretary", "passage"),
    ],
)
def test_names_that_only_look_like_it(name: str) -> None:
    """Leaving these out would make two requests look like one."""
    assert not is_secret(name)


@pytest.mark.req("PEF:T-8")
def test_secrets_are_stripped_wherever_they_are() -> None:
    """By name, and by what the value looks like; the rest stays as it was."""
    payload = {
        "q": 1,
        "password": {"old": "a", "new": "b"},
        "nested": [{"token": "x", "y": 2}, ["https://u:pw@host/", "https://host/"]],
        "header": "Bearer abcdefgh",
        "none": None,
    }
    kept, has_secrets = strip_secrets(payload)
    assert kept == {
        "q": 1,
        "nested": [{"y": 2}, ["https://***@host/", "https://host/"]],
        "header": "Bearer ***",
        "none": None,
    }
    assert has_secrets
    assert strip_secrets({"q": [1, {"r": 2}]}) == ({"q": [1, {"r": 2}]}, False)


@pytest.mark.req("PEF:T-8")
@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("https://h/x?api_key=S3&q=1", "https://h/x?api_key=***&q=1"),
        ("login:\nAuthorization: Token S3 S3\nok", "login:\nAuthorization: ***\nok"),
        ("postgres://u:p/S3@h/db", "postgres://***@h/db"),
        ("redis://:p@S3:w@h/0", "redis://***@h/0"),
        ("host=h password='S3 S3' dbname=d", "host=h password=*** dbname=d"),
        ('{"apiKey": "a S3", "q": 1}', '{"apiKey": ***, "q": 1}'),
        ("user: u\npassword: S3\n", "user: u\npassword: ***\n"),
        ("curl -H 'bearer abcS3def' h", "curl -H 'bearer *** h"),
    ],
)
def test_what_a_text_gives_away_is_left_out_of_it(text: str, kept: str) -> None:
    """Wherever it is; the rest stays, or two requests would have one key."""
    assert strip_secrets({"q": [text]}) == ({"q": [kept]}, True)
    assert strip_secrets({"q": [kept]}) == ({"q": [kept]}, False)


@pytest.mark.parametrize(
    "text",
    [
        *("https://h/?page_token=a&max_tokens=5", "our secret: good bread", "ssh://git@h/x"),
        *("https://h:80/@ann", "https://h?mail=a@b", "the bearer securities market", "a: b = c"),
    ],
)
def test_texts_that_only_look_like_it(text: str) -> None:
    """They stay as they are, and their calls can be made again."""
    assert strip_secrets({"q": text}) == ({"q": text}, False)


def test_a_number_of_tokens_is_no_secret() -> None:
    """The tokens themselves are."""
    assert strip_secrets({"tokens": 500}) == ({"tokens": 500}, False)
    assert strip_secrets({"tokens": ["a"]}) == ({}, True)


@pytest.mark.parametrize("unit", ["a://b:x", "a://b:x@", "password='", "token=", '"token":', "\n "])
def test_a_long_payload_takes_no_time(unit: str) -> None:
    """No pattern goes back and forth over it: the test would not end."""
    strip_secrets({"q": unit * 100_000})


@given(payload=st.dictionaries(st.text(max_size=8), JSON))
def test_what_has_no_secrets_is_not_changed(payload: dict[str, Any]) -> None:
    """And stripping twice is stripping once."""
    kept, has_secrets = strip_secrets(payload)
    assert has_secrets or kept == payload
    assert strip_secrets(kept) == (kept, False)


@pytest.mark.req("PEF:T-8")
def test_messages_are_veiled_and_bounded() -> None:
    """Also those that a provider raised itself."""
    error = ProviderBadRequestError(
        "GET https://u:pw@h/x?sig=abc failed: token=s3cret " + "y" * 900
    )
    told = safe_message(error)
    assert not any(each in told for each in ("pw@", "abc", "s3cret"))
    assert len(told) <= 500


# -- who gets a key -------------------------------------------------------------------------------


def test_a_success_is_replayed_and_uses_no_quota() -> None:
    """The second call has the data of the first."""
    run = runner("ok bad_request", computed_keys="request")
    first, second = run.run(call()), run.run(call(call_id="message-2"))
    assert (first.end, second.end) == (TaskEnd.DONE, TaskEnd.REPLAYED)
    assert second.result.data == first.result.data
    assert (second.result.replayed, second.result.attempts) == (True, 0)


def test_the_same_key_for_another_request_is_a_bad_request() -> None:
    """Whoever reuses a key is told, and nothing is called."""
    run = runner("ok")
    run.run(call({"q": 1}, idempotency_key="k"))
    ending = run.run(call({"q": 2}, idempotency_key="k"))
    assert (ending.end, ending.result.reason_code) == (TaskEnd.FAILED, "bad_request")
    buried = runner("ok", bury_on={"bad_request"})
    buried.run(call({"q": 1}, idempotency_key="k"))
    assert buried.run(call({"q": 2}, idempotency_key="k")).end is TaskEnd.DEAD


def test_tenants_do_not_share_keys() -> None:
    """One tenant's key says nothing about another's."""
    run = runner("ok")
    ends = [run.run(call(tenant_id=each, idempotency_key="k")).end for each in ("a", "b")]
    assert ends == [TaskEnd.DONE, TaskEnd.DONE]


@pytest.mark.parametrize("reason", sorted(set(Reason)))
def test_which_failures_are_made_again_under_their_key(reason: Reason) -> None:
    """Those that time, quota or credentials can heal; the others are told again as they were."""
    run = runner(provider(f"{reason.value} {reason.value} {reason.value} ok"), max_deferrals=0)
    first = run.run(call(idempotency_key="k"))
    second = run.run(call(idempotency_key="k", call_id="message-2"))
    is_kept_for_good = reason in {"bad_request", "response_invalid", "internal_error"}
    assert first.result.reason_code == reason
    assert second.result.replayed is is_kept_for_good
    if is_kept_for_good:
        assert (second.end, second.result.reason_code) == (TaskEnd.FAILED, reason)
        assert str(second.result.error) == str(first.result.error)


def test_a_key_in_use_defers_the_duplicate() -> None:
    """One call is under way; the other waits for it, and never calls."""
    began, go = threading.Event(), threading.Event()

    class Slow(type(provider())):  # type: ignore[misc]
        def _execute_impl(self, **given: Any) -> dict[str, Any]:
            began.set()
            assert go.wait(30)
            return {"by": "the first"}

    run = runner(Slow())
    ends: list[Any] = []
    thread = threading.Thread(target=lambda: ends.append(run.run(call(idempotency_key="k"))))
    thread.start()
    assert began.wait(30)
    waiting = run.run(call(idempotency_key="k", call_id="message-2"))
    go.set()
    thread.join(30)
    assert (waiting.end, waiting.gate) == (TaskEnd.DEFER, TaskGate.DUPLICATE)
    assert ends[0].end is TaskEnd.DONE
    done = run.run(call(idempotency_key="k", call_id="message-2", carried=waiting.carried))
    assert (done.end, done.result.data) == (TaskEnd.REPLAYED, {"by": "the first"})


def test_a_duplicate_that_waited_too_often_is_buried() -> None:
    """Deferrals end, whatever they wait for; who may not wait at all is told that it is busy."""
    run = runner("ok", max_deferrals=1)
    run.provider.store.claim("t", "k", fingerprint_of(run.provider), "somebody", 1e6, 1e6)
    last = run.run(call(idempotency_key="k", carried=CallProgress(deferrals=1)))
    assert (last.end, last.result.reason_code) == (TaskEnd.DEAD, "dependency_unavailable")
    busy = run.run(call(idempotency_key="k", may_wait=False))
    assert (busy.end, busy.result.reason_code) == (TaskEnd.FAILED, "dependency_unavailable")


@pytest.mark.req("PEF:trap-worker-lost")
def test_a_lease_is_taken_over_when_it_has_run_out() -> None:
    """Nobody knows what became of its holder; until then, others wait."""
    now = [1000.0]
    store = MemoryProviderStore(lambda: now[0])
    run = runner(provider("ok", store=store))
    store.claim("t", "k", fingerprint_of(run.provider), "gone", 90.0, 3600.0)
    assert run.run(call(idempotency_key="k")).end is TaskEnd.DEFER
    assert run.run(call(idempotency_key="k", is_redelivered=True)).end is TaskEnd.DEFER
    now[0] += 91
    assert run.run(call(idempotency_key="k")).end is TaskEnd.DONE


@pytest.mark.req("PEF:trap-worker-lost")
def test_a_message_that_comes_back_goes_on_when_its_worker_is_dead() -> None:
    """The lock that the worker held is free: it died on this machine, and nobody waits for it."""
    run = runner("ok")
    store, name = run.provider.store, "t\nk\nmessage-1"
    store.claim("t", "k", fingerprint_of(run.provider), "the dead one", 90.0, 3600.0)
    held = lock_as_another_process(name, "the dead one")
    alive = run.run(call(idempotency_key="k", is_redelivered=True))
    assert (alive.end, alive.gate) == (TaskEnd.DEFER, TaskGate.DUPLICATE)
    os.close(held)
    other = run.run(call(idempotency_key="k", call_id="message-2", is_redelivered=True))
    assert other.end is TaskEnd.DEFER
    assert run.run(call(idempotency_key="k", is_redelivered=True)).end is TaskEnd.DONE
    assert OWNER_LOCKS.dead_owner(name) is None


def test_a_second_copy_of_a_message_does_not_call_beside_the_first() -> None:
    """A producer that was not sure sends a message twice, under one id."""
    began, go = threading.Event(), threading.Event()
    calls: list[int] = []

    class Slow(type(provider())):  # type: ignore[misc]
        def _execute_impl(self, **given: Any) -> dict[str, Any]:
            calls.append(1)
            began.set()
            assert go.wait(30)
            return {}

    run = runner(Slow())
    thread = threading.Thread(target=lambda: run.run(call(idempotency_key="k")))
    thread.start()
    assert began.wait(30)
    for is_redelivered in (False, True):
        copy = run.run(call(idempotency_key="k", is_redelivered=is_redelivered))
        assert (copy.end, copy.gate) == (TaskEnd.DEFER, TaskGate.DUPLICATE)
    go.set()
    thread.join(30)
    assert calls == [1]


@needs_root
@pytest.mark.parametrize("planted", ["folder", "file"])
def test_a_folder_of_somebody_else_is_not_used(
    planted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then leases have to run out; the call itself is made. Nor is a file of his, in ours."""
    with shared_folder() as public:
        monkeypatch.setattr(tempfile, "tempdir", str(public))
        folder = public / f"ergon-held-{os.getuid()}"
        if planted == "file":
            folder.mkdir()
            folder.chmod(0o777)
        with acting_as(NOBODY):
            folder.mkdir(exist_ok=True)
            (folder / hashlib.sha256(b"name").hexdigest()).write_text("somebody")
        assert OWNER_LOCKS.acquire("name", "me") is None
        assert OWNER_LOCKS.dead_owner("name") is None
        assert runner("ok").run(call()).end is TaskEnd.DONE


def test_without_the_guard_every_call_is_made() -> None:
    """The key still reaches the provider and the rows."""
    run = runner("ok", idempotent=False)
    ends = [run.run(call(idempotency_key="k")) for _ in range(2)]
    assert [each.end for each in ends] == [TaskEnd.DONE, TaskEnd.DONE]
    assert ends[0].result.idempotency_key == "k"


def test_a_key_of_the_request_is_forgotten_sooner_than_a_given_one() -> None:
    """The same request an hour later is a new one; where its caller gives a key, a day later."""
    now = [1000.0]
    store = MemoryProviderStore(lambda: now[0])
    run = runner(provider("ok", store=store), computed_keys="request")
    for key, seconds in (None, 3600.0), ("k", 86_400.0):
        assert run.run(call(idempotency_key=key)).end is TaskEnd.DONE
        now[0] += seconds - 1.0
        assert run.run(call(idempotency_key=key)).end is TaskEnd.REPLAYED
        now[0] += 2.0
        assert run.run(call(idempotency_key=key)).end is TaskEnd.DONE


def test_many_threads_and_one_key_make_one_call() -> None:
    """Whoever comes second waits or has the result."""
    run = runner("ok")
    ends: list[TaskEnd] = []

    def deliver(number: int) -> None:
        with VirtualClock():
            ends.append(run.run(call(idempotency_key="k", call_id=f"m{number}")).end)

    threads = [threading.Thread(target=deliver, args=(number,)) for number in range(16)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(30)
    assert ends.count(TaskEnd.DONE) == 1
    assert set(ends) <= {TaskEnd.DONE, TaskEnd.REPLAYED, TaskEnd.DEFER}


def test_redeliveries_are_counted_per_message() -> None:
    """Each one leaves a mark; another message has marks of its own."""
    store = MemoryProviderStore()
    guards = [
        KeyClaim(store, "t", "k", "f", f"{n}", m) for n, m in enumerate(["m1", "m1", "m1", "m2"])
    ]
    marks = [each.count_redelivery(2, 100.0) for each in guards]
    assert [mark is not None for mark in marks] == [True, True, False, True]
    assert guards[0].claim(1.0, 1.0).state is ClaimState.MINE
