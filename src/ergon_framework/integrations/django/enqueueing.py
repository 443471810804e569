"""Jobs that follow a transaction of Django.

``on_commit(ship).enqueue(5)`` stores the job after the commit: it works with every store, and a
process that dies between the commit and the enqueueing loses the job. ``in_transaction(ship)
.enqueue(5)`` stores the job within the transaction itself, on the same SQLite file or PostgreSQL
database: then there is no such moment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

from django.db import connections, transaction

from ergon_framework.app.job_handlers import JobHandler
from ergon_framework.errors import WiringError
from ergon_framework.integrations.django.project import (
    is_in_memory_of_test,
    settings_of_project,
)
from ergon_framework.jobs.client import EnqueuedJob

P = ParamSpec("P")
T = TypeVar("T")


def on_commit(
    handler: JobHandler[P, T], *, using: str | None = None, robust: bool = False
) -> AfterCommit[P]:
    """Enqueue jobs of a handler when the transaction is committed; outside of one, at once.

    ``using`` names the database. When the store refuses the job after the commit, that is raised
    where the transaction ends; with ``robust`` it is logged, and the other callbacks go on.
    """
    _check_handler("on_commit", handler)
    return AfterCommit(handler, using, robust)


def in_transaction(handler: JobHandler[P, T], *, using: str | None = None) -> InTransaction[P]:
    """Enqueue jobs of a handler as part of the transaction: both are committed, or neither.

    The job store must be the database that ``using`` names, by default the one of the settings.
    """
    _check_handler("in_transaction", handler)
    return InTransaction(handler, using or settings_of_project().database)


def _check_handler(name: str, handler: object) -> None:
    if not isinstance(handler, JobHandler):
        called = getattr(handler, "__name__", type(handler).__name__)
        raise WiringError(
            f"{name} takes a handler of jobs, which {called} is not",
            remedy=f"write @app.job above def {called}, then {name}({called}).enqueue(…)",
        )


class AfterCommit(Generic[P]):
    """Enqueues when the transaction is committed."""

    def __init__(self, handler: JobHandler[P, Any], using: str | None, robust: bool) -> None:
        self._handler = handler
        self._using = using
        self._robust = robust

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Check the arguments now, and store the job after the commit; never after a rollback."""
        # Checked now: after the commit it is too late to roll back because of a wrong argument.
        call = self._handler.call(*args, **kwargs)

        def store() -> None:
            self._handler.enqueue_many([call])

        _after_commit(store, self._using, robust=self._robust)


class InTransaction(Generic[P]):
    """Enqueues as part of the transaction."""

    def __init__(self, handler: JobHandler[P, Any], using: str) -> None:
        self._handler = handler
        self._using = using

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> EnqueuedJob:
        """Store the job, which exists once the transaction is committed. Returns its id.

        In a transaction that an error has broken, it raises Django's ``TransactionManagementError``
        as queries do: Django will roll back, and the job would be gone although its id was handed
        out.
        """
        client = self._handler.app.client
        spec = self._handler.spec(*args, **kwargs)
        connection = connections[self._using]
        if not hasattr(client.store, "add_in") and is_in_memory_of_test(connection.settings_dict):
            raise WiringError(
                "no job can be part of a transaction of this test, whose database is in memory",
                remedy="put the App into a sandbox: self.enterContext(Sandbox()).use(app); or"
                ' give the database of tests a file: "TEST": {"NAME": BASE_DIR / "test.db"}',
            )
        # These statements go past Django's cursors, which would have checked this.
        connection.validate_no_broken_transaction()
        (job,) = client.enqueue_many([spec], connection=connection)
        # Workers would find it without this, up to a second later.
        _after_commit(client.announce, self._using, robust=True)
        return job


def _after_commit(do: Callable[[], object], using: str | None, *, robust: bool) -> None:
    transaction.on_commit(do, using=using, robust=robust)
