"""PostgreSQL for a case: private, temporary, on loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from comparison import ContestantError, RunOptions
from jobs_parts.servers import MissingServerError, Servers

from ergon_framework.errors import MissingExtraError
from ergon_framework.ports.providerstore import ProviderStore
from ergon_framework.providers import open_store


@contextmanager
def postgres(options: RunOptions) -> Iterator[Callable[[], str]]:
    """Starts when its URL is first asked for, which fails when there is no server here."""
    servers = Servers(options.folder)
    for folder in (options.folder, options.folder.parent):
        folder.chmod(0o711)  # PostgreSQL does not run as root, and has to get to its part of it

    def url() -> str:
        try:
            return servers.url("postgres")
        except MissingServerError as error:
            raise ContestantError(str(error)) from error

    try:
        yield url
    finally:
        servers.stop()


def opened(url: str) -> ProviderStore:
    """The store on it."""
    try:
        return open_store(url)
    except MissingExtraError as error:
        raise ContestantError(str(error)) from error
