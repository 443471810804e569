"""The page of one capability of a provider."""

from __future__ import annotations

from pathlib import Path

import pytest

from ergon_framework.core.rollup import Rollup
from ergon_framework.ports.providerstore import LaneKey, LaneNow, MinuteOfLane
from ergon_framework.web.application import create_app
from ergon_framework.web.console.capability_page import burn_down, hour_of, sentences_of
from tests.web.console_client import ConsoleClient
from tests.web.content import fill_calls, settings_in
from tests.web.test_console_pages import page, rows

pytestmark = pytest.mark.req("ONE:serve")

NOW = 1_800_000_000.0
PAGE = "/console/providers/rank/snapshot"


@pytest.fixture
def client(tmp_path: Path) -> ConsoleClient:
    """A server over a call that was made, one that failed, and one that was given up."""
    fill_calls(f"sqlite:///{tmp_path}/work.db", ["l1"])
    return ConsoleClient(create_app(settings=settings_in(tmp_path, "[server]\ntimeout = 100")))


def test_one_capability(client: ConsoleClient) -> None:
    """Its hour in words and as a chart, its circuits, what was given up, and no payload."""
    assert f'href="{PAGE}"' in page(client, "/console/providers")
    text = page(client, PAGE)
    assert "2 calls ended in the last hour, and 50 % of them succeeded." in text
    assert "at most 1 succeeded and 1 failed" in text
    assert ">l1<" in text
    assert "secret" not in text
    found = client.get(f"{PAGE}?format=json").json()
    assert found["hour"]["p95"] == 0.012
    assert [each["outcome"] for each in found["items"]] == ["failed", "success"]
    assert found["lanes"][0]["circuit"]["text"] == "closed"
    assert {row["reason"] for row in rows(client.get(f"{PAGE}?format=csv"))} == {"timeout", ""}


def test_a_capability_that_nobody_has_called(client: ConsoleClient) -> None:
    """The page says where those are that were."""
    assert "page of providers" in page(client, "/console/providers/rank/nothing", 404)


def lane(**more: object) -> LaneNow:
    """A lane that is well."""
    names = dict.fromkeys(LaneNow._fields)
    known = {"tenant_id": "acme", "breaker_state": "closed", "consecutive_failures": 0}
    return LaneNow(**{**names, **known, **more})  # type: ignore[arg-type]


EMPTY = {"calls": 0}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (lane(), "No call has ended"),
        (lane(breaker_state="open", open_until=NOW + 30), "In 30 s one call is let through"),
        (lane(breaker_state="open", open_until=NOW - 1), "half open for 1 tenant"),
        (lane(cooldown_until=NOW + 120), "left alone for 2 min"),
        (
            lane(quota_used=10, quota_limit=10, window_start=NOW - 60, window_end=NOW + 60),
            "of the tenant acme is used up. It begins anew in 60 s",
        ),
        (
            lane(quota_used=8, quota_limit=10, window_start=NOW - 60, window_end=NOW + 60),
            "used up in 15 s, before it begins anew in 60 s",
        ),
    ],
)
def test_what_holds_calls_up(found: LaneNow, said: str) -> None:
    """In one sentence each, with what follows by itself."""
    assert said in " ".join(sentences_of([found], EMPTY, NOW))


def test_a_quota_that_lasts_is_not_worth_a_sentence() -> None:
    """Nobody need do anything about it."""
    slow = lane(quota_used=2, quota_limit=10, window_start=NOW - 60, window_end=NOW + 60)
    assert list(sentences_of([slow], EMPTY, NOW)) == ["No call has ended in the last hour."]
    pace = burn_down(slow, NOW)
    assert pace is not None
    assert (pace["used_share"], pace["time_share"]) == (20.0, 50.0)
    assert burn_down(lane(), NOW) is None


def test_the_hour_is_that_of_all_tenants() -> None:
    """Minutes add up over tenants; the lane that stands for all of them is not counted again."""
    minutes = [
        MinuteOfLane(LaneKey(tenant, "rates", "fx"), NOW // 60 * 60, Rollup(3, 1))
        for tenant in ("acme", "umbrella", "*")
    ]
    found = hour_of(minutes, NOW)
    assert (found["calls"], found["success_rate"]) == (8, 0.75)
    assert found["minutes"][59]["succeeded"] == 6
    assert found["minutes"][0]["succeeded"] == 0
