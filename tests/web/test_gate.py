"""Who is let in: by token, by address, and by the name under which the server was asked."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from starlette.responses import JSONResponse

from ergon_framework.web.middleware import CALLER, Authentication, AuthRules
from ergon_framework.web.tokens import FixedTokens

pytestmark = pytest.mark.req("ONE:serve")

TOKENS = FixedTokens({"alice": "first", "bob": "second"})
AWAY = ("203.0.113.9", 40_000)


async def inside(scope: Any, receive: Any, send: Any) -> None:
    """Tells who was let in."""
    await JSONResponse({"caller": scope.get(CALLER)})(scope, receive, send)


def ask(
    keeper: AuthRules,
    headers: dict[str, str] | list[tuple[str, str]] | None = None,
    path: str = "/api/v1/jobs",
    peer: tuple[str, int] = ("127.0.0.1", 1),
) -> tuple[int, str | None]:
    """The status, and who was let in or the code of the refusal."""

    async def go() -> httpx.Response:
        transport = httpx.ASGITransport(Authentication(inside, keeper), client=peer)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get(path, headers=headers)

    answer = asyncio.run(go())
    body = answer.json()
    return answer.status_code, body.get("caller") if answer.status_code == 200 else body["code"]


def bearer(token: str) -> dict[str, str]:
    """The header with a token."""
    return {"Authorization": f"Bearer {token}"}


def test_every_token_counts() -> None:
    """Whose it was is known inside, from wherever it came."""
    keeper = AuthRules(TOKENS)
    assert ask(keeper, bearer("first")) == (200, "alice")
    assert ask(keeper, bearer("second"), peer=AWAY) == (200, "bob")
    assert ask(keeper, bearer("third")) == (401, "unauthenticated")
    assert ask(keeper) == (401, "unauthenticated")
    twice = [("Authorization", "Bearer first"), ("Authorization", "Bearer first")]
    assert ask(keeper, twice) == (401, "unauthenticated")


@pytest.mark.parametrize("path", ["/live", "/ready", "/health/live", "/health/ready"])
def test_probes_may_be_open(path: str) -> None:
    """Then a caller without a token is nobody in particular; a setting closes them."""
    assert ask(AuthRules(TOKENS), path=path) == (200, None)
    assert ask(AuthRules(TOKENS), bearer("first"), path) == (200, "alice")
    assert ask(AuthRules(TOKENS, probes_open=False), path=path) == (401, "unauthenticated")
    assert ask(AuthRules(), path=path, peer=AWAY) == (200, None)


def test_without_tokens_only_this_machine_is_answered() -> None:
    """Neither another machine nor what a proxy passed on."""
    assert ask(AuthRules()) == (200, "local")
    assert ask(AuthRules(), peer=("::1", 1)) == (200, "local")
    assert ask(AuthRules(), peer=AWAY) == (403, "not_permitted")
    assert ask(AuthRules(), {"X-Forwarded-For": "127.0.0.1"}) == (403, "not_permitted")
    assert ask(AuthRules(), {"Host": "evil.example"}) == (403, "not_permitted")


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8400", "127.0.0.1:8400", "127.9.9.9", "[::1]:8400", "box.example:1"],
)
def test_names_of_this_server(host: str) -> None:
    """Those of loopback, and those that the settings list, in any case and with any port."""
    keeper = AuthRules(names=("Box.Example",))
    assert ask(keeper, {"Host": host}) == (200, "local")


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "intranet", ""]
)
@pytest.mark.parametrize("path", ["/live", "/api/v1/jobs", "/metrics"])
def test_foreign_names(host: str, path: str) -> None:
    """A page that sends a browser here under its own name reads nothing, with a token or not."""
    assert ask(AuthRules(names=()), {"Host": host}, path) == (403, "foreign_host")
    known = {"Host": host, **bearer("first")}
    assert ask(AuthRules(TOKENS, names=()), known, path) == (403, "foreign_host")


def test_names_need_not_be_checked() -> None:
    """Where the server can be reached from elsewhere, it is known under many names."""
    assert ask(AuthRules(TOKENS), {"Host": "any.example", **bearer("first")}) == (200, "alice")
