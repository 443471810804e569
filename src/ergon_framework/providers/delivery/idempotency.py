"""Idempotency keys: how a key is made of a request, and which delivery may make the call under it.

This is no promise of exactly once: a process may die after the provider did its work and before the
result was stored. Providers that take an idempotency key themselves find it in
``context.idempotency_key``.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from typing import Any

import msgspec

from ergon_framework.core.failure import Kind
from ergon_framework.core.json_names import repeated_name
from ergon_framework.errors import StoreError, StoreUnavailableError
from ergon_framework.ports.providerstore import (
    ClaimState,
    KeyClaimResult,
    KeyEnding,
    ProviderStore,
    ResultNote,
)
from ergon_framework.providers.decisions import Decision
from ergon_framework.providers.delivery.owner_locks import new_owner
from ergon_framework.providers.errors import (
    ERROR_OF,
    ProviderBadRequestError,
    ProviderError,
    ProviderInternalError,
    Reason,
)
from ergon_framework.providers.redaction import strip_secrets
from ergon_framework.providers.tasks import MAX_RESULT_BYTES, KeepResults, ResultCipher
from ergon_framework.storage.failpoints import declare, failpoint

MAX_KEY = 255  # characters that the tables of calls take

declare("providers.claim.after", "providers.finish.before", "providers.finish.after")


def check_key(key: Any) -> str:
    """A key that a caller gave, or a bad request that says what is wrong with it."""
    if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY or not key.isprintable():
        raise ProviderBadRequestError(
            f"idempotency_key must be a text of 1 to {MAX_KEY} printable characters",
            never_sent=True,
            details={"path": "idempotency_key"},
            remedy="leave it out to have one made of the request",
        )
    return key


def message_key(fingerprint: str, message: str) -> str:
    """The key of a request that is meant once for each message it comes in."""
    return hashlib.sha256(f"{fingerprint}\n{message}".encode()).hexdigest()


def may_run_again(decision: Decision, reason_code: str) -> bool:
    """Whether a call that failed so may be made again under its key.

    It may when it had no effect and a later call can succeed: after an outage, when a gate opens,
    or when credentials are corrected on our side.
    """
    is_curable = decision.kind is Kind.HELD or reason_code == Reason.AUTH_FAILED
    return decision.retries or is_curable


@dataclass(frozen=True, slots=True)
class KeyClaim:
    """One delivery that wants a key. ``owner`` is its own; ``message`` is that of all of them."""

    store: ProviderStore
    tenant_id: str
    key: str
    fingerprint: str
    owner: str
    message: str

    def claim(self, lease: float, keep: float) -> KeyClaimResult:
        """Ask for the key. The lease outlasts the longest call, so that it needs no renewal.

        The store asks this machine about the holder of a key before it takes the key over: a clock
        that is set forward does not end the lease of a holder that lives here.
        """
        answer = self.store.claim(
            self.tenant_id, self.key, self.fingerprint, self.owner, lease, keep
        )
        failpoint("providers.claim.after")
        return answer

    def claim_after(self, dead: str, lease: float, keep: float) -> KeyClaimResult:
        """Claim the key of an owner that is known to be dead, before its lease ends."""
        # In the name of the dead: if another delivery has taken the key over meanwhile, this ends
        # nothing, and the claim below finds the key held.
        self.store.finish(self.tenant_id, self.key, dead, None, None, may_run_again=True)
        return self.claim(lease, keep)

    def succeeded(self, kept: dict[str, Any] | None, note: ResultNote | None = None) -> KeyEnding:
        """The ending that answers every later delivery with the result."""
        return KeyEnding(self.tenant_id, self.key, self.owner, kept, result_note=note)

    def failed(self, reason_code: str, message: str) -> KeyEnding:
        """The ending that answers every later delivery with the failure."""
        return KeyEnding(self.tenant_id, self.key, self.owner, None, reason_code, message)

    def freed(self, reason_code: str | None = None) -> KeyEnding:
        """The ending that lets the next delivery try."""
        return KeyEnding(
            self.tenant_id, self.key, self.owner, None, reason_code, may_run_again=True
        )

    def finish(self, ending: KeyEnding) -> bool:
        """Write an ending under the key; whether the key was still ours."""
        if not ending.is_success:
            return ending.write_to(self.store)
        failpoint("providers.finish.before")
        is_ours = ending.write_to(self.store)
        failpoint("providers.finish.after")
        return is_ours

    def count_redelivery(self, most: int, keep: float) -> str | None:
        """Count a message that came back; None when it came back too often.

        Every try leaves a mark under a name of its own, because a name can be taken only once, and
        takes it away when it has ended: what is left are the tries whose worker was lost.
        """
        mark = hashlib.sha256(f"{self.key}\n{self.message}".encode()).hexdigest()
        for number in range(1, most + 1):
            name = f"redelivery {number} of {mark}"
            # The lease is as long as the mark is kept: one that ended with its worker could be
            # taken again, and the try that killed the worker would not count.
            found = self.store.claim(self.tenant_id, name, mark, self.owner, keep, keep)
            if found.state is ClaimState.MINE:
                return name
        return None

    def uncount_redelivery(self, name: str) -> None:
        """Remove the mark of a redelivery."""
        self.store.finish(self.tenant_id, name, self.owner, None, None, may_run_again=True)

    @property
    def name(self) -> str:
        """Under which the call is held while it is made."""
        return _held_name(self.tenant_id, self.key, self.message)


def new_claim(
    store: ProviderStore, tenant_id: str, key: str, fingerprint: str, message: str
) -> KeyClaim:
    """A claim with a new owner, whose name leads to the lock file that shows whether it is
    alive.
    """
    owner = new_owner(_held_name(tenant_id, key, message))
    return KeyClaim(store, tenant_id, key, fingerprint, owner, message)


def _held_name(tenant_id: str, key: str, message: str) -> str:
    return f"{tenant_id}\n{key}\n{message}"


def earlier_failure(claim: KeyClaimResult) -> ProviderError:
    """The error that ended an earlier call under the same key."""
    kind = ERROR_OF.get(claim.reason_code or "", ERROR_OF[Reason.INTERNAL_ERROR.value])
    return kind(claim.error_message or "an earlier call under this idempotency key failed")


def conflict() -> ProviderBadRequestError:
    """The key was used for another request."""
    return ProviderBadRequestError(
        "this idempotency key was used for another request",
        never_sent=True,
        details={"path": "idempotency_key"},
        remedy="one key belongs to one request: give each its own",
    )


# Results, kept under their key for later deliveries. A result is kept whole, or not at all: a later
# delivery with the key gets it unchanged, or an error that says why it is not there. With a cipher,
# the store holds it encrypted.

_SEALED = "sealed"


@dataclass(frozen=True, slots=True)
class ResultStorage:
    """How the results of one task are kept."""

    keep: KeepResults = KeepResults.WHOLE
    largest: int = MAX_RESULT_BYTES
    cipher: ResultCipher | None = None
    secret_names: frozenset[str] = frozenset()

    def ending(self, guard: KeyClaim, data: dict[str, Any]) -> KeyEnding:
        """What is to be written under the key of a call that succeeded."""
        return guard.succeeded(*self._sealed(guard, data))

    def write(self, guard: KeyClaim, ending: KeyEnding) -> bool:
        """Write an ending under the key; whether the key was still ours.

        A result that the store refuses is left out: without the success under its key, the call
        would be made again.
        """
        try:
            return guard.finish(ending)
        except StoreError as error:
            if ending.result is None or isinstance(error, StoreUnavailableError):
                raise
            return guard.finish(guard.succeeded(None, ResultNote.REFUSED))

    def read(
        self, guard: KeyClaim, claim: KeyClaimResult
    ) -> dict[str, Any] | ProviderInternalError:
        """The result of an earlier call under the key, or the error that takes its place."""
        note = claim.result_note
        if note is ResultNote.ENCRYPTED:
            return self._opened(guard, claim.result or {})
        if claim.result is None or note is not None:
            return self._missing(note or ResultNote.UNREADABLE)
        return claim.result

    def _sealed(
        self, guard: KeyClaim, data: dict[str, Any]
    ) -> tuple[dict[str, Any] | None, ResultNote | None]:
        if self.keep is KeepResults.NEVER:
            return None, ResultNote.NOT_WANTED
        try:
            text = msgspec.json.encode(data, enc_hook=str)
            if repeated_name(data, text) is not None:
                return None, ResultNote.NOT_JSON
            plain = msgspec.json.decode(text, type=dict[str, Any])
        except Exception:  # whatever its objects do when they are to become texts
            return None, ResultNote.NOT_JSON
        if len(text) > self.largest:
            return None, ResultNote.TOO_LARGE
        if self.keep is KeepResults.WITHOUT_SECRETS and self._has_secrets(plain):
            return None, ResultNote.HAS_SECRETS
        if self.cipher is None:
            return plain, None
        # With its key inside, a row that is put in the place of another is found out.
        whole = msgspec.json.encode([guard.tenant_id, guard.key, plain])
        sealed = base64.b64encode(self.cipher.encrypt(whole)).decode()
        return {_SEALED: sealed}, ResultNote.ENCRYPTED

    def _has_secrets(self, plain: dict[str, Any]) -> bool:
        try:
            return strip_secrets(plain, self.secret_names)[1]
        except RecursionError:  # too deep to be looked through
            return True

    def _opened(
        self, guard: KeyClaim, kept: dict[str, Any]
    ) -> dict[str, Any] | ProviderInternalError:
        if self.cipher is None:
            return _error("was encrypted, and this task has no result_cipher", _SAME_CIPHER)
        try:
            text = self.cipher.decrypt(base64.b64decode(kept[_SEALED], validate=True))
            tenant_id, key, data = msgspec.json.decode(text, type=tuple[str, str, dict[str, Any]])
        except Exception:  # its text may hold anything
            return _error("cannot be decrypted with this task's result_cipher", _SAME_CIPHER)
        if (tenant_id, key) != (guard.tenant_id, guard.key):
            return _error("belongs to another key, so the store was changed by hand", _ASK_PROVIDER)
        return data

    def _missing(self, note: ResultNote) -> ProviderInternalError:
        if note is ResultNote.TOO_LARGE:
            why = f"is larger than max_result_bytes ({self.largest:,} bytes)"
            return _error(f"{why} and was not kept", f"raise max_result_bytes, or {_ASK_PROVIDER}")
        return _error(*_EXPLANATIONS[note])


_ASK_PROVIDER = (
    "ask the provider what became of the call; a new idempotency key would make it once more"
)
_SAME_CIPHER = (
    "give all workers of the task the same result_cipher, and keep old keys readable when you"
    " rotate them (MultiFernet)"
)
_EXPLANATIONS = {
    ResultNote.NOT_WANTED: ("was not kept, because keep_results is 'never'", _ASK_PROVIDER),
    ResultNote.HAS_SECRETS: (
        "has fields that look secret and was not kept, because keep_results is 'without_secrets'",
        f"set a result_cipher and keep_results='whole', or {_ASK_PROVIDER}",
    ),
    ResultNote.NOT_JSON: (
        "cannot be written as JSON and was not kept",
        "let the provider return dicts (keys: texts), lists, texts, numbers, true, false and null",
    ),
    ResultNote.REFUSED: ("was refused by the store and not kept", _ASK_PROVIDER),
    ResultNote.CROWDED: (
        "is no longer kept: the store in memory needed the room",
        "use a store in a file or on a server, or give MemoryProviderStore more result_bytes",
    ),
    ResultNote.EARLIER: ("was not kept by an earlier version of ergon-framework", _ASK_PROVIDER),
    ResultNote.UNREADABLE: ("is in the store and cannot be read", _ASK_PROVIDER),
}


def _error(what: str, remedy: str) -> ProviderInternalError:
    return ProviderInternalError(
        f"the call under this idempotency key succeeded before, but its result {what}",
        never_sent=True,
        remedy=remedy,
    )
