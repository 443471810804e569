"""Instants as a NATS server writes them."""

from __future__ import annotations

from datetime import datetime


def instant(text: str) -> float:
    """Unix seconds, of a text with nanoseconds that Python cannot read."""
    whole, _, rest = text.removesuffix("Z").partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{rest or 0}")
