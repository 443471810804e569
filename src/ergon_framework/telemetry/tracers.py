"""Which tracer records the spans of this process: the SDK's, else the trail's, else none.

The trail never takes the global provider's place: a program that sets up an SDK later is heard.
"""

from __future__ import annotations

import os
from typing import Any, Protocol

from opentelemetry import trace
from opentelemetry.environment_variables import OTEL_PYTHON_TRACER_PROVIDER

SCOPE = "ergon"
"""The instrumentation scope of all spans and metrics."""
EDGES = frozenset({"boundary.publish", "boundary.spool", "job.enqueue"})
"""The spans that may be the first of a trace."""

_IS_NAMED = OTEL_PYTHON_TRACER_PROVIDER in os.environ  # then the API loads it at the first question


class Follower(Protocol):
    """A provider of our own that goes beside another one when there is one."""

    def get_tracer(self, instrumenting_module_name: str) -> trace.Tracer:
        """As the API's."""

    def accompany(self, provider: trace.TracerProvider) -> None:
        """Hear of another provider's spans too; being told twice is fine."""


_trail: Follower | None = None
_is_on = True
_last: tuple[object, trace.Tracer] | None = None  # to make a tracer takes longer than a span


def switch(*, is_on: bool) -> None:
    """Whether spans are wanted at all."""
    global _is_on  # noqa: PLW0603 - one process has one set of switches
    _is_on = is_on


def set_trail(trail: Follower | None) -> None:
    """Where spans go when no SDK is set up; None: nowhere."""
    global _trail  # noqa: PLW0603 - one process has one trail
    _trail = trail


def trail() -> Follower | None:
    """What :func:`set_trail` was given last."""
    return _trail


def real_provider() -> trace.TracerProvider | None:
    """The provider that a program has set up, if any."""
    found = trace.get_tracer_provider()
    return found if is_real(found) else None


def tracer() -> trace.Tracer | None:
    """The tracer of our spans; None when nobody would keep them."""
    if not _is_on:
        return None
    provider = real_provider() if may_have_sdk() else None
    if provider is not None:
        if _trail is not None:
            _trail.accompany(provider)
        found = _tracer_of(provider)
        if is_real(found):
            return found
    return None if _trail is None else _trail.get_tracer(SCOPE)


def is_traced() -> bool:
    """Whether there can be spans; every provider call asks."""
    return _trail is not None or may_have_sdk()


def may_have_sdk() -> bool:
    """Whether a provider may have been set up; the API itself takes longer to say no."""
    try:
        return trace._TRACER_PROVIDER is not None or _IS_NAMED  # noqa: SLF001
    except AttributeError:  # an API that keeps its provider elsewhere
        return True


def is_real(thing: object) -> bool:
    """Whether it does anything: the API's own classes stand in for what never came."""
    return not type(thing).__module__.startswith(("opentelemetry.trace", "opentelemetry.metrics"))


def _tracer_of(provider: Any) -> trace.Tracer:
    global _last  # noqa: PLW0603 - replaced as a whole
    last = _last
    if last is not None and last[0] is provider:
        return last[1]
    made: trace.Tracer = provider.get_tracer(SCOPE)
    _last = (provider, made)
    return made
