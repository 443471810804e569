"""A process beside others that use the same zone: it publishes what it is told, line by line.

    python zone_child.py FOLDER

Each line of standard input is a number, which becomes a fact; the offset is answered once
``publish`` has returned. ``many COUNT`` publishes so many at once, and ``serve`` makes it the node
of the zone. It ends with its input.
"""

from __future__ import annotations

import os
import sys

from ergon_framework.connector.boundary.zone import FactItem, Zone


def say(text: str) -> None:
    """One line, written at once."""
    os.write(1, f"{text}\n".encode())


def main(folder: str) -> None:
    """Answer each line."""
    with Zone("plant", folder) as plant:
        for line in sys.stdin:
            if line.strip() == "serve":
                node = plant.node()
                assert node is not None
                node.start()
                say(f"serves {node.address}")
                continue
            if line.startswith("many "):
                facts: list[FactItem] = [
                    {
                        "subject": "order:1",
                        "predicate": "counted",
                        "object": {"n": n},
                        "id": ("counted", n),
                    }
                    for n in range(1, int(line.split()[1]) + 1)
                ]
                say(str(len(plant.publish_many(facts, to="hq"))))
                continue
            n = int(line)
            receipt = plant.publish("order:1", "counted", {"n": n}, to="hq", id=("counted", n))
            say(str(receipt.offset))


if __name__ == "__main__":
    main(sys.argv[1])
