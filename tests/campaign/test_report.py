"""The report of a campaign: every part has its line, and one that is broken is not passed over."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.campaign.report import report


def told(store: str) -> dict[str, Any]:
    """What a part says of itself; one of them raises."""
    if store == "torn":
        raise AssertionError("not alike")
    return {"store": store, "lost": int(store == "lossy")}


@pytest.mark.parametrize(
    ("stores", "code"),
    [(["whole", "sound"], 0), (["lossy", "whole"], 1), (["torn", "whole"], 1)],
)
def test_one_broken_part_breaks_the_whole(
    stores: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """And those behind it are judged all the same."""
    parts = [{"store": store} for store in stores]
    assert report(parts, told, lambda each: bool(each["lost"])) == code
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["store"] for line in lines] == stores
    assert ("error" in lines[0]) is (stores[0] == "torn")
