"""Results of calls, as they are kept under an idempotency key for later deliveries.

A result is kept whole, or not at all: a later delivery with the key gets it unchanged, or an error
that says why it is not there. With a cipher, the store holds it encrypted.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import msgspec

from ergon_framework.core.json_names import repeated_name
from ergon_framework.errors import StoreError, StoreUnavailableError
from ergon_framework.ports.providerstore import KeyClaimResult, KeyEnding, ResultNote
from ergon_framework.providers.delivery.idempotency import KeyClaim
from ergon_framework.providers.errors import ProviderInternalError
from ergon_framework.providers.redaction import strip_secrets
from ergon_framework.providers.tasks import MAX_RESULT_BYTES, KeepResults, ResultCipher

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
