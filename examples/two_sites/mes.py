"""The plant's MES: it tells what happened, to its outbox first and from there to its node."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from sites import Site, credentials

from ergon_framework.boundary import Artifact, Outbox, Producer, message_id


@dataclass(frozen=True)
class Order:
    """A work order as the MES knows it."""

    number: int

    @property
    def name(self) -> str:
        """What people call it."""
        return f"WO-{self.number:03}"

    @property
    def pieces(self) -> int:
        """How many are to be made."""
        return 10 + self.number % 7

    @property
    def has_document(self) -> bool:
        """Whether a file goes with it."""
        return self.number % 3 == 0

    @property
    def envelope(self) -> dict[str, Any]:
        """The id is made of the event: telling it again makes the same one."""
        return {
            "message_id": message_id("released", "work_order", self.name, revision=1),
            "from_zone": "plant",
            "to_zone": "enterprise",
            "produced_at_unix_ms": 1_700_000_000_000 + self.number,
            "correlation_id": f"order:{self.name}",
        }

    @property
    def fact(self) -> dict[str, Any]:
        """What happened."""
        return {
            "subject": f"work_order:{self.name}",
            "predicate": "released",
            "object_json": {"number": self.number, "pieces": self.pieces},
        }

    @property
    def files(self) -> list[Artifact]:
        """The document, which goes to the node before the fact."""
        text = f"{self.pieces} pieces for {self.name}\n" * 500
        return [Artifact(text.encode(), file_name=f"{self.name}.txt")] if self.has_document else []


def orders(first: int, end: int) -> list[Order]:
    """A stretch of work orders."""
    return [Order(number) for number in range(first, end)]


class Mes:
    """Tells orders. What ``tell`` has returned for is on the plant's disk."""

    def __init__(self, plant: Site, folder: Path) -> None:
        files = credentials(folder, "mes")
        with ExitStack() as stack:
            self._producer = stack.enter_context(
                Producer(plant.url, from_zone="plant", to_zone="enterprise", **files)  # type: ignore[arg-type]
            )
            self.outbox = stack.enter_context(Outbox(folder / "outbox.db", self._producer))
            self.outbox.start()
            self._stack = stack.pop_all()

    def tell(self, told: Iterable[Order]) -> None:
        """Put orders into the outbox, which sends them in order for as long as it takes."""
        for order in told:
            self.outbox.add(order.envelope, order.fact, order.files)

    def tell_again(self, told: Iterable[Order]) -> list[bool]:
        """Tell orders straight to the node, documents included; whether it knew each of them."""
        return [
            self._producer.publish(order.fact, order.files, envelope=order.envelope).duplicate
            for order in told
        ]

    def left_over(self) -> int:
        """What the node refused or has not got yet."""
        figures = self.outbox.figures()
        return figures.pending + figures.refused

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()
