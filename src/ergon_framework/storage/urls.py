"""What the URL of a store says: of which kind it is, and which file one on SQLite is.

A new kind of store is added where its part opens stores by their URLs: ``jobs/store_urls.py``,
``boundary/store_urls.py``, ``providers/store_urls.py`` and ``storage/objectstore/urls.py``. Each
lists the kinds that it knows, and asks this file to take a URL apart.

What stands behind the scheme may hold a password: no error shows it.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import unquote_to_bytes

from ergon_framework.errors import ConfigurationError

SQLITE = "sqlite:///"
"""How the URL of a store on SQLite begins; the path of its file follows."""

_CREDENTIALS = re.compile(r"[^/]*:[^/]*@")  # in any folder: the path may be absolute by now
_DRIVERS = {"postgresql": "psycopg"}
_ALIASES = {"postgres": "postgresql", "tls": "nats"}  # tls:// is what NATS itself calls it
_ENGINES = {"redis": "Redis", "rediss": "Redis", "nats": "NATS JetStream"}


_WITHHELD = re.compile(r"withheld-(\w+):")


def placeholder(name: str) -> str:
    """What stands for a secret that a worker kept back from this executor; see ``pass_secrets``."""
    return f"withheld-{name}:"


def is_withheld(value: str) -> bool:
    """Whether a value is a placeholder, and not the secret itself."""
    return _WITHHELD.fullmatch(value) is not None


def refuse_withheld(value: object) -> None:
    """Refuse a placeholder before it is used as the secret."""
    found = _WITHHELD.fullmatch(value) if isinstance(value, str) else None
    if found:
        name = found[1]
        raise ConfigurationError(
            f"the variable {name} is needed here, and workers do not hand it to their executors",
            remedy=f'write pass_secrets = ["{name}"] into the [executors.…] table of the executor',
            details={"variable": name},
        )


def refuse_undecodable(url: str, what: str) -> None:
    """Refuse a URL with bytes that are no UTF-8 text, percent-encoded or as they came.

    Some readers take another character for them, which would be another password or queue, and
    others fail with an error that shows them.
    """
    try:
        unquote_to_bytes(url).decode()
    except UnicodeError:
        raise ConfigurationError(
            f"the URL of {what} is no UTF-8 text",
            remedy="write a character beyond ASCII as the bytes that it has in UTF-8: %C3%BC is ü",
        ) from None


def refuse_unreadable(**files: str | None) -> None:
    """Refuse files that options name and that cannot be read: certificates, keys, credentials.

    The client libraries look for them when they connect. What they say then looks like a server
    that is away, which is waited for; and some connect without the file, and do not say so.
    """
    for name, file in files.items():
        if file and not is_readable_file(file):
            raise ConfigurationError(
                f"the file of {name} cannot be read: {Path(file).absolute()}",
                remedy="correct its name, or let this user read it",
            )


def is_readable_file(path: str | Path) -> bool:
    """Whether there is such a file, and not a folder, and this user may read it."""
    return Path(path).is_file() and os.access(path, os.R_OK)


def taken_apart(url: str, known: Sequence[str], forms: str, kept: str = "this") -> tuple[str, str]:
    """The kind of store, one of those ``known``, and what follows it; ``forms`` shows examples.

    ``kept`` is what the store is for: an engine that we know may serve other parts only.
    """
    given: object = url  # often of a variable that is not set
    if not isinstance(given, str):
        raise ConfigurationError(
            f"the URL of a store is text, not {type(given).__name__}",
            remedy=f"write {forms}; if it comes from a variable, see that it is set",
        )
    refuse_withheld(url)
    scheme, mark, rest = url.partition("://")
    if not mark:
        kind = url.partition(":")[0].lower()
        if kind in known or kind in _ALIASES:
            raise ConfigurationError(f"the URL of a {kind} store lacks ://", remedy=forms)
        raise ConfigurationError(
            "the URL of a store must say of which kind it is", remedy=f"for a file, {forms}"
        )
    kind, _, driver = scheme.lower().partition("+")
    kind = _ALIASES.get(kind, kind)
    if kind not in known and kind in _ENGINES:
        raise ConfigurationError(
            f"{_ENGINES[kind]} does not keep {kept}",
            remedy=f"give them a store of their own: {forms}",
        )
    if kind not in known:
        close = get_close_matches(kind, known, n=1)
        meant = f"did you mean {close[0]}://? Otherwise " if close else ""
        raise ConfigurationError(
            f"there is no store of the kind {scheme.lower()[:32]!r}", remedy=f"{meant}{forms}"
        )
    if driver and driver != _DRIVERS.get(kind):
        raise ConfigurationError(
            f"a store on {kind} takes no other driver than ours", remedy=f"leave out +{driver}"
        )
    if kind != "sqlite":  # the path of a file is not decoded
        refuse_undecodable(rest, f"a {kind} store")
    if kind == "memory" and rest:
        raise ConfigurationError(
            "a memory store has no name and no options", remedy="write memory://"
        )
    return kind, rest


_KINDS = ("sqlite", "memory", "postgresql", "redis", "rediss", "nats")
_FORMS = "write sqlite:///work.db, postgresql://host/name, redis://host:6379/0 or nats://host:4222"


def check_kind(url: str) -> None:
    """Refuse the URL of a store that no part could use; nothing is opened."""
    taken_apart(url, _KINDS, _FORMS)


def is_cut_short(rest: str) -> bool:
    """Whether a password in a URL, of which ``rest`` follows the scheme, has a bare ``?`` or ``#``.

    Some readers take what follows for options, and show it, while others take it for the password.
    """
    user, mark, _ = rest.partition("/")[0].rpartition("@")
    return bool(mark and {*user} & {"?", "#"})


def path_in(rest: str) -> str:
    """The file of a store on SQLite, by what follows the scheme of its URL."""
    path = rest.removeprefix("/")
    if path in {"", ":memory:"}:
        raise ConfigurationError(
            "an SQLite store needs a file: other processes could not see it",
            remedy="write sqlite:///work.db; memory:// keeps everything in this process only",
        )
    if path == rest:
        raise ConfigurationError(
            "an SQLite URL has no host: three slashes come before the path",
            remedy="write sqlite:///work.db, or four slashes for an absolute path",
        )
    _refuse_path(path)
    return path


_NAMED_BY_A_VARIABLE = '"${URL_OF_THE_STORE:?the URL of the store, with its password}"'
"""A shell that does not have the variable says so, and runs nothing."""
SECRET_OPTIONS = frozenset({"password", "passwd", "sslpassword", "token"})
"""Options of URLs whose values are never shown."""


def without_password(url: str) -> str:
    """The URL of a store on a server without what must not be shown; its user and options stay.

    NATS has no user without a password: what stands alone before the host is a token. Of a URL that
    can be read in two ways nothing but its kind is shown.
    """
    scheme, _, rest = url.partition("://")
    if is_torn(rest):
        return f"{scheme}://***"
    place, _, query = rest.partition("?")
    netloc, slash, path = place.partition("/")
    logged_in, _, hosts = netloc.rpartition("@")
    user = "" if _kind_of(url) == "nats" else logged_in.partition(":")[0]
    options = sorted(each for each in query.split("&") if each and not _is_secret_option(each))
    asked = f"?{'&'.join(options)}" if options else ""
    return f"{scheme}://{user}{'@' if user else ''}{hosts}{slash}{path}{asked}"


def holds_secret(url: str) -> bool:
    """Whether the URL of a store holds a password or a token, or may."""
    rest = url.partition("://")[2]
    place, _, query = rest.partition("?")
    logged_in = place.partition("/")[0].rpartition("@")[0]
    has_login = bool(logged_in) if _kind_of(url) == "nats" else ":" in logged_in
    return has_login or is_torn(rest) or any(map(_is_secret_option, query.split("&")))


def is_torn(rest: str) -> bool:
    """Whether a bare ``/``, ``?`` or ``#`` in a password may have cut it: an ``@`` comes later."""
    netloc, _, others = rest.partition("/")
    path, _, query = others.partition("?")
    may_be_half = ":" in netloc and "@" not in netloc
    return is_cut_short(rest) or "@" in path or (may_be_half and "@" in query)


def _is_secret_option(option: str) -> bool:
    return option.partition("=")[0].lower() in SECRET_OPTIONS


def _kind_of(url: str) -> str:
    kind = url.partition("://")[0].lower().partition("+")[0]
    return _ALIASES.get(kind, kind)


def pasteable(command: str, operand: str, options: str = "") -> str:
    """A command of ours that does what it says when a user pastes it, whatever the operand is.

    Ids and names are text of users: a shell would run what is in them, and an option parser would
    take one that begins with ``-`` for an option.
    """
    if operand.startswith("-"):
        return f"ergon {command}{options} -- {shlex.quote(operand)}"
    return f"ergon {command} {shlex.quote(operand)}{options}"


def given_options(config: Path | None, store: str | None) -> str:
    """The options that named the store of a command, for the next command about the same store.

    A password is not shown: see :func:`store_operand`.
    """
    said = "" if config is None else f" --config {shlex.quote(str(config))}"
    if store is not None:
        said += f" --store {store_operand(store)}"
    return said


def store_option(url: str) -> str:
    """The option that names this store in a command that can be pasted; it shows no password.

    Empty where there is none to show: a store in memory, or a URL that holds a password.
    """
    shown = shown_url(url)
    return f" --store {shlex.quote(shown)}" if shown else ""


def option_for(store: object) -> str:
    """The option that names an open store in a command.

    A store on a server keeps its URL as it may be shown; that is empty if it holds a password.
    """
    path = getattr(store, "path", None)
    if isinstance(path, Path):
        return store_option(f"{SQLITE}{path}")
    shown = getattr(store, "shown_url", "")
    return f" --store {shlex.quote(shown)}" if shown else ""


_HINTS = re.compile(r"\bergon (?:jobs (?:list|unreadable)|dlq list|queues list)(?! --)\b")


def with_options(remedy: str, options: str) -> str:
    """A remedy whose commands have the options that named the store of this command."""
    return _HINTS.sub(lambda found: f"{found[0]}{options}", remedy)


def store_operand(url: str) -> str:
    """The store as an operand of a command; it shows no password.

    PostgreSQL takes one from its own variable or file, so the rest of the URL is enough. For others
    that need one the user puts the whole URL into a variable.
    """
    shown = shown_url(url)
    if not shown and _kind_of(url) == "postgresql" and "sslpassword" not in url.lower():
        shown = without_password(url)
    return shlex.quote(shown) if shown and "***" not in shown else _NAMED_BY_A_VARIABLE


def shown_url(url: str) -> str:
    """The URL as a command may show it; empty for a store in memory, or with a password."""
    file = file_of(url)
    if file is not None:
        return f"{SQLITE}{file.absolute()}"
    if _kind_of(url) in ("", "memory") or "://" not in url or holds_secret(url):
        return ""
    return url


def file_of(url: str) -> Path | None:
    """The file of a store on SQLite; None for any other."""
    given: object = url  # what is no text is refused, in words, where the store is opened
    if not isinstance(given, str) or not url.lower().startswith(SQLITE):
        return None
    path = url[len(SQLITE) :]
    _refuse_path(path)
    return Path(path)


def _refuse_path(path: str) -> None:
    refuse_secrets(path)
    if "\0" in path:
        raise ConfigurationError(
            "the path of an SQLite store has a NUL character", remedy="leave it out"
        )


def refuse_secrets(path: str) -> None:
    """Refuse the path of an SQLite store that may hold a password: a message would show it."""
    if {*path} & {"?", "#"}:
        raise ConfigurationError(
            "an SQLite store takes no options in its URL", remedy="leave out ? and #"
        )
    if not _CREDENTIALS.search(path):
        return
    raise ConfigurationError(
        "an SQLite store has neither a user nor a password, and its URL has both",
        remedy="for a server, write its kind: postgresql://…; a file or folder whose name has a"
        " colon and an @ is taken for one that is mistyped, and needs another name",
    )


ACKNOWLEDGE, UNSYNCED = "acknowledge", "unsynced"
"""The option of a URL that lets a server through which acknowledges before it has synced."""


def accepts_unsynced(options: Mapping[str, str]) -> bool:
    """Whether the URL says that what is acknowledged need not be on disk."""
    found = options.get(ACKNOWLEDGE, "synced")
    if found not in {"synced", UNSYNCED}:
        raise ConfigurationError(
            "acknowledge in the URL of a store is synced or unsynced",
            remedy="leave it out to refuse a server that acknowledges before it has synced",
        )
    return found == UNSYNCED
