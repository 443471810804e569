"""The whole application: all routes, behind authentication and limits."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.security import HTTPBearer

from ergon_framework.app.settings.sections import ServerSettings
from ergon_framework.providers.api import create_router
from ergon_framework.web.action_routes import action_routes, queue_action_routes
from ergon_framework.web.audit import AuditLog, audit_of
from ergon_framework.web.backend_pool import BackendPool
from ergon_framework.web.backends import Backends, readable_store
from ergon_framework.web.boundary_routes import boundary_routes
from ergon_framework.web.console.refusals import RefusalPages, page_of
from ergon_framework.web.console.routes import console_routes
from ergon_framework.web.dead_letter_routes import dead_letter_routes
from ergon_framework.web.fact_routes import fact_routes
from ergon_framework.web.flow_routes import flow_routes
from ergon_framework.web.job_routes import admin_routes, job_routes
from ergon_framework.web.metrics import metric_routes
from ergon_framework.web.middleware import (
    AccessLog,
    Authentication,
    AuthRules,
    RequestLimiter,
    RequestLimits,
)
from ergon_framework.web.probes import probe_routes
from ergon_framework.web.proxy_login import ProxyLogin
from ergon_framework.web.responses import NO_TOKEN, REFUSALS, add_error_handlers, failed, given_once
from ergon_framework.web.sessions import Sessions
from ergon_framework.web.tokens import CallerRoles, Tokens

logger = logging.getLogger("ergon.web")


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """What is served, to whom, and within which limits."""

    backends: Backends
    auth: AuthRules = field(default_factory=AuthRules)
    limits: RequestLimits = field(default_factory=RequestLimits)
    shows_payloads: bool = False
    logs_access: bool = False
    audit: AuditLog = field(default_factory=AuditLog)
    stopping: threading.Event = field(default_factory=threading.Event)
    """Set when the server stops: open pages are then disconnected."""


def server_plan(
    server: ServerSettings,
    backends: Backends,
    tokens: Tokens | None,
    names: Collection[str] | None = None,
    sessions: Sessions | None = None,
) -> ServerPlan:
    """The plan that the settings describe. With ``names``, requests may use only these and loopback
    names.

    With ``sessions``, people can sign in to the console and act there.
    """
    audit = audit_of(backends.settings)
    if server.session_key is not None and audit.path is None:
        logger.warning(
            "the audit log is in the memory of this process, and others that share its sessions"
            " have their own: name a file as audit under [server]"
        )
    return ServerPlan(
        backends,
        AuthRules(
            tokens,
            names,
            server.probes_open,
            sessions,
            CallerRoles(server.operators, server.admins),
            None if server.proxy is None else ProxyLogin(server.proxy),
        ),
        RequestLimits(server.requests, server.timeout),
        server.payloads,
        server.access_log,
        audit,
    )


def build_app(plan: ServerPlan) -> FastAPI:
    """Build the application. FastAPI is known to be installed."""
    app = FastAPI(
        title="Ergon",
        version="1",  # The version of the API, not of the program, which callers need not know.
        docs_url=None,  # FastAPI's own pages load scripts from other sites.
        redoc_url=None,
    )
    pool = BackendPool(
        plan.backends,
        plan.limits.seconds,
        shows_payloads=plan.shows_payloads,
        audit=plan.audit,
    )
    for part in _parts(pool, plan):
        # For the OpenAPI document only: authentication has been done before.
        is_closed = plan.auth.tokens is not None and not part.is_open
        bearer = [Depends(HTTPBearer(auto_error=False))] if is_closed else []
        app.include_router(
            part.router,
            dependencies=[*bearer, *part.dependencies],
            responses={**(NO_TOKEN if is_closed else {}), **part.responses},
        )
    add_error_handlers(app)
    app.add_exception_handler(Exception, _failed)  # Outside of what is added below.
    # The last one is the outermost. Authentication is outside of the limiter, so that refused
    # callers take no place of others.
    app.add_middleware(RequestLimiter, limits=plan.limits)
    app.add_middleware(Authentication, rules=plan.auth)
    app.add_middleware(RefusalPages)
    if plan.logs_access:
        app.add_middleware(AccessLog)
    return app


async def _failed(request: Request, error: Exception) -> Response:
    return page_of(request.scope, await failed(request, error))


class _Part(NamedTuple):
    """Routes that are included together, because FastAPI builds each route anew for
    each inclusion.
    """

    router: APIRouter
    is_open: bool = False
    """Whether callers without a token are answered, too."""
    dependencies: Sequence[Any] = ()
    responses: Mapping[int | str, dict[str, Any]] = MappingProxyType({})


def _parts(pool: BackendPool, plan: ServerPlan) -> Iterator[_Part]:
    """All routes."""
    stores = list(pool.backends.providers.values())
    if stores:
        # Whoever is let in may read every tenant.
        is_checked = plan.auth.tokens is not None or plan.auth.proxy is not None
        authorize = (lambda _, __: True) if is_checked else None
        yield _Part(create_router(readable_store(stores), authorize))
    for prefix in ("", "/health"):
        yield _Part(probe_routes(pool, prefix), plan.auth.probes_open)
    for build in (
        metric_routes,
        action_routes,
        queue_action_routes,
        job_routes,
        admin_routes,
        flow_routes,
        dead_letter_routes,
        boundary_routes,
        fact_routes,
    ):
        yield _Part(build(pool), dependencies=[Depends(given_once)], responses=REFUSALS)
    yield _Part(console_routes(pool, plan.auth.sessions, plan.stopping))
