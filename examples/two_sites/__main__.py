"""A plant and an enterprise, a line between them that breaks, and sums that must add up.

    python examples/two_sites

Two real nodes with certificates of their own. The plant's MES tells work orders, every third with a
document; the enterprise's ERP books them. Meanwhile the line is cut, the plant's node is killed,
the ERP dies between its effect and its confirmation, everything is told twice, and everything is
delivered twice. Then the sums are compared; the exit code is 1 when they do not add up.

Read it from top to bottom, then ``sites.py`` (nodes, certificates, policies), ``mes.py`` (who
tells) and ``erp.py`` (who books).
"""

from __future__ import annotations

import logging
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from erp import Erp
from mes import Mes, Order, orders
from rich.console import Console
from sites import Site, certificates, free_port, until
from sums import Sum, problems, table

from ergon_framework.testing.link import CuttableLink

ORDERS = 60
console = Console(highlight=False, markup=False, soft_wrap=True)


def main() -> int:
    """Play it, then compare."""
    logging.basicConfig(format="    %(name)s: %(message)s", stream=sys.stdout)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        sums = play(Path(folder), stack)
    console.print()
    console.print(table(sums))
    wrong = problems(sums)
    for each in wrong:
        console.print(f"does NOT add up: {each}")
    if not wrong:
        console.print(f"The sums add up: {ORDERS} facts, each booked once, in order.")
    return 1 if wrong else 0


@dataclass
class Stage:
    """Who plays, and the line between the two nodes."""

    plant: Site
    line: CuttableLink
    enterprise: Site
    mes: Mes
    erp: Erp


def play(folder: Path, stack: ExitStack) -> list[Sum]:
    """The whole story; ``stack`` ends whatever was started."""
    first, second, third = orders(0, 20), orders(20, 40), orders(40, ORDERS)
    stage = built(folder, stack)
    orders_are_booked(stage, first)
    at_cut = the_line_is_cut(stage, second)
    waiting = the_node_is_killed(stage, third)
    the_line_heals(stage)
    again = all_is_told_again(stage, [*first, *second, *third])
    all_is_read_again(stage)
    return compared(stage, at_cut, waiting, again)


def built(folder: Path, stack: ExitStack) -> Stage:
    """Two nodes, of which one pulls from the other, and who uses them."""
    step("certificates for two nodes, one producer and one consumer")
    certificates(folder)

    step("the plant's node, the line, and the enterprise's node, which pulls through the line")
    plant = Site("plant", folder, free_port())
    stack.callback(plant.stop)
    plant.start()
    line = stack.enter_context(CuttableLink(plant.port))
    enterprise = Site(
        "enterprise", folder, free_port(), peers={"plant": f"https://127.0.0.1:{line.port}"}
    )
    stack.callback(enterprise.stop)
    enterprise.start()
    mes = stack.enter_context(Mes(plant, folder))
    erp = stack.enter_context(Erp(enterprise, folder))
    return Stage(plant, line, enterprise, mes, erp)


def orders_are_booked(stage: Stage, told: list[Order]) -> None:
    """What happens on a good day."""
    step("the MES tells 20 orders; the ERP books them as they come")
    stage.mes.tell(told)
    until("20 orders are booked", lambda: stage.erp.booked() == len(told))


def the_line_is_cut(stage: Stage, told: list[Order]) -> int:
    """How much is booked while nothing arrives."""
    step("the line is cut; the MES tells 20 more, and its node takes them at once")
    stage.line.cut()
    stage.mes.tell(told)
    until("the plant has them", lambda: stage.mes.outbox.pending() == 0)
    until("the enterprise notices", lambda: stage.enterprise.link_mode("plant") == "autonomous")
    return stage.erp.booked()


def the_node_is_killed(stage: Stage, told: list[Order]) -> int:
    """How much waits in the outbox meanwhile."""
    step("the plant's node is killed; the MES tells 20 more, into its outbox")
    stage.plant.kill()
    stage.mes.tell(told)
    waiting = stage.mes.outbox.pending()
    stage.plant.start()
    until("the outbox is empty again", lambda: stage.mes.outbox.pending() == 0)
    return waiting


def the_line_heals(stage: Stage) -> None:
    """All arrives, and somebody dies over it."""
    step("the line heals; the ERP will die once, after it booked an order")
    stage.erp.dies_after(ORDERS // 2)
    stage.line.heal()
    until("all orders are booked", lambda: stage.erp.booked() == ORDERS)


def all_is_told_again(stage: Stage, told: list[Order]) -> list[bool]:
    """Whether the node knew each of them."""
    step("the MES tells everything again, as after a crash")
    return stage.mes.tell_again(told)


def all_is_read_again(stage: Stage) -> None:
    """The ERP knows all of it."""
    step("an operator lets the ERP read everything again")
    stage.erp.stop()
    stage.enterprise.seek(stage.erp.NAME, 0, "the books are checked")
    stage.erp.start()
    until("everything is confirmed", lambda: stage.enterprise.lag(stage.erp.NAME) == 0)
    stage.erp.stop()


def compared(stage: Stage, at_cut: int, waiting: int, again: list[bool]) -> list[Sum]:
    """What should be, beside what is."""
    plant, enterprise, mes, erp = stage.plant, stage.enterprise, stage.mes, stage.erp
    all_orders = orders(0, ORDERS)
    here, there = plant.status(), enterprise.status()
    booked = erp.books()
    documents = [each for each in all_orders if each.has_document]
    return [
        Sum("facts in the plant's log", ORDERS, plant.head("outbound")),
        Sum("facts in the enterprise's log", ORDERS, enterprise.head("inbound:plant")),
        Sum("refused, or left in the outbox", 0, mes.left_over()),
        Sum("kept in the outbox while the node was dead", 20, waiting),
        Sum("booked while the line was cut", 0, at_cut - 20),
        Sum("told again, and known to the node", ORDERS, sum(again)),
        Sum("orders booked", ORDERS, len(booked)),
        Sum("pieces booked", sum(each.pieces for each in all_orders), erp.pieces()),
        Sum("in the order they were told", "yes", erp.order(all_orders)),
        Sum("documents that arrived whole", len(documents), erp.documents()),
        Sum("deliveries = booked + known before", erp.deliveries, len(booked) + erp.known),
        Sum("deaths of the ERP", 1, erp.deaths),
        Sum("set aside", 0, here["quarantined"] + there["quarantined"]),
        Sum("lost", 0, here["lost_facts"] + there["lost_facts"]),
    ]


def step(text: str) -> None:
    """One line of the story."""
    console.print(f"- {text}")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
