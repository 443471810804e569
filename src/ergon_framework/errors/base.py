"""What every error has, and those of configuration and envelopes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

LONGEST_TEXT = 16 * 1024
"""Characters of an exception's text that are told."""
_BEYOND = 1024  # read as well, so that no secret is cut in two and then not known for one
_NO_DETAILS: Mapping[str, Any] = MappingProxyType({})


class ErgonError(Exception):
    """Base of everything Ergon raises on purpose."""

    code = "error"
    failure_kind: str | None = None
    """The kind of failure it stands for, where the error itself knows (see ``core.failure``)."""
    retry_after_seconds: float | None = None
    """From when on trying again may help, where somebody said so."""
    message = ""
    remedy = ""
    # A subclass of the user's may forget super().__init__(): it reads like one without a text.
    if TYPE_CHECKING:
        details: dict[str, Any]
    else:
        details = _NO_DETAILS

    def __init__(
        self, message: str = "", *, remedy: str = "", details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.details = dict(details or {})

    def __str__(self) -> str:
        text = self.message or super().__str__()
        return f"{text} ({self.remedy})" if self.remedy else text

    def to_dict(self) -> dict[str, Any]:
        """The one shape in which errors leave the process: code, message, details."""
        details = dict(self.details)
        if self.remedy:
            details["remedy"] = self.remedy
        return {"code": self.code, "message": _redacted(self, self.message), "details": details}


class ConfigurationError(ErgonError, ValueError):
    """Something is configured wrongly; nothing was started."""

    code = "configuration"


class SettingsError(ConfigurationError):
    """A settings file or environment variable is wrong."""

    code = "settings"


class WiringError(ConfigurationError):
    """Tasks, connectors, services and policies do not fit together."""

    code = "wiring"


class HookError(WiringError, TypeError):
    """A hook is missing, cannot be called, or has the wrong colour."""

    code = "hook"


class MissingExtraError(ConfigurationError, ImportError):
    """An optional dependency is not installed."""

    code = "missing_extra"


class EnvelopeError(ErgonError, ValueError):
    """A transaction's envelope has an invalid field."""

    code = "envelope"


class FrozenError(EnvelopeError, AttributeError, TypeError):
    """A transaction cannot be changed; whichever of these an immutable object raises, it is one."""

    code = "frozen"


class PayloadError(ErgonError, ValueError):
    """A payload cannot be serialised by the connector that should carry it."""

    code = "payload"


class ConnectorError(ErgonError):
    """A connector refuses to do what it was asked; each connector has subclasses of its own."""

    code = "connector"


class ChannelLostError(ConnectorError):
    """The channel that deliveries came through is gone: nothing can be settled on it any more."""

    code = "channel_lost"
    failure_kind = "lost"


def describe(error: BaseException) -> str:
    """A short text that is never empty, even for exceptions without one or with a broken one."""
    name, text = name_of(error), text_of(error)
    return f"{name}: {text}" if text else name


def text_of(error: BaseException) -> str:
    """The exception's own text as a plain string, without what looks like a secret.

    Empty where it has none or a broken one. Of a very long one only the beginning is told.
    """
    text = whole_text_of(error)
    return _redacted(error, text) if text else ""


def whole_text_of(error: BaseException) -> str:
    """The same as it is, for whoever knows better which of it must not be told."""
    try:
        return plain(str(error))
    except BaseException:  # a broken __str__ must not hide the failure it describes
        return ""


def _redacted(error: BaseException, text: str) -> str:
    """Errors of ours show options of URLs as a remedy; of others no query string is told."""
    from ergon_framework.errors import redaction  # late: it takes its time, and few need it

    is_ours = issubclass(type(error), ErgonError)
    found = (redaction.text if is_ours else redaction.message)(text[: LONGEST_TEXT + _BEYOND])
    return found if len(found) <= LONGEST_TEXT else found[:LONGEST_TEXT] + "…"


def name_of(error: BaseException) -> str:
    """The name of the exception's class, whatever its metaclass answers."""
    name: str = _class_name(type(error))
    return name


def plain(text: str) -> str:
    """The same characters without the methods of a subclass of ``str``.

    A lone surrogate, as in the name of a file that is not UTF-8, is escaped: no store has room for
    it, nor has an answer.
    """
    same = str.__str__(text)
    if same.isascii():
        return same
    return same.encode("utf-8", "backslashreplace").decode("utf-8")


_class_name: Any = type.__dict__["__name__"].__get__
