"""Polls until it is killed: ``python poller_child.py URL STATE DIARY``."""

from __future__ import annotations

import os
import sys
import threading

from ergon_framework.connector.http import HttpPollConnector


def main(url: str, state: str, diary: str) -> None:
    """Write the id of each item before it is settled."""
    with (
        HttpPollConnector(
            url, state=state, items="data", ids="id", offset="offset", interval=0.01, wait=0.2
        ) as connector,
        open(diary, "ab", buffering=0) as file,
    ):
        while True:
            for each in connector.fetch_transactions(4):
                os.write(file.fileno(), f"{each.transaction_id}\n".encode())
                sys.stdout.write("x\n")
                sys.stdout.flush()
                threading.Event().wait(0.005)  # killed here more often than elsewhere
                connector.ack(each)


if __name__ == "__main__":
    main(*sys.argv[1:])
