"""What FROM and TO of a move mean, and whether two names mean one store.

It opens nothing: ``store_urls`` of ``jobs``, ``providers`` and ``boundary`` do that, each for its
own kind of store.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

from ergon_framework.boundary.data_folder import FILE, OBJECTS
from ergon_framework.errors import ConfigurationError
from ergon_framework.storage.urls import SQLITE, file_of, is_torn, without_password

_DATABASES = ("sqlite", "postgresql", "postgres")


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """A store by its URL, or a zone by its folder."""

    given: str
    called: str = ""
    """What to call it in front of people, if not by where it is: the copy of a store is none."""

    def __post_init__(self) -> None:
        """Refuse a URL that may be read in two ways: its name would show a password."""
        if self.file is None and is_torn(self.given.partition("://")[2]):
            raise ConfigurationError(
                "the URL of a store cannot be read",
                remedy="write @, :, /, ? and # in a password as %40, %3A, %2F, %3F and %23",
            )

    @property
    def is_folder(self) -> bool:
        """Whether the location is the data folder of a zone."""
        return "://" not in self.given

    @property
    def url(self) -> str:
        """The URL of the store; a folder has its facts in a file."""
        return f"{SQLITE}{Path(self.given).absolute() / FILE}" if self.is_folder else self.given

    @property
    def is_database(self) -> bool:
        """Whether provider calls can be stored there."""
        return self.url.partition("://")[0].lower().partition("+")[0] in _DATABASES

    @property
    def file(self) -> Path | None:
        """The file of a store on SQLite."""
        found = file_of(self.url)
        return None if found is None else found.absolute()

    @property
    def objects(self) -> str | None:
        """Where the objects of a zone lie that lives in a folder."""
        return str(Path(self.given).absolute() / OBJECTS) if self.is_folder else None

    @property
    def name(self) -> str:
        """The name of the location in messages and commands, without secrets."""
        if self.called:
            return self.called
        if self.file is not None:
            return str(self.file)
        return without_password(self.given)

    def refuse_missing(self) -> None:
        """Refuse a file to read that does not exist. A store on a server reports that itself."""
        if self.file is not None and not self.file.is_file():
            raise ConfigurationError(
                f"there is no file {self.file} to move from",
                remedy="FROM is the store that is there, and TO the new one",
            )

    def refuse_memory(self) -> None:
        """What is in the memory of a process is gone with it."""
        if self.given.lower().startswith("memory:"):
            raise ConfigurationError(
                "a store in memory ends with the command, and whatever was moved there",
                remedy="name a store that stays: a file or a server",
            )

    def parts(self) -> frozenset[str]:
        """What a file says that it keeps; anything, for a server."""
        if self.file is None:
            return frozenset({"jobs", "boundary"})
        return frozenset(row[0] for row in self._ask("SELECT part FROM ergon_schema"))

    def zone(self) -> str | None:
        """Whose facts a file keeps, if anybody's."""
        rows = [] if self.file is None else self._ask("SELECT zone FROM ergon_boundary_store")
        return rows[0][0] if rows else None

    def _ask(self, question: str) -> list[tuple[str]]:
        try:
            uri = f"{Path(self.file or '').as_uri()}?mode=ro"
            with closing(sqlite3.connect(uri, uri=True)) as connection:
                return connection.execute(question).fetchall()
        except sqlite3.Error:  # no such table, or no database: whoever opens it says so
            return []


_PORTS = {"postgresql": 5432, "redis": 6379, "nats": 4222}
_KINDS = {"postgres": "postgresql", "rediss": "redis", "tls": "nats"}
_DEFAULT_PATHS = {"redis": "0", "nats": "ergon"}
_HERE = frozenset({"", "localhost", "127.0.0.1", "::1"})
_IDENTIFYING = frozenset({"host", "hostaddr", "port", "dbname", "service", "options", "prefix"})
"""Options that say where something is; the others say how to get there."""
_ACCOUNTS = frozenset({"creds", "nkey", "tls_cert"})
"""What decides about the account on a NATS server; each account has streams of its own."""
_GIVEN = {("prefix", "ergon")}


def is_same(one: str, other: str) -> bool:
    """Whether two names of places, or of what is kept there, mean the same."""
    return one == other or plain(one) == plain(other)


def is_one_store(one: StoreLocation, other: StoreLocation) -> bool:
    """Whether two places are the same one: by name, or because both lead to one file.

    Hard links, links to folders and folders that are mounted twice all lead to one file.
    """
    if is_same(one.name, other.name):
        return True
    try:
        return one.file is not None and other.file is not None and one.file.samefile(other.file)
    except OSError:  # one of them is not there, or cannot be reached: whoever opens it says so
        return False


def plain(name: str) -> str:
    """A name with what may be left out, and without what may be added: ``jobs of PLACE``."""
    what, of, place = name.rpartition(" of ")
    if "://" in place:
        return f"{what}{of}{_plain_url(place)}"
    return f"{what}{of}{Path(place).resolve()}" if place.startswith("/") else name


def _plain_url(url: str) -> str:
    parts = urlsplit(url)
    scheme = parts.scheme.lower().partition("+")[0]
    kind = _KINDS.get(scheme, scheme)
    # A URL may list several servers, and in any order means the same store.
    hosts = ",".join(sorted(_plain_host(each, kind) for each in parts.netloc.split(",")))
    path = parts.path.strip("/") or _DEFAULT_PATHS.get(kind, "")
    identifying = _IDENTIFYING | _ACCOUNTS if kind == "nats" else _IDENTIFYING
    query = {pair for pair in parse_qsl(parts.query) if pair[0] in identifying} - _GIVEN
    return f"{kind}://{hosts}/{path}?{urlencode(sorted(query))}"


def _plain_host(text: str, kind: str) -> str:
    try:
        parts = urlsplit(f"{kind}://{text}")
        host, port = parts.hostname or "", parts.port or _PORTS.get(kind)
    except ValueError:  # whoever opens it says so
        return text
    # Without a host, PostgreSQL is where PGHOST says, or behind a socket that others do not reach.
    is_here = host in _HERE and bool(host or kind != "postgresql")
    return f"{'localhost' if is_here else host}:{port}"
