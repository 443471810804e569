"""A node that a program runs by itself: the order of its calls."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ergon_framework.boundary.node.node import Node
from ergon_framework.boundary.settings import ZoneSettings
from ergon_framework.errors import WiringError


@pytest.mark.req("BOUNDARY:node", "BOUNDARY:badinput")
def test_a_node_in_the_wrong_order(tmp_path: Path) -> None:
    """Stopping what does not run does nothing, a second start is refused, and after a stop it may
    be started again.
    """

    async def main() -> None:
        settings = ZoneSettings(data=str(tmp_path), listen="127.0.0.1:0", insecure=True)
        node = Node("plant-a", settings)
        await node.stop()
        with pytest.raises(WiringError, match="does not listen yet"):
            _ = node.address
        await node.start()
        first = node.address
        with pytest.raises(WiringError, match="has been started already") as caught:
            await node.start()
        assert (caught.value.remedy, node.address) == ("start it once, or stop it first", first)
        await node.stop()
        await node.stop()
        await node.start()
        await node.stop()
        node.close()
        node.close()

    asyncio.run(main())
