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
from pathlib import Path

from erp import Erp
from mes import Mes, orders
from rich.console import Console
from sites import Site, certificates, free_port, until
from sums import Sum, problems, table

from ergon_framework.testing.link import Link

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


def play(folder: Path, stack: ExitStack) -> list[Sum]:
    """The whole story; ``stack`` ends whatever was started."""
    step("certificates for two nodes, one producer and one consumer")
    certificates(folder)

    step("the plant's node, the line, and the enterprise's node, which pulls through the line")
    plant = Site("plant", folder, free_port())
    stack.callback(plant.stop)
    plant.start()
    line = stack.enter_context(Link(plant.port))
    enterprise = Site(
        "enterprise", folder, free_port(), peers={"plant": f"https://127.0.0.1:{line.port}"}
    )
    stack.callback(enterprise.stop)
    enterprise.start()
    mes = stack.enter_context(Mes(plant, folder))
    erp = stack.enter_context(Erp(enterprise, folder))
    first, second, third = orders(0, 20), orders(20, 40), orders(40, ORDERS)

    step("the MES tells 20 orders; the ERP books them as they come")
    mes.tell(first)
    until("20 orders are booked", lambda: erp.booked() == len(first))

    step("the line is cut; the MES tells 20 more, and its node takes them at once")
    line.cut()
    mes.tell(second)
    until("the plant has them", lambda: mes.outbox.pending() == 0)
    until("the enterprise notices", lambda: enterprise.link_mode("plant") == "autonomous")
    at_cut = erp.booked()

    step("the plant's node is killed; the MES tells 20 more, into its outbox")
    plant.kill()
    mes.tell(third)
    waiting = mes.outbox.pending()
    plant.start()
    until("the outbox is empty again", lambda: mes.outbox.pending() == 0)

    step("the line heals; the ERP will die once, after it booked an order")
    erp.dies_after(ORDERS // 2)
    line.heal()
    until("all orders are booked", lambda: erp.booked() == ORDERS)

    step("the MES tells everything again, as after a crash")
    again = mes.tell_again([*first, *second, *third])

    step("an operator lets the ERP read everything again")
    erp.stop()
    enterprise.seek(erp.NAME, 0, "the books are checked")
    erp.start()
    until("everything is confirmed", lambda: enterprise.lag(erp.NAME) == 0)
    erp.stop()

    return compared(plant, enterprise, mes, erp, at_cut, waiting, again)


def compared(
    plant: Site,
    enterprise: Site,
    mes: Mes,
    erp: Erp,
    at_cut: int,
    waiting: int,
    again: list[bool],
) -> list[Sum]:
    """What should be, beside what is."""
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
