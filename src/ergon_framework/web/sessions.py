"""Who has signed in: sessions of browsers, begun with a token or with a link that works once.

Sessions are in the memory of one server and end with it. A session that was begun with a token ends
when that token is revoked.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from time import monotonic

from ergon_framework.web.tokens import CallerRole, CallerRoles, Tokens

COOKIE = "ergon_session"
LIFETIME = 12 * 3600.0
"""Seconds after which one has to sign in again."""
MAX_SESSIONS = 1000
"""The oldest one ends when there are more."""
MAX_FAILURES = 10
"""Wrong tokens from one address within a minute; then nothing from there is looked at."""
MAX_ADDRESSES = 10_000
MINUTE = 60.0
LOCAL_OPERATOR = "local"
"""What whoever came by the link is called."""


@dataclass(frozen=True, slots=True)
class BrowserSession:
    """Somebody who has signed in."""

    name: str
    role: CallerRole
    """What he may do."""
    form_secret: str = field(repr=False)
    """What each form of his pages carries: other pages cannot know it."""
    until: float
    token: bytes | None = field(repr=False)
    is_proxied: bool = False
    """Whether a proxy has signed him in, and signs him out."""

    @property
    def is_operator(self) -> bool:
        """Whether he may change anything, or only read."""
        return self.role.may_act


class Sessions:
    """All sessions of one server. Any thread may ask."""

    def __init__(
        self,
        tokens: Tokens | None,
        operators: Collection[str] = (),
        clock: Callable[[], float] = monotonic,
        admins: Collection[str] = (),
    ) -> None:
        """``operators`` and ``admins``: names of the tokens whose holders may change something."""
        self._tokens = tokens
        self._roles = CallerRoles(frozenset(operators), frozenset(admins))
        self._clock = clock
        self._lock = threading.Lock()
        self._sessions: OrderedDict[bytes, BrowserSession] = OrderedDict()
        self._failures: OrderedDict[str, tuple[float, int]] = OrderedDict()
        self._invitation: bytes | None = None
        self._secret = secrets.token_bytes(32)  # of the forms of those whom a proxy signs in
        self.when_used: Callable[[], None] = lambda: None
        """Called when the link was used: there may be another one then."""

    @property
    def has_tokens(self) -> bool:
        """Whether people sign in with tokens, and not with the link."""
        return self._tokens is not None

    def invite(self) -> str:
        """The secret of a link that works once; the one before works no more."""
        secret = secrets.token_urlsafe(24)
        with self._lock:
            self._invitation = _digest(secret)
        return secret

    def is_refused(self, address: str) -> bool:
        """Whether too much that was wrong came from an address in the last minute."""
        with self._lock:
            since, count = self._failures.get(address, (0.0, 0))
            return count >= MAX_FAILURES and self._clock() - since < MINUTE

    def sign_in(self, secret: str, address: str) -> str | None:
        """The value of the cookie of a new session; None when the secret is none of ours."""
        found = self._session_for(secret)
        if found is None:
            self._note_failure(address)
            return None
        cookie = secrets.token_urlsafe(32)
        with self._lock:
            self._sessions[_digest(cookie)] = found
            while len(self._sessions) > MAX_SESSIONS:
                self._sessions.popitem(last=False)
        if found.token is None:
            self.when_used()
        return cookie

    def of_proxy(self, name: str, role: CallerRole) -> BrowserSession:
        """The session of somebody whom a proxy has signed in: it is there as long as he is."""
        named = f"{role} {name}".encode()
        form_secret = hmac.new(self._secret, named, "sha256").hexdigest()
        until = self._clock() + LIFETIME
        return BrowserSession(name, role, form_secret, until, None, is_proxied=True)

    def find(self, cookie: str | None) -> BrowserSession | None:
        """The session of a cookie, unless it is over or its token was revoked."""
        if not cookie:
            return None
        key = _digest(cookie)
        with self._lock:
            found = self._sessions.get(key)
        if found is None:
            return None
        is_over = self._clock() >= found.until
        if not is_over and found.token is not None and self._tokens is not None:
            is_over = self._tokens.caller(found.token) != found.name
        if is_over:
            self.end(cookie)
            return None
        return found

    def end(self, cookie: str) -> None:
        """Sign out."""
        with self._lock:
            self._sessions.pop(_digest(cookie), None)

    def _session_for(self, secret: str) -> BrowserSession | None:
        until = self._clock() + LIFETIME
        if self._tokens is None:
            with self._lock:
                wanted = self._invitation
                if wanted is None or not hmac.compare_digest(wanted, _digest(secret)):
                    return None
                self._invitation = None
            return BrowserSession(
                LOCAL_OPERATOR, CallerRole.ADMIN, secrets.token_urlsafe(24), until, None
            )
        token = secret.encode("utf-8", "replace")
        name = self._tokens.caller(token)
        if name is None:
            return None
        role = self._roles.of(name)
        return BrowserSession(name, role, secrets.token_urlsafe(24), until, token)

    def _note_failure(self, address: str) -> None:
        now = self._clock()
        with self._lock:
            since, count = self._failures.get(address, (now, 0))
            if now - since >= MINUTE:
                since, count = now, 0
            self._failures[address] = (since, count + 1)
            while len(self._failures) > MAX_ADDRESSES:
                self._failures.popitem(last=False)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()
