"""Who may do what at a zone's node. Whatever the policy file does not allow is denied.

::

    [identities."plant-a"]
    operations = ["produce", "GetStatus"]   # operations and groups of them
    assert = ["plant-a"]                    # zones it may speak for
    target = ["*"]                          # zones it may speak to
    logs = ["outbound", "inbound:*"]        # what it may read
    consumers = ["plant-a-*"]
    buckets = ["batch-files"]

    [anonymous]                             # callers without a certificate, on loopback only
    operations = ["observe"]
"""

from __future__ import annotations

import os
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ergon_framework.boundary.reloading import ReloadingFile, Told
from ergon_framework.errors import ErgonError, SettingsError

OPERATIONS = (
    *("AppendFact", "FetchFacts", "ConfirmReceipt", "PutObject"),
    *("AppendFacts", "LookupFact", "GetObject", "HeadObject", "DeleteObject"),
    *("CreateConsumer", "ListConsumers", "DeleteConsumer", "SeekConsumer", "ReleaseLease"),
    *("QuarantineFact", "ListQuarantine", "ReleaseQuarantine", "DiscardQuarantine"),
    *("GetStatus", "Seal", "Open", "AcceptEpoch", "ListGaps", "GetMetrics"),
)
GROUPS: Mapping[str, tuple[str, ...]] = {
    "produce": ("AppendFact", "AppendFacts", "LookupFact", "PutObject", "HeadObject"),
    "consume": (
        *("CreateConsumer", "FetchFacts", "ConfirmReceipt", "ReleaseLease", "QuarantineFact"),
        *("GetObject", "HeadObject"),
    ),
    "pull": (
        *("CreateConsumer", "FetchFacts", "ConfirmReceipt", "ReleaseLease", "SeekConsumer"),
        *("GetObject", "HeadObject"),
    ),
    "observe": (
        *("GetStatus", "GetMetrics", "ListConsumers", "ListQuarantine", "ListGaps"),
        "LookupFact",
    ),
    "admin": OPERATIONS,
}
"""Names for operations that usually go together."""


class Names:
    """A set of names, some of which are patterns."""

    __slots__ = ("_exact", "_patterns", "is_all")

    def __init__(self, exact: Iterable[str] = (), patterns: Iterable[str] = ()) -> None:
        self._exact = frozenset(exact)
        self._patterns = tuple(patterns)
        self.is_all = "*" in self._patterns

    @classmethod
    def read(cls, names: Iterable[str]) -> Names:
        """Names as a person writes them: ``*``, ``?`` and ``[…]`` are patterns."""
        every = tuple(names)
        return cls(every, (name for name in every if not frozenset("*?[").isdisjoint(name)))

    def as_written(self) -> list[str]:
        """The names and patterns, as a person writes them."""
        return sorted({*self._exact, *self._patterns})

    def __contains__(self, name: str) -> bool:
        if self.is_all or name in self._exact:
            return True
        return any(fnmatchcase(name, pattern) for pattern in self._patterns)


NOTHING = Names()
EVERYTHING = Names(patterns=("*",))


@dataclass(frozen=True, slots=True)
class Permissions:
    """What one identity may do."""

    identity: str
    operations: frozenset[str] = frozenset()
    asserts: Names = NOTHING
    targets: Names = NOTHING
    logs: Names = NOTHING
    consumers: Names = NOTHING
    buckets: Names = NOTHING

    @property
    def is_free(self) -> bool:
        """Whether the caller may publish for every zone, to every zone, and use every bucket."""
        return self.asserts.is_all and self.targets.is_all and self.buckets.is_all

    def allows_operation(self, name: str) -> bool:
        """Whether the caller may use this operation at all."""
        return name in self.operations

    def may_assert(self, zone: str) -> bool:
        """Whether the caller may append facts that come from this zone."""
        return zone in self.asserts

    def may_target(self, zone: str) -> bool:
        """Whether the caller may append facts for this zone."""
        return zone in self.targets

    def may_read(self, log: str) -> bool:
        """Whether the caller may read the facts of this log."""
        return log in self.logs

    def may_consume(self, consumer: str) -> bool:
        """Whether the caller may use a consumer of this name."""
        return consumer in self.consumers

    def may_use_bucket(self, bucket: str) -> bool:
        """Whether the caller may put objects into this bucket, and get all of them."""
        return bucket in self.buckets


@dataclass(frozen=True, slots=True)
class Policy:
    """Permits by identity."""

    identities: Mapping[str, Permissions] = field(default_factory=dict)
    anonymous: Permissions | None = None
    """The permissions of callers without a certificate, which only an insecure node accepts."""
    others: Permissions | None = None

    def permit(self, identity: str) -> Permissions | None:
        """What this identity may do; ``None`` when it is not known here."""
        if not identity:
            return self.anonymous
        return self.identities.get(identity, self.others)

    @classmethod
    def open(cls) -> Policy:
        """Everybody may do everything: for an insecure node on a loopback address."""
        permit = _everything("")
        return cls(anonymous=permit, others=permit)

    @classmethod
    def default(cls, zone: str, peers: Iterable[str]) -> Policy:
        """The zone itself may do everything, its peers may pull from it, nobody else anything."""
        permits = {peer: _puller(peer) for peer in peers}
        return cls(permits | {zone: _everything(zone)})


def _everything(identity: str) -> Permissions:
    every = EVERYTHING
    return Permissions(identity, frozenset(OPERATIONS), every, every, every, every, every)


def _puller(peer: str) -> Permissions:
    return Permissions(
        peer,
        frozenset(GROUPS["pull"]),
        asserts=Names({peer}),  # in what this zone pulls from it
        logs=Names({"outbound"}),
        consumers=Names({f"zone:{peer}"}),  # which opens what the facts in it refer to
    )


_LISTS = ("operations", "assert", "target", "logs", "consumers", "buckets")
_TABLES = ("identities", "anonymous")


class PolicyFile:
    """The policy as its file is now; a file that is wrong leaves the last good one in force."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        on_problem: Told | None = None,
        every: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = ReloadingFile(
            (path,), lambda: read_policy(path), on_problem=on_problem, every=every, clock=clock
        )

    def current(self) -> Policy:
        """The policy in force; the file is looked at now and then."""
        return self._file.current()

    @property
    def problem(self) -> ErgonError | None:
        """Why the file as it is now is not in force, if so."""
        return self._file.problem


def read_policy(path: str | os.PathLike[str]) -> Policy:
    """The policy in a file; an error names the place of each mistake."""
    return _Reader(path).policy()


class _Reader:
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        try:
            self._text = Path(path).read_text(encoding="utf-8")
            self._tables = tomllib.loads(self._text)
        except OSError as error:
            raise SettingsError(
                f"the policy file {path} cannot be read: {error.strerror or error}",
                remedy="check the path and who may read it",
            ) from error
        except ValueError as error:  # no UTF-8, or no TOML
            raise SettingsError(
                f"the policy file {path} is not TOML: {error}", remedy="correct the file"
            ) from error

    def policy(self) -> Policy:
        self._check_keys((), self._tables, _TABLES)
        tables = self._table(("identities",), self._tables.get("identities", {}))
        permits = {name: self._permit(("identities", name), tables[name], name) for name in tables}
        if "" in permits:
            raise self._wrong(
                ("identities", ""), "has an empty name", "use [anonymous] for callers without one"
            )
        if "anonymous" not in self._tables:
            return Policy(permits)
        anonymous = self._permit(("anonymous",), self._tables["anonymous"], "")
        return Policy(permits, anonymous)

    def _permit(self, path: tuple[str, ...], value: object, identity: str) -> Permissions:
        table = self._table(path, value)
        self._check_keys(path, table, _LISTS)
        lists = {key: self._names((*path, key), table.get(key, [])) for key in _LISTS}
        operations = self._operations((*path, "operations"), lists.pop("operations"))
        asserts, targets, *rest = (Names.read(names) for names in lists.values())
        return Permissions(identity, operations, asserts, targets, *rest)

    def _operations(self, path: tuple[str, ...], names: list[str]) -> frozenset[str]:
        found: set[str] = set()
        for name in names:
            if name == "*":
                found.update(OPERATIONS)
            elif name in GROUPS:
                found.update(GROUPS[name])
            elif name in OPERATIONS:
                found.add(name)
            else:
                known = (*GROUPS, *OPERATIONS)
                raise self._wrong(path, f"names {name!r}, which is none", _hint(name, known))
        return frozenset(found)

    def _table(self, path: tuple[str, ...], value: object) -> Mapping[str, Any]:
        if isinstance(value, dict):
            return value
        raise self._wrong(path, "must be a table", f"write [{_spelled(path)}]")

    def _names(self, path: tuple[str, ...], value: object) -> list[str]:
        if isinstance(value, list) and all(isinstance(each, str) and each for each in value):
            return value
        raise self._wrong(path, "must be a list of names", f'write {path[-1]} = ["…"]')

    def _check_keys(
        self, path: tuple[str, ...], table: Mapping[str, Any], known: tuple[str, ...]
    ) -> None:
        for key in table:
            if key not in known:
                raise self._wrong((*path, key), "is an unknown key", _hint(key, known))

    def _wrong(self, path: tuple[str, ...], problem: str, remedy: str) -> SettingsError:
        line = _line_of(self._text, path)
        place = f"{self._path}, line {line}" if line else f"{self._path}"
        return SettingsError(f"{place}: {_spelled(path)} {problem}", remedy=remedy)


def _hint(word: str, known: tuple[str, ...]) -> str:
    close = get_close_matches(word, known, 1)
    return f"did you mean {close[0]!r}?" if close else "known are " + ", ".join(known)


def _spelled(path: tuple[str, ...]) -> str:
    plain = (part.replace("-", "").replace("_", "") for part in path)
    return ".".join(
        part if bare.isalnum() and bare.isascii() else f'"{part}"'
        for part, bare in zip(path, plain, strict=True)
    )


def _line_of(text: str, path: tuple[str, ...]) -> int | None:
    """The line that has this key, or else its table; a help for people, so a guess may do."""
    table: tuple[str, ...] = ()
    best: int | None = None
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped.startswith("["):
            table = _keys(stripped)
            here = table
        elif "=" in stripped:
            here = table + _keys(stripped.partition("=")[0] + "= 0")
        else:
            continue
        if here[: len(path)] == path:
            return number
        if here == path[:-1]:
            best = best or number
    return best


def _keys(line: str) -> tuple[str, ...]:
    """The names in one line of TOML, from the outside in."""
    try:
        table: object = tomllib.loads(line)
    except tomllib.TOMLDecodeError:
        return ()
    names: list[str] = []
    while isinstance(table, dict) and table:
        name, table = next(iter(table.items()))
        names.append(name)
    return tuple(names)
