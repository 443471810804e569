"""Ids that come out the same whenever the same event is told again."""

from __future__ import annotations

import datetime as dt
import os
import re
import subprocess
import sys
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ergon_framework.boundary.facts.ids import message_id, stable_uuid
from ergon_framework.errors import ConfigurationError

pytestmark = pytest.mark.req("P10", "BSFG:Ids")

parts = st.text(st.characters(codec="utf-8"), min_size=1) | st.integers(-(2**53) + 1, 2**53 - 1)


def refused(*args: Any, **kwargs: Any) -> ConfigurationError:
    """Why no id is made of these."""
    with pytest.raises(ConfigurationError) as caught:
        message_id(*args, **kwargs)
    assert caught.value.remedy
    return caught.value


# ---- message_id ----


def test_an_id_is_the_same_for_ever() -> None:
    """Ids are stored for years, so these values may never change."""
    assert message_id("work_order_created", "WO", "12345", once=True) == (
        "bb1e0a70aa707e9ba603b43b6440be1c931948626b50568154b635e434bfdc10"
    )
    assert message_id("batch_step_completed", "batch", 7, revision=3) == (
        "3c1e195e1c7025ea19bc5a29ab513d7dc9816ab7b4c05ab074836697f244fde7"
    )


def test_an_id_may_be_used_as_it_is() -> None:
    """Sixty-four hexadecimal digits."""
    assert re.fullmatch("[0-9a-f]{64}", message_id("created", "WO", "é", discriminator="x y"))


@given(st.lists(parts, min_size=4, max_size=4), st.lists(parts, min_size=4, max_size=4))
def test_ids_are_the_same_for_the_same_parts_only(one: list[Any], other: list[Any]) -> None:
    """No two events share an id, and no event has two."""

    def made(event: Any, kind: Any, entity: Any, revision: Any) -> str:
        return message_id(str(event), str(kind), entity, revision=revision)

    def key(event: Any, kind: Any, entity: Any, revision: Any) -> list[Any]:
        return [str(event), str(kind), entity, revision]

    assert (made(*one) == made(*other)) == (key(*one) == key(*other))


def test_neighbours_are_kept_apart() -> None:
    """Borders, types and the name of a discriminator all count."""
    ids = [
        message_id("ab", "c", "d", once=True),
        message_id("a", "bc", "d", once=True),
        message_id("a", "b", "cd", once=True),
        message_id("a", "b", 1, once=True),
        message_id("a", "b", "1", once=True),
        message_id("a", "b", "1", revision=1),
        message_id("a", "b", "1", revision="1"),
        message_id("a", "b", "1", discriminator=1),
        message_id("a", "b", "1", discriminator="1"),
        message_id("a", "b", "1", source_time="1"),
        message_id("a", "b", "1", revision=1, source_time="1"),
        message_id("a", "b", '1","revision":1', once=True),
    ]
    assert len(set(ids)) == len(ids)


def test_an_event_that_may_recur_needs_a_discriminator() -> None:
    """Otherwise its second time would be taken for the first."""
    error = refused("step_completed", "batch", "7")
    assert "once=True" in error.remedy
    assert isinstance(error, ValueError)


def test_once_and_a_discriminator_contradict_each_other() -> None:
    """An event that cannot recur has no occasions."""
    assert refused("created", "WO", "1", once=True, revision=2).details["field"] == "once"


@pytest.mark.parametrize("name", ["revision", "discriminator", "source_time"])
@pytest.mark.parametrize(
    "now",
    [dt.datetime(2026, 1, 1, tzinfo=dt.UTC), dt.date(2026, 1, 1), dt.time(8)],
)
def test_a_clock_s_time_is_refused(name: str, now: Any) -> None:
    """Only the text of the source record is the same at the next attempt."""
    error = refused("read", "sensor", "t1", **{name: now})
    assert error.details["field"] == name
    assert "source_time" in error.remedy


@pytest.mark.parametrize(
    ("args", "kwargs", "field"),
    [
        (("e", "k", 1.5), {"once": True}, "entity_id"),
        (("e", "k", True), {"once": True}, "entity_id"),
        (("e", "k", None), {"once": True}, "entity_id"),
        (("e", "k", b"1"), {"once": True}, "entity_id"),
        (("e", "k", ("a", "b")), {"once": True}, "entity_id"),
        ((5, "k", "1"), {"once": True}, "event_type"),
        (("e", 5, "1"), {"once": True}, "entity_kind"),
        (("", "k", "1"), {"once": True}, "event_type"),
        (("e", "k", ""), {"once": True}, "entity_id"),
        (("e", "k", "1"), {"revision": 1.0}, "revision"),
        (("e", "k", "1"), {"revision": ""}, "revision"),
        (("e", "k", "1"), {"source_time": 1741248600000}, "source_time"),
        (("e", "k", "1"), {"discriminator": uuid.UUID(int=1)}, "discriminator"),
    ],
)
def test_other_parts_are_refused(args: Any, kwargs: Any, field: str) -> None:
    """A float or an object has no spelling of its own; the part is named."""
    assert refused(*args, **kwargs).details["field"] == field


@pytest.mark.parametrize("entity", [2**53, -(2**53), "\ud800"])
def test_parts_that_json_would_bend_are_refused(entity: Any) -> None:
    """A large number is to be given as text."""
    assert "id" in refused("e", "k", entity, once=True).message


# ---- stable_uuid ----


def test_a_uuid_is_of_version_5_and_the_same_for_ever() -> None:
    """Ids are stored for years, so the value may never change."""
    made = stable_uuid("plant-a", "WO:12345:created")
    assert uuid.UUID(made).version == 5
    assert made == "1bf002f7-aa11-574a-afb4-1a10bd98e042"


def test_uuids_keep_their_parts_apart() -> None:
    """Namespace, borders and types count."""
    namespace = uuid.UUID(int=7)
    made = [
        stable_uuid("a", "b", "c"),
        stable_uuid("ab", "c"),
        stable_uuid("a", "bc"),
        stable_uuid("a", '["b","c"]'),
        stable_uuid("a", 1),
        stable_uuid("a", "1"),
        stable_uuid(namespace, "1"),
        stable_uuid(str(namespace), "1"),
    ]
    assert len(set(made)) == len(made)


@pytest.mark.parametrize(
    ("namespace", "name", "field"),
    [
        ("a", (), "name"),
        ("", ("b",), "namespace"),
        (5, ("b",), "namespace"),
        ("a", ("b", 1.5), "name[1]"),
        ("a", (dt.date(2026, 1, 1),), "name[0]"),
    ],
)
def test_what_no_uuid_is_made_of(namespace: Any, name: Any, field: str) -> None:
    """The part is named."""
    with pytest.raises(ConfigurationError) as caught:
        stable_uuid(namespace, *name)
    assert caught.value.details["field"] == field


@pytest.mark.slow
def test_ids_are_the_same_in_every_process() -> None:
    """Neither a new process nor another hash seed changes them."""
    program = (
        "from ergon_framework.boundary.facts.ids import message_id, stable_uuid\n"
        "print(message_id('created', 'WO', 5, revision='a', discriminator=2))\n"
        "print(stable_uuid('plant-a', 'WO', 5))\n"
    )
    expected = [
        message_id("created", "WO", 5, revision="a", discriminator=2),
        stable_uuid("plant-a", "WO", 5),
    ]
    for seed in ("0", "1", "4242"):
        done = subprocess.run(  # noqa: S603  this interpreter, with our own program
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert done.stdout.split() == expected
