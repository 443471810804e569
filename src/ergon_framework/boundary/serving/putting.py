"""An artifact on its way from a connection to the disk."""

from __future__ import annotations

from collections.abc import Callable

from ergon_framework.boundary.model import ObjectReceipt
from ergon_framework.boundary.zone import Zone
from ergon_framework.errors import FactInvalidError
from ergon_framework.ports.objectstore import Upload


class Putting:
    """Used by one thread at a time, which stays as long as there is something to write.

    Going back to the event loop for each piece would take longer than writing it.
    """

    def __init__(
        self,
        zone: Zone,
        name: tuple[str, str],
        take: Callable[[], list[bytes]],
        announced: int | None,
        expected: bytes | None,
    ) -> None:
        self._zone = zone
        self._name = name
        self._take = take
        self._announced = announced
        self._expected = expected
        self._upload: Upload | None = None

    def go_on(self) -> ObjectReceipt | None:
        """Write what has arrived; the receipt if those were all the bytes announced."""
        upload = self._begun()
        most = self._zone.settings.limits.object_bytes
        while lot := self._take():
            for piece in lot:
                if upload.size + len(piece) > most:
                    raise too_large(most)
                upload.write(piece)
        return self.finish() if upload.size == self._announced else None

    def finish(self) -> ObjectReceipt:
        """Put everything on disk and give it its name."""
        return self._zone.finished(*self._name, self._begun(), self._expected)

    def abort(self) -> None:
        """Throw away what was written."""
        if self._upload is not None:
            self._upload.abort()

    def _begun(self) -> Upload:
        if self._upload is None:
            self._upload = self._zone.objects.upload()
        return self._upload


def too_large(most: int) -> FactInvalidError:
    """The refusal of an object that has more bytes."""
    return FactInvalidError(
        f"an object may have {most} bytes",
        reason="object_too_large",
        remedy="split it, or raise limits.object_bytes",
    )
