"""Saying that what was started is ready: one line, or a word to the process that supervises."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ergon_framework.cli.output import show_one

if TYPE_CHECKING:
    from ergon_framework.app.processes import Parent

_parents: list[Parent] = []


@contextmanager
def supervised_by(parent: Parent) -> Iterator[None]:
    """Readiness is told to ``parent`` meanwhile, and not printed."""
    _parents.append(parent)
    try:
        yield
    finally:
        _parents.pop()


def announce(text: str, shape: Mapping[str, Any], *, as_json: bool) -> None:
    """Print that it is ready, for people or programs; nobody has to listen."""
    if _parents:
        tell_parent(shape)
        return
    try:
        if as_json:
            show_one(shape, as_json=True)
        else:
            print(text, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def is_supervised() -> bool:
    """Whether another process is told how this one is, instead of people."""
    return bool(_parents)


def tell_parent(shape: Mapping[str, Any]) -> None:
    """Tell only who supervises, if anybody does."""
    for parent in _parents:
        parent.tell_ready(" ".join(f"{name}={value}" for name, value in shape.items()))
