"""Moves the protocol's pipes away from descriptors 0 and 1, before any code of the user runs.

Afterwards whatever is printed, by Python, by a library in C or by a child process, goes to the
standard error stream, and whoever reads the standard input finds its end.
"""

from __future__ import annotations

import os
import stat
import sys
from contextlib import suppress
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pipes:
    """Where requests come from and outcomes go to."""

    source: int
    target: int


def take_over() -> Pipes:
    """Take the pipes; from now on nobody else has them.

    What was printed before and still is in a buffer goes to the standard error as well.
    """
    _open_if_closed(2, os.O_WRONLY)
    _open_if_closed(0, os.O_RDONLY)
    _open_if_closed(1, os.O_WRONLY)
    pipes = Pipes(os.dup(0), os.dup(1))  # duplicates are closed in programs that we start
    _replace(0, os.O_RDONLY)
    os.dup2(2, 1)
    _let_prints_through()
    os.register_at_fork(after_in_child=lambda: _close(pipes))
    return pipes


def is_pollable(descriptor: int) -> bool:
    """Whether one can wait for its input: a file on disk is always ready, and epoll refuses it."""
    return not stat.S_ISREG(os.fstat(descriptor).st_mode)


def say(text: str) -> None:
    """One line for whoever watches, past every buffer; nobody may be left to read it."""
    with suppress(OSError):
        os.write(2, f"ergon executor: {text}\n".encode("utf-8", "replace"))


def _let_prints_through() -> None:
    """Prints appear line by line, not when a buffer is full, and fail in no locale."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(line_buffering=True, errors="backslashreplace")


def _open_if_closed(descriptor: int, flags: int) -> None:
    try:
        os.fstat(descriptor)
    except OSError:
        _replace(descriptor, flags)


def _replace(descriptor: int, flags: int) -> None:
    """Let it lead nowhere."""
    nowhere = os.open(os.devnull, flags)
    if nowhere != descriptor:
        os.dup2(nowhere, descriptor)
        os.close(nowhere)
    else:
        os.set_inheritable(descriptor, True)


def _close(pipes: Pipes) -> None:
    """A forked child has copies; with them it could speak in our name, or hide our end."""
    for each in (pipes.source, pipes.target):
        with suppress(OSError):
            os.close(each)
