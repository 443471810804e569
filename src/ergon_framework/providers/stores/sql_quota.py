"""Budgets of windows, in the quota table. Each take is one statement that takes all or nothing."""

from __future__ import annotations

from typing import Any

from ergon_framework.core.quota import Account, Window, latest_start
from ergon_framework.ports.providerstore import LaneKey, Quota
from ergon_framework.providers.stores.ground import PACKAGE, Hand, sure_instant
from ergon_framework.providers.stores.sql_gates import Grounded, new_id
from ergon_framework.storage.sql_files import load

_SQL = load(PACKAGE, "quota.sql")
_SPEND, _TAKE, _NEWEST = _SQL["spend"], _SQL["take"], _SQL["newest"]
_REFUSE, _REFUND = _SQL["refuse"], _SQL["refund"]
_MOST = (1 << 62) - 1
_MARK_EVERY = 1.0
"""Seconds between two marks on a window that is used up: many callers may be refused."""
_TURNS = 3


class Quotas(Grounded):
    """What is left of each window."""

    def reserve(self, key: LaneKey, window: Window, limit: int, units: int) -> Quota:
        """Take ``units`` of a window's budget, atomically, or none."""
        ground, now = self._ground, self._ground.now()
        values = {
            **key._asdict(),
            "start": ground.stamp(window.start),
            "limit": min(limit, _MOST),
            "units": min(units, _MOST),
            "now": ground.stamp(now),
            "latest": ground.stamp(latest_start(window, now)),
        }

        def work(hand: Hand) -> Quota:
            spent = hand.rows(_SPEND, values)
            if spent:
                return Quota(Account(window, limit, spent[0][0]), is_granted=True)
            more = {
                "id": new_id(),
                "end": ground.stamp(window.end),
                "lately": ground.stamp(now - _MARK_EVERY),
            }
            return _open_or_refuse(hand, {**values, **more}, window)

        return ground.write("reserve", work, is_synced=False)

    def refund(self, key: LaneKey, window: Window, units: int) -> None:
        """Give ``units`` back to the window they were taken from; never below nothing used."""
        stamp = self._ground.stamp
        values = {
            **key._asdict(),
            "start": stamp(window.start),
            "units": min(units, _MOST),
            "now": stamp(self._ground.now()),
        }
        self._ground.write("refund", lambda hand: hand.run(_REFUND, values), is_synced=False)


def _open_or_refuse(hand: Hand, values: dict[str, Any], window: Window) -> Quota:
    """Why nothing could be spent: a window that is new, not the newest any more, or used up."""
    limit, used = values["limit"], 0
    for _ in range(_TURNS):
        newest = hand.rows(_NEWEST, values)
        if newest and newest[0][0] > values["start"]:
            # The caller's clock is behind, or was set back: an old budget is not opened again.
            values["start"], values["end"], used = newest[0]
            window = Window(sure_instant(values["start"]), sure_instant(values["end"]))
            taken = hand.rows(_SPEND, values)
        elif newest and newest[0][0] == values["start"]:
            used = newest[0][2]
            if used + values["units"] > limit:
                break
            # Somebody else opened it just now, and there is enough for both.
            taken = hand.rows(_SPEND, values)
        else:
            taken = hand.rows(_TAKE, values)
        if taken:
            return Quota(Account(window, limit, taken[0][0]), is_granted=True)
    hand.run(_REFUSE, values)
    return Quota(Account(window, limit, used), is_granted=False)
