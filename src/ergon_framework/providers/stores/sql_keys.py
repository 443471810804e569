"""Idempotency keys: one holder at a time, and what came of its call."""

from __future__ import annotations

from typing import Any

from ergon_framework.errors import StoreUnavailableError
from ergon_framework.ports.providerstore import Claim, ClaimState, ResultNote
from ergon_framework.providers.stores.claims import (
    KeyRecord,
    healed,
    refused,
    status_after,
    to_json,
)
from ergon_framework.providers.stores.ground import PACKAGE, Hand, fitted, sure_instant
from ergon_framework.providers.stores.sql_gates import Grounded
from ergon_framework.storage.sql_files import load

_SQL = load(PACKAGE, "keys.sql")
_MESSAGE = 2000
_TURNS = 5
_LARGE = 1 << 20  # characters of a result that the database needs more time for


class Keys(Grounded):
    """Who holds which key."""

    def claim(
        self, tenant_id: str, key: str, fingerprint: str, owner: str, lease: float, keep: float
    ) -> Claim:
        """Take a key for ``lease`` seconds; remember it for ``keep``."""
        stamp, now = self._ground.stamp, self._ground.now()
        values = {
            "tenant_id": tenant_id,
            "key": key,
            "fingerprint": fingerprint,
            "owner": owner,
            "lease_expires_at": stamp(now + lease),
            "expires_at": stamp(now + max(lease, keep)),
            "now": stamp(now),
        }

        def work(hand: Hand) -> Claim:
            return self._take(hand, values, now) or Claim(ClaimState.MINE, owner, now + lease)

        return self._ground.write("claim", work)

    def finish(
        self,
        tenant_id: str,
        key: str,
        owner: str,
        result: dict[str, Any] | None,
        reason_code: str | None,
        error_message: str | None = None,
        *,
        may_run_again: bool = False,
        result_note: ResultNote | None = None,
    ) -> bool:
        """Record the end under a key that is still ours; whether it was."""
        kept = to_json(result, "result")
        message = error_message if result_note is None else result_note.value
        values = {
            "tenant_id": tenant_id,
            "key": key,
            "owner": owner,
            "holder": "" if may_run_again else owner,
            "status": status_after(reason_code, may_run_again=may_run_again).value,
            "result": kept,
            "reason_code": reason_code,
            "error_message": None if message is None else fitted(message, _MESSAGE),
            "now": self._ground.stamp(self._ground.now()),
        }
        is_large = kept is not None and len(kept) > _LARGE
        return bool(
            self._ground.write(
                "finish", lambda hand: hand.run(_SQL["finish"], values), is_large=is_large
            )
        )

    def _take(self, hand: Hand, values: dict[str, Any], now: float) -> Claim | None:
        """Take the key, or say why not."""
        for _ in range(_TURNS):
            found = hand.rows(_SQL["find"], values)
            if not found:
                if hand.run(_SQL["add"], values):
                    return None
                continue  # somebody else was faster, and has it now
            record = self._healed(hand, values, _record_of(*found[0]), now)
            no = refused(record, values["fingerprint"], values["owner"], now)
            if no is not None:
                return no
            held = {**values, "holder": record.owner, "status": record.status}
            if hand.run(_SQL["take_over"], held):
                return None
        raise StoreUnavailableError(
            "an idempotency key changes hands all the time", remedy="try again"
        )

    def _healed(
        self, hand: Hand, values: dict[str, Any], record: KeyRecord, now: float
    ) -> KeyRecord:
        """The key with a lease that counts from now on, if its own is from after now."""
        if healed(record, now) is None:
            return record
        # Whoever waited for the database may have an old instant in hand, and no clock was set.
        restated = healed(record, self._ground.now())
        if restated is None:
            return record
        stamp = self._ground.stamp
        ends = {
            "holder": record.owner,
            "lease_expires_at": stamp(restated.lease_expires_at),
            "now": stamp(restated.written_at),
        }
        hand.run(_SQL["restate"], {**values, **ends})
        return restated


def _record_of(fingerprint: str, status: str, owner: str, *rest: Any) -> KeyRecord:
    lease_expires_at, expires_at, written_at = map(sure_instant, rest[:3])
    result, reason_code, error_message = rest[3:]
    return KeyRecord(
        fingerprint,
        status,
        owner,
        lease_expires_at,
        expires_at,
        result,
        reason_code,
        error_message,
        written_at,
    )
