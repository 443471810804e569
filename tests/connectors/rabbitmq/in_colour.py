"""A connector to RabbitMQ as tests drive it, with threads or asyncio."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from ergon_framework.connector.rabbitmq import RabbitConnector
from tests.connectors.in_colour import COLOURS, InColour, driven

__all__ = ["COLOURS", "in_colour"]


def in_colour(colour: str, url: str, **options: Any) -> AbstractContextManager[InColour]:
    """A connector that is closed at the end; its fetches do not wait unless they are told to."""
    return driven(colour, RabbitConnector(url, **{"wait": 0.0, **options}))
