"""Makes a span current inside a private context, with as few calls as OpenTelemetry allows.

This happens for every call of a hook. Where the API keeps its context in a plain context variable,
as it does unless told otherwise, that variable is set directly; the outcome is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context, ContextVar
from typing import Any

from opentelemetry import context as api
from opentelemetry.context import Context as OtelContext
from opentelemetry.trace import INVALID_SPAN, Span, set_span_in_context


def make_current(span: Span, base: OtelContext, context: Context) -> None:
    """Make a span current inside a private context, beside the baggage of the call."""
    # Never detached: the context is thrown away after the attempt, and code that outlives it
    # (an abandoned thread) keeps seeing its own span.
    context.run(_attach, OtelContext({**base, _SPAN: span}))


def _way_to_attach() -> Callable[[OtelContext], Any]:
    """The setter of the context variable, else the public function."""
    api.get_current()  # old releases choose their implementation at the first use
    runtime = getattr(api, "_RUNTIME_CONTEXT", None)
    variable = getattr(runtime, "_current_context", None)
    is_usual = type(runtime).__name__ == "ContextVarsRuntimeContext"
    return variable.set if is_usual and isinstance(variable, ContextVar) else api.attach


(_SPAN,) = set_span_in_context(INVALID_SPAN, OtelContext())  # the key a span stands under
_attach = _way_to_attach()
