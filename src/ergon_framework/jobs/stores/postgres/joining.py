"""Adding jobs in a transaction that belongs to the caller."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from ergon_framework.errors import StoreError
from ergon_framework.jobs.stores.postgres.adding import Adding
from ergon_framework.jobs.stores.postgres.ground import Transactions, topics_of
from ergon_framework.jobs.stores.postgres.rows import Row
from ergon_framework.jobs.stores.postgres.statements import statements
from ergon_framework.jobs.stores.postgres.words import Words
from ergon_framework.ports.jobstore import Added, NewJob
from ergon_framework.storage.postgres.external_transaction import Joinable, joined

_SQL = statements("joining.sql")
_SEEING = frozenset({"read committed", "read uncommitted"})
"""Each statement sees what was committed before it."""


class Joining:
    """Where the store's tables are, so that another connection can be told whether it has them."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._home: Row | None = None

    def add(
        self, connection: Joinable, jobs: Sequence[NewJob], unseen: Mapping[str, str]
    ) -> list[Added]:
        """Add jobs in the caller's transaction.

        ``unseen``: the holders of keys, for a transaction that sees others as they were when it
        began. Any other looks for itself.
        """
        *home, namespace = self._found()
        with joined(connection, self._transactions.name) as driver:
            words = self._transactions.words(driver)
            with _looking_in(words, namespace) as isolation:
                [found] = words.say(_SQL["home"]).fetchall()
                if list(found[:-1]) != home:
                    raise StoreError(
                        f"the connection is not one to {self._transactions.name}",
                        remedy="connect to that very database, or leave the connection out",
                    )
                hidden = {} if isolation in _SEEING else unseen
                adding = Adding(words, jobs, is_guest=True, unseen=hidden)
                added = adding.all()
                self._transactions.notify(words, topics_of(is_work=True, is_done=adding.is_done))
        return added

    def _found(self) -> Row:
        if self._home is None:
            [self._home] = self._transactions.look(lambda words: words.say(_SQL["home"]).fetchall())
        return self._home


@contextmanager
def _looking_in(words: Words, namespace: str) -> Iterator[str]:
    """Find our tables for a while, wherever the caller looks for its own; how isolated it is.

    After an error the caller's savepoint puts it back.
    """
    [[before, isolation]] = words.say(_SQL["habits"]).fetchall()
    words.say(_SQL["set_path"], {"path": f'"{namespace}"'})
    yield isolation
    words.say(_SQL["set_path"], {"path": before})
