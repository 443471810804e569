"""Serves a receiver until it is killed: ``python server_child.py URL SECRET``; prints its port."""

from __future__ import annotations

import socket
import sys

import uvicorn

from ergon_framework import JobsConnector
from ergon_framework.connector.webhook import WebhookReceiver


def main(url: str, secret: str) -> None:
    """Serve on a free port of the loopback interface."""
    target = JobsConnector(url, queue="webhooks", handler="on_event")
    listener = socket.create_server(("127.0.0.1", 0))
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    config = uvicorn.Config(WebhookReceiver.github(target, secret), log_level="warning")
    uvicorn.Server(config).run([listener])


if __name__ == "__main__":
    main(*sys.argv[1:])
