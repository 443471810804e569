"""Where the bytes of artifacts lie: under their digest, written once, never changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes that are on disk."""

    digest: bytes
    """32 bytes of SHA-256."""
    size: int


class Upload(Protocol):
    """Bytes on their way in. Used by one thread at a time; nothing is visible before the end."""

    size: int
    """Bytes taken so far."""

    def write(self, data: bytes | memoryview) -> None:
        """Write the next bytes."""

    def finish(self, expected: bytes | None = None) -> Blob:
        """Put them on disk and answer when they are there, the entry in its folder included.

        When ``expected`` is given and is not their digest: ``FactInvalidError`` with the reason
        ``digest_mismatch``, and nothing is kept. Bytes that are there already are fine.
        """

    def pause(self) -> None:
        """Close the upload and keep its bytes, so that :meth:`ObjectStore.partial` can resume
        it.
        """

    def abort(self) -> None:
        """Throw them away. Also after an error; doing it twice, or after the end, is fine."""


class Download(Protocol):
    """Bytes on their way out."""

    size: int
    """The size of the whole blob."""

    def read(self, most: int) -> bytes:
        """The next bytes; none at the end."""

    def seek(self, offset: int) -> None:
        """Read on from an offset."""

    def close(self) -> None:
        """Close the download."""


class ObjectStore(Protocol):
    """A folder of blobs, or something like it. Any thread may call it."""

    acknowledgement: str
    """One sentence that says what a finished upload survives."""

    def upload(self) -> Upload:
        """Begin an upload."""

    def open(self, digest: bytes) -> Download | None:
        """Begin a download; None if there is no such blob."""

    def stat(self, digest: bytes) -> Blob | None:
        """The size of a blob; None if it is not there."""

    def verify(self, digest: bytes, size: int) -> str | None:
        """Read them all and compare; what is wrong with them, or None."""

    def delete(self, digest: bytes) -> bool:
        """Remove a blob; returns whether it was there. The caller makes sure that no name refers to
        it.
        """

    def digests(self) -> Iterator[bytes]:
        """The digests of all blobs, in no order."""

    def partial(self, digest: bytes) -> Upload:
        """Begin or resume an upload whose digest is known: ``size`` is how many bytes are there.

        A transfer that was cut goes on where it stopped, also in another process.
        """

    def sweep(self, older_than: float) -> int:
        """Remove what unfinished uploads left behind that many seconds ago; how many."""

    def copy_to(self, folder: str, digests: Iterator[bytes]) -> int:
        """Copy blobs into another folder of the same layout, for a backup; how many bytes."""

    def close(self) -> None:
        """Close the store."""
