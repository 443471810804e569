"""Renders a document as a page, JSON or CSV, as the request asks, with headers for safety.

Jinja2 is imported when the console is built, because it belongs to an extra.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from ergon_framework.errors import ErgonError
from ergon_framework.web.addresses import address_of, named
from ergon_framework.web.console import formatting
from ergon_framework.web.console.formatting import Figure
from ergon_framework.web.middleware import CONSOLE, route_path
from ergon_framework.web.responses import (
    NO_STORE,
    InvalidParameterError,
    answer_of,
    json_response,
)
from ergon_framework.web.sessions import BrowserSession

if TYPE_CHECKING:
    from jinja2 import Environment

ROOT = CONSOLE
FORMATS = ("html", "json", "csv")
_MEDIA = {"text/html": "html", "application/json": "json", "text/csv": "csv"}
_STATIC = {
    "console.css": "text/css",
    "console.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Content-Security-Policy: nothing from elsewhere, nothing inline, and no frame around
these pages.
"""
SAFETY = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
_FOREVER = {"Cache-Control": "public, max-age=31536000, immutable"}


def format_of(request: Request) -> str:
    """The requested format, by ``?format=`` or else by the header Accept. A page by default."""
    return named_format(request) or "html"


def named_format(request: Request) -> str | None:
    """The requested format; None if the request names none."""
    named = request.query_params.get("format")
    if named in FORMATS:
        return named
    for each in request.headers.get("accept", "").split(","):
        media = each.partition(";")[0].strip().lower()
        if media in _MEDIA:
            return _MEDIA[media]
    return None


@dataclass(frozen=True)
class View:
    """What a page shows, in any format."""

    template: str
    title: str
    document: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]] | None = None
    """The rows of the page's list, for CSV."""
    columns: Sequence[str] = ()
    """The columns of the CSV. A dot leads to a value within a value."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Values for the template only."""
    is_live: bool = False
    """Whether an open page is updated."""
    status: int = 200
    """The status of the response."""


@dataclass(frozen=True)
class Frame:
    """What every page has around its content."""

    counts: Mapping[str, Figure]
    """The counts beside the links."""
    can_act: bool
    """Whether anybody can sign in."""
    session: BrowserSession | None
    did: str | None
    """The result of the form that was sent before this page."""


class Answers:
    """Renders documents and errors. One for each server."""

    def __init__(self, store: str = "") -> None:
        """``store``: the URL of the job store, which code examples contain without its password."""
        self.environment = _environment()
        opened, remark = formatting.client_code(store or "sqlite:///work.db")
        self.environment.globals |= {"opened": opened, "remark": remark}
        self.static = {name: _static(name) for name in _STATIC}
        self._versions = {
            name: hashlib.sha256(content).hexdigest()[:12] for name, content in self.static.items()
        }

    def show(self, request: Request, view: View, frame: Frame, status: int = 200) -> Response:
        """Render a view in the requested format."""
        wanted = format_of(request)
        if wanted == "csv" and view.rows is not None:
            return _csv(view)
        _check_named(request, view)
        if wanted == "json":
            return _safe(json_response(view.document))
        return self._page(request, view, frame, status)

    def error(self, request: Request, error: ErgonError, frame: Frame) -> Response:
        """Render what went wrong and what to do about it: as a page for people."""
        answer = answer_of(error)
        if format_of(request) != "html":
            return _safe(answer)
        told = json.loads(bytes(answer.body))
        document = {**told, "status": answer.status_code, "path": request.url.path}
        extra = {"is_form": request.method == "POST"}  # It has no other format.
        view = View("error.html", formatting.sentence(str(told["message"])), document, extra=extra)
        page = self._page(request, view, frame, answer.status_code)
        for name in ("retry-after", "www-authenticate"):
            if name in answer.headers:
                page.headers[name] = answer.headers[name]
        return page

    def file(self, name: str) -> Response:
        """Serve the stylesheet or the script. Its address changes with its content."""
        return _safe(Response(self.static[name], 200, _FOREVER, _STATIC[name]))

    def _page(self, request: Request, view: View, frame: Frame, status: int) -> Response:
        base = request.scope.get("root_path", "") + ROOT
        text = self.environment.get_template(view.template).render(
            doc=view.document,
            title=view.title,
            counts=frame.counts,
            frame=frame,
            base=base,
            here=path_of(request),
            asset=partial(self._asset, base),
            with_format=partial(_with_format, request),
            with_query=partial(address_with, request),
            is_live=view.is_live,
            has_rows=view.rows is not None,
            **view.extra,
        )
        return _safe(Response(text, status, NO_STORE, "text/html"))

    def _asset(self, base: str, name: str) -> str:
        return f"{base}/static/{name}?v={self._versions[name]}"


def _check_named(request: Request, view: View) -> None:
    """Refuse a format that the address asks for and the view does not have: a program would take a
    page for it.
    """
    named = request.query_params.get("format")
    known = FORMATS if view.rows is not None else FORMATS[:2]
    if named is not None and named not in known:
        remedy = f"ask for {' or '.join(known)}"
        raise InvalidParameterError("format", "is none that this page has", remedy)


def _with_format(request: Request, name: str) -> str:
    """The address of the same view in another format."""
    return address_with(request, format=name)


def unit_of(request: Request, parameter: str) -> str:
    """The id that the address of a page contains."""
    return named(request.path_params[parameter], request.query_params.get("id"))


def path_of(request: Request) -> str:
    """The path of the request as a link writes it, because an id may have a percent sign in it."""
    path = request.scope.get("root_path", "") + route_path(request.scope)
    return quote(path, safe="/:@!$&'()*+,;=")


def address_with(request: Request, **query: str) -> str:
    """The address of the request with other parameters."""
    return f"{path_of(request)}?{request.url.include_query_params(**query).query}"


def _safe(response: Response) -> Response:
    response.headers.update(SAFETY)
    return response


def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("ergon_framework.web.console"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    for each in (
        formatting.number,
        formatting.span,
        formatting.clock,
        formatting.size,
        formatting.shortened,
        formatting.status_chip,
    ):
        environment.filters[each.__name__] = each
    environment.filters["address_of"] = address_of
    return environment


def _static(name: str) -> bytes:
    return files("ergon_framework.web.console").joinpath("static", name).read_bytes()


def _csv(view: View) -> Response:
    written = io.StringIO()
    writer = csv.writer(written)
    writer.writerow(view.columns)
    for row in view.rows or ():
        writer.writerow([_cell(row, column) for column in view.columns])
    name = view.template.removesuffix(".html")
    headers = {**NO_STORE, "Content-Disposition": f'attachment; filename="{name}.csv"'}
    return _safe(Response(written.getvalue(), 200, headers, "text/csv"))


def _cell(row: Mapping[str, Any], column: str) -> str:
    value: Any = row
    for name in column.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    if value is None:
        return ""
    if isinstance(value, bool | int | float):
        return str(value)  # A negative number is no formula.
    is_list = isinstance(value, Iterable) and not isinstance(value, str)
    text = " ".join(map(str, value)) if is_list else str(value)
    # A spreadsheet would run such a text as a formula, and anybody may name a job, a tag or a
    # queue.
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) else text
