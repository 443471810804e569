"""The object store under test, as the checks see it: a clock set by hand, and short words."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, TypeAlias

from ergon_framework.errors import FactInvalidError
from ergon_framework.ports.objectstore import Blob, ObjectStore
from ergon_framework.testing.suites.drivers import HandClock
from ergon_framework.testing.suites.framework import expect, fail
from ergon_framework.testing.suites.stores import StoreSubject

KIB, MIB = 1 << 10, 1 << 20
HOUR = 3600.0

WallClock: TypeAlias = Callable[[], float]
MakeStore: TypeAlias = Callable[[WallClock], ObjectStore]
Reopen: TypeAlias = Callable[[ObjectStore], ObjectStore]
Damage: TypeAlias = Callable[[ObjectStore, bytes, bytes], None]


class ObjectStoreSubject(StoreSubject[ObjectStore]):
    """One fresh, empty store and its clock."""

    def __init__(
        self,
        store: ObjectStore,
        clock: HandClock,
        reopen: Reopen | None,
        damage: Damage | None,
        patience: float,
    ) -> None:
        super().__init__(store, patience)
        self.clock = clock
        self._reopen = reopen
        self._damage = damage

    @property
    def capabilities(self) -> frozenset[str]:
        """What the checks may use beside the port."""
        offers = {"reopen": self._reopen, "damage": self._damage}
        return frozenset(name for name, offer in offers.items() if offer is not None)

    def reopen(self) -> None:
        """Go on with what a new process would find."""
        if self._reopen is not None:
            self.store = self._reopen(self.store)

    def damage(self, digest: bytes, data: bytes) -> None:
        """Let other bytes lie where the blob lies, behind the store's back."""
        if self._damage is not None:
            self._damage(self.store, digest, data)

    # ---- in -------------------------------------------------------------------------------------

    def put(self, data: bytes, *, piece: int = MIB, expected: bytes | None = None) -> Blob:
        """Upload bytes piece by piece, and give up properly when that fails."""
        upload = self.store.upload()
        try:
            for at in range(0, len(data), piece):
                upload.write(data[at : at + piece])
            return upload.finish(expected)
        finally:
            upload.abort()

    def cut(self, data: bytes, *, digest: bytes) -> None:
        """Begin, or go on with, a partial upload, and leave it as a broken transfer does."""
        upload = self.store.partial(digest)
        upload.write(data)

    def go_on(self, data: bytes) -> Blob:
        """Send what is missing of a partial upload, and end it."""
        upload = self.store.partial(digest_of(data))
        try:
            expect(upload.size <= len(data), f"{upload.size} bytes of {len(data)} are there")
            upload.write(data[upload.size :])
            return upload.finish()
        finally:
            upload.abort()

    # ---- out ------------------------------------------------------------------------------------

    def get(self, digest: bytes, *, most: int = MIB) -> bytes | None:
        """All bytes of a blob, read piece by piece; None when it is not there."""
        download = self.store.open(digest)
        if download is None:
            return None
        try:
            pieces = []
            while piece := download.read(most):
                expect(len(piece) <= most, f"a read of {most} bytes gave {len(piece)}")
                pieces.append(piece)
            return b"".join(pieces)
        finally:
            download.close()

    def must_have(self, data: bytes) -> None:
        """These bytes are there, whole and listed."""
        digest = digest_of(data)
        same(self.store.stat(digest), Blob(digest, len(data)), "stat")
        expect(self.get(digest) == data, f"the {len(data)} bytes that came out are not those put")
        expect(digest in set(self.store.digests()), "it is not listed")

    def must_lack(self, digest: bytes) -> None:
        """No trace of such a blob is to be seen."""
        same(self.store.stat(digest), None, "stat of what is not there")
        download = self.store.open(digest)
        if download is not None:
            download.close()
            fail("what is not there can be opened")
        expect(digest not in set(self.store.digests()), "what is not there is listed")

    # ---- errors ---------------------------------------------------------------------------------

    def must_mismatch(self, call: Callable[[], Any]) -> None:
        """The call is refused because of its digest."""
        error = self.refusal(call)
        expect(
            isinstance(error, FactInvalidError) and error.reason == "digest_mismatch",
            f"it was to be refused with the reason digest_mismatch, and there was {error!r:.200}",
        )


def noise(size: int, seed: int = 0) -> bytes:
    """Bytes that do not repeat, the same ones each time."""
    return hashlib.shake_128(b"%d" % seed).digest(size)


def digest_of(data: bytes) -> bytes:
    """Their SHA-256."""
    return hashlib.sha256(data).digest()


def same(found: object, wanted: object, what: str) -> None:
    """Fail the check unless both are equal."""
    if found != wanted:
        fail(f"{what}: expected {wanted!r:.200}, found {found!r:.200}")
