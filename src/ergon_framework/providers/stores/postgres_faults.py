"""What PostgreSQL says went wrong, told as errors of our own."""

from __future__ import annotations

from ergon_framework.errors import ErgonError, StoreError
from ergon_framework.providers.stores.ground import TaskMissingError
from ergon_framework.storage.postgres import errors
from ergon_framework.storage.postgres.errors import turns_for

__all__ = ["refused", "translate", "turns_for"]

_NO_SUCH_TASK = "23503"


def refused(error: BaseException, name: str) -> ErgonError | None:
    """The error of a server that lets nobody in like this; what is no error of connecting is none.

    Those have no code.
    """
    return None if getattr(error, "sqlstate", None) else errors.refused(error, name)


def translate(error: BaseException, name: str) -> StoreError:
    """The store's error for it."""
    if getattr(error, "sqlstate", None) == _NO_SUCH_TASK:
        return TaskMissingError(f"{name} refers to a row that is not there")
    return errors.translate(error, name)
