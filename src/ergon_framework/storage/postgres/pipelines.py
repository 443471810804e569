"""Pipelines that end quietly."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from ergon_framework.storage.postgres.pool import Connection


@contextmanager
def pipelined(connection: Connection) -> Iterator[None]:
    """A pipeline whose first error is the one that is told.

    The driver meets it again when it leaves the pipeline, and would say so in the log.
    """
    first: psycopg.Error | None = None
    try:
        with connection.pipeline():
            try:
                yield
            except psycopg.Error as error:
                first = error
    except psycopg.Error:
        if first is None:
            raise
    if first is not None:
        raise first
