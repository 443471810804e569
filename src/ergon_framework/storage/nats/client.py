"""The library's client: reads headers faster, and says nothing to a server it must not trust."""

from __future__ import annotations

from typing import Any

from nats.aio.client import Client
from nats.errors import Error


class PlainServerError(Error):
    """A server did not begin with TLS, and the URL asks for it."""


class QuickClient(Client):
    """A client of the library, changed in four places.

    It reads what our own messages and the server's answers have for headers, and nothing else.
    Should the library call this no longer, its own reading is used, which is only slower.

    It ends a connection that is not encrypted and should be, before it says who it is: the library
    leaves it to the server whether there is TLS. ``is_checked`` tells that it was asked.

    It takes TLS from a server that has it for those who want it (``allow_non_tls``).

    It knows the public half of a key by which the server knows the user.
    """

    def __init__(self, *, needs_tls: bool, public_key: str | None) -> None:
        super().__init__()
        self.needs_tls = needs_tls
        self.is_checked = False
        self._public_nkey = public_key

    def _process_info(self, info: dict[str, Any], *args: Any, **more: Any) -> Any:
        """Older versions of the library do not wait for it: what it returns is theirs to know."""
        if self.needs_tls and self._server_info.get("tls_available"):
            self._server_info["tls_required"] = True  # by which the library decides
        return super()._process_info(info, *args, **more)

    def _connect_command(self) -> bytes:
        if self.needs_tls and not self._is_encrypted():
            raise PlainServerError("the line to the server is not encrypted")
        self.is_checked = True
        return super()._connect_command()

    def _is_encrypted(self) -> bool:
        """By the line itself: what the server said of TLS does not tell what came of it."""
        writer = getattr(self._transport, "_io_writer", None)
        return writer is not None and writer.get_extra_info("ssl_object") is not None

    @staticmethod
    def _parse_header_lines(raw: bytes) -> dict[str, str]:
        found = {}
        for line in raw.decode("utf-8", "surrogateescape").split("\r\n"):
            key, mark, value = line.partition(":")
            if mark:
                found[key] = value.strip()
        return found
