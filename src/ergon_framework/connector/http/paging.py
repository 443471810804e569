"""Decides which request asks for which page. Nothing here does I/O.

A position is text that asks for one page: a link, or the value of a query parameter. None asks for
the first page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from ergon_framework.connector.http.page import (
    Path,
    found_at,
    instant_of,
    is_mark,
    links_of,
    path_of,
)
from ergon_framework.errors import ConfigurationError

MAX_POSITION = 8192
"""Characters of a link or a cursor."""


class Way(StrEnum):
    """How an API names its next page."""

    NONE = "none"
    HEADER = "link_header"
    BODY = "next_link"
    CURSOR = "cursor"
    PAGE = "page"
    OFFSET = "offset"


@dataclass(frozen=True, slots=True)
class Paging:
    """The requests of one API."""

    url: str
    """Absolute, with the part of the query that all pages have."""
    way: Way = Way.NONE
    parameter: str = ""
    """The query parameter with the position, if it is there."""
    path: Path = ()
    """The path of the next link or cursor in an answer."""
    page_size: int = 0
    first_page: int = 1
    since: str | None = None
    """The query parameter that asks for later items."""
    late: float = 0.0
    """Seconds by which an item may come later than its instant says."""
    start: Any = None
    """The value of that parameter before any item was seen."""

    def request(self, position: str | None, since: Any) -> str:
        """The URL of a page."""
        if position is not None and self.way in (Way.HEADER, Way.BODY):
            return position  # such links have the rest of the query in them
        more: dict[str, str] = {}
        if self.since is not None and since is not None:
            more[self.since] = self._asked_from(since)
        elif self.since is not None and self.start is not None:
            more[self.since] = str(self.start)
        if position is not None:
            more[self.parameter] = position
        elif self.way is Way.PAGE:
            more[self.parameter] = str(self.first_page)
        return with_query(self.url, more)

    def next(
        self, position: str | None, document: Any, headers: Mapping[str, str], count: int
    ) -> str | None:
        """The position of the page after one with so many items. None after the last page.

        A link is not absolute yet. A page that names itself as the next one is the last.
        """
        found: Any = None
        if self.way is Way.HEADER:
            found = links_of(headers.get("link", "")).get("next")
        elif self.way in (Way.BODY, Way.CURSOR):
            found = found_at(document, self.path)
        elif self.way is Way.PAGE and count >= self.page_size:
            found = self.first_page + 1 if position is None else int(position) + 1
        elif self.way is Way.OFFSET and count:
            found = count + (0 if position is None else int(position))
        if isinstance(found, int) and not isinstance(found, bool):
            found = str(found)
        if not isinstance(found, str) or not found or found == position:
            return None
        return found

    @property
    def has_links(self) -> bool:
        """Whether a position is a link."""
        return self.way in (Way.HEADER, Way.BODY)

    def _asked_from(self, value: Any) -> str:
        instant = instant_of(value)
        if instant is None or not self.late:
            return str(value)
        try:
            reduced = instant - timedelta(seconds=self.late)
        except OverflowError:
            return str(value)
        start = instant_of(self.start)
        if start is not None and reduced < start <= instant:
            return str(self.start)
        earlier = reduced.isoformat()
        return earlier.replace("+00:00", "Z") if str(value).endswith("Z") else earlier


def with_query(url: str, more: Mapping[str, str]) -> str:
    """A URL with these parameters, in place of those of the same names."""
    if not more:
        return url
    parts = urlsplit(url)
    kept = [pair for pair in parts.query.split("&") if pair and not _names(pair, more)]
    return urlunsplit(parts._replace(query="&".join([*kept, urlencode(more)])))


def paging_of(url: str, given: Mapping[str, Any]) -> Paging:
    """The paging rules in the options of a connector. Contradictions are refused."""
    ways = [way for way in Way if way is not Way.NONE and given[way.value]]
    if len(ways) > 1:
        raise ConfigurationError(
            f"{ways[0]} and {ways[1]} are two ways to the next page, and an API has one",
            remedy="keep the one that the manual of the API names",
        )
    way = ways[0] if ways else Way.NONE
    needs = {
        Way.CURSOR: ("next_cursor", "the path of the next cursor in the answer"),
        Way.PAGE: ("page_size", "how many items a full page has"),
    }
    for other, (name, meaning) in needs.items():
        if way is other and not given[name]:
            raise ConfigurationError(f"{other}= needs {name}=: {meaning}", remedy=f"add {name}=")
        if way is not other and given[name]:
            raise ConfigurationError(
                f"{name}= belongs to {other}=", remedy=f"add {other}=, or leave {name}= out"
            )
    if bool(given["since"]) != bool(given["since_field"]):
        raise ConfigurationError(
            "since= and since_field= belong together: a parameter of the query, and the field of an"
            " item whose highest value is sent in it",
            remedy="give both or neither",
        )
    if given["since_start"] is not None and not given["since"]:
        raise ConfigurationError("since_start= belongs to since=", remedy="add since=")
    if not is_mark(given["since_start"]) and given["since_start"] is not None:
        raise ConfigurationError("since_start= is a text or a number", remedy="correct it")
    where = given["next_link"] if way is Way.BODY else given["next_cursor"]
    return Paging(
        url,
        way,
        "" if way in (Way.NONE, Way.HEADER, Way.BODY) else str(given[way.value]),
        path_of(where or ""),
        given["page_size"] or 0,
        given["first_page"],
        given["since"],
        given["late"],
        given["since_start"],
    )


def _names(pair: str, more: Mapping[str, str]) -> bool:
    found = parse_qsl(pair, keep_blank_values=True)
    return bool(found) and found[0][0] in more
