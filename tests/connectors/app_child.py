"""An App with one consumer, which a test kills: ``python app_child.py URL DIARY OPTIONS``.

OPTIONS are more arguments of the connector, as JSON, for those that a URL has no room for. Its
handler writes the id of each transaction into the diary when it begins, and when it has ended.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

from ergon_framework import App
from ergon_framework.connector.kafka import KafkaConnector

URL, DIARY, OPTIONS = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
SOURCE: Any = KafkaConnector(URL, **OPTIONS) if OPTIONS else URL
app = App(f"sqlite:///{DIARY}.db")


def note(line: str) -> None:
    """One line, in one write, which a killed process has made or not."""
    with DIARY.open("a") as file:
        file.write(f"{line}\n")


@app.consumer(SOURCE, concurrency=2)
def work(payload: dict[str, int]) -> None:
    """Take a moment for each."""
    note(f"began t{payload['n']}")
    threading.Event().wait(0.03)
    note(f"ended t{payload['n']}")


if __name__ == "__main__":
    app.run()
