"""Who has signed in: browser sessions, begun with a token or with a link that works once.

Sessions are in the memory of one server and end with it, unless the settings have a key: then each
process with that key knows them. A session that was begun with a token ends when that token is
revoked.
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

from ergon_framework.app.settings import revealed
from ergon_framework.app.settings.sections import ServerSettings
from ergon_framework.web.session_cookies import SessionKey, SignedIn
from ergon_framework.web.tokens import CallerRole, CallerRoles, Tokens

COOKIE = "ergon_session"
LIFETIME = 12 * 3600.0
"""Seconds after which a person has to sign in again."""
MAX_SESSIONS = 1000
"""How many sessions there may be; the oldest one ends when there are more."""
MAX_FAILURES = 10
"""How many wrong tokens one address may send within a minute. Then nothing from it is checked."""
MAX_ADDRESSES = 10_000
MINUTE = 60.0
LOCAL_OPERATOR = "local"
"""The name of the person who has used the link."""


@dataclass(frozen=True, slots=True)
class BrowserSession:
    """A person who has signed in."""

    name: str
    role: CallerRole
    """What the person may do."""
    form_secret: str = field(repr=False)
    """The secret in each form of the person's pages, which other sites cannot know."""
    until: float
    token: bytes | None = field(repr=False)
    is_proxied: bool = False
    """Whether a proxy has signed the person in, and signs them out."""

    @property
    def is_operator(self) -> bool:
        """Whether the person may change anything, or only read."""
        return self.role.may_act


class Sessions:
    """All sessions of one server. Any thread may call it."""

    def __init__(
        self,
        tokens: Tokens | None,
        operators: Collection[str] = (),
        clock: Callable[[], float] = monotonic,
        admins: Collection[str] = (),
        key: SessionKey | None = None,
    ) -> None:
        """``operators`` and ``admins``: names of the tokens whose holders may change something.

        ``key``: the key of sessions that other processes know as well.
        """
        self._tokens = tokens
        self._roles = CallerRoles(frozenset(operators), frozenset(admins))
        self._clock = clock
        self._lock = threading.Lock()
        self._sessions: OrderedDict[bytes, BrowserSession] = OrderedDict()
        self._failures: OrderedDict[str, tuple[float, int]] = OrderedDict()
        self._invitation: bytes | None = None
        self._shared = key
        # For the forms of people whom a proxy signs in; other processes do not accept them.
        self._own = SessionKey(secrets.token_urlsafe(32))
        self._ended: OrderedDict[bytes, None] = OrderedDict()
        self.when_used: Callable[[], None] = lambda: None
        """Called when the link was used, so that another one can be made."""

    @property
    def has_tokens(self) -> bool:
        """Whether people sign in with tokens, and not with the link."""
        return self._tokens is not None

    def issue_login_link(self) -> str:
        """The secret of a link that works once. The link before it stops working."""
        secret = secrets.token_urlsafe(24)
        with self._lock:
            self._invitation = _digest(secret)
        return secret

    def is_refused(self, address: str) -> bool:
        """Whether an address has sent too many wrong tokens in the last minute."""
        with self._lock:
            since, count = self._failures.get(address, (0.0, 0))
            return count >= MAX_FAILURES and self._clock() - since < MINUTE

    def sign_in(self, secret: str, address: str) -> str | None:
        """Begin a session and return the value of its cookie. None when the secret is wrong."""
        found = self._session_for(secret)
        if found is None:
            self._note_failure(address)
            return None
        if self._shared is not None:
            mark = None if self._tokens is None else self._tokens.mark_of(found.name)
            cookie = self._shared.cookie(found.name, mark, LIFETIME)
        else:
            cookie = secrets.token_urlsafe(32)
            with self._lock:
                self._sessions[_digest(cookie)] = found
                while len(self._sessions) > MAX_SESSIONS:
                    self._sessions.popitem(last=False)
        if found.token is None:
            self.when_used()
        return cookie

    def of_proxy(self, name: str, role: CallerRole) -> BrowserSession:
        """The session of a person whom a proxy has signed in. It lasts while the proxy says so."""
        form_secret = (self._shared or self._own).form_secret(f"{role} {name}")
        until = self._clock() + LIFETIME
        return BrowserSession(name, role, form_secret, until, None, is_proxied=True)

    def find(self, cookie: str | None) -> BrowserSession | None:
        """The session of a cookie, unless it is over or its token was revoked."""
        if not cookie:
            return None
        key = _digest(cookie)
        with self._lock:
            found = self._sessions.get(key)
            has_ended = key in self._ended
        if self._shared is not None and not has_ended:
            told = self._shared.read(cookie, self._mark_of)
            return None if told is None else self._told_by(self._shared, told)
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
        """Sign out. A shared session ends in this process; others accept its cookie until it is
        over.
        """
        key = _digest(cookie)
        with self._lock:
            self._sessions.pop(key, None)
            if self._shared is not None:
                self._ended[key] = None
                while len(self._ended) > MAX_SESSIONS:
                    self._ended.popitem(last=False)

    def _mark_of(self, name: str) -> bytes | None:
        return None if self._tokens is None else self._tokens.mark_of(name)

    def _told_by(self, key: SessionKey, told: SignedIn) -> BrowserSession | None:
        """The session of a cookie that was signed by this or another process."""
        # Begun with the link, while there were no tokens: once there are tokens, one must be shown.
        if told.is_by_token != self.has_tokens:
            return None
        role = self._roles.of(told.name) if told.is_by_token else CallerRole.ADMIN
        return BrowserSession(told.name, role, key.form_secret(told.nonce), told.until, None)

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


def sessions_of(server: ServerSettings, tokens: Tokens | None) -> Sessions:
    """The sessions of a server with these settings."""
    key = revealed(server.session_key)
    shared = None if key is None else SessionKey(key)
    return Sessions(tokens, server.operators, admins=server.admins, key=shared)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()
