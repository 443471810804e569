"""What is said to somebody who does not speak HTTP: the one shape of errors, here too."""

from __future__ import annotations

from uvicorn.protocols.http.h11_impl import H11Protocol

from ergon_framework.web.answers import refusal


class Protocol(H11Protocol):
    """uvicorn's, but for its plain text."""

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be understood, and hang up."""
        remedy = {"remedy": "send HTTP/1.1, with a short head"}
        told = refusal(400, "bad_request", msg.rstrip(".").lower(), remedy)
        lines = [b"HTTP/1.1 400 Bad Request", b"connection: close"]
        lines += [b"%b: %b" % each for each in told.raw_headers]
        self.transport.write(b"\r\n".join([*lines, b"", bytes(told.body)]))
        self.transport.close()
