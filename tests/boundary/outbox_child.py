"""Adds facts to an outbox, or drains it, until it dies at a failpoint.

    ERGON_FAILPOINTS=boundary.outbox.sent.before=kill@2 python outbox_child.py WHAT FOLDER [RECOVER]

It says on standard output what was done: ``added ID`` once ``add`` has returned, ``drained N``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # for the node of the tests

from ergon_framework.boundary.client.outbox import Outbox
from tests.boundary.outbox_node import DurableNode, envelope, fact

FACTS = 6


def say(text: str) -> None:
    """One line, written at once."""
    os.write(1, f"{text}\n".encode())


def add(outbox: Outbox, node: DurableNode) -> None:
    """A few facts, every second one with a file."""
    for n in range(FACTS):
        files = [f"content {n}".encode()] if n % 2 else []
        outbox.add(envelope(f"e:{n}"), fact(n), files)
        say(f"added e:{n}")


def drain(outbox: Outbox, node: DurableNode) -> None:
    """Everything that is there."""
    say(f"drained {outbox.drain(until_empty=True, when_held='raise').sent}")


def hold(outbox: Outbox, node: DurableNode) -> None:
    """Drain for ever and say so once it does; the parent ends it."""
    outbox.add(envelope("e:held"), fact())
    node.faults = [lambda: say("holding")]
    outbox.drain()


def main(what: str, folder: Path, recover: str) -> None:
    """One of them."""
    node = DurableNode(folder / "node.db")
    with Outbox(folder / "outbox.db", node, recover=recover, batch_items=2) as outbox:  # type: ignore[arg-type]
        {"add": add, "drain": drain, "hold": hold}[what](outbox, node)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "append")
