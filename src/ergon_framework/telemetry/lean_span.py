"""A span of the OpenTelemetry SDK at a quarter of its price.

:class:`LeanSpan` is a span of the SDK in every respect but one: the locked, cleaned and bounded
containers for attributes, events and links are made when somebody touches them, which user code
seldom does. Whether it may be used is decided in ``sdk_writer``.
"""

# ruff: noqa: SLF001 - a subclass of the SDK's span lives on the SDK's private names

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from time import time_ns
from typing import Any

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.trace import Span, SpanProcessor, Tracer
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode

_TELLS_ENDING = hasattr(SpanProcessor, "_on_ending")  # newer releases of the SDK do


class LeanSpan(Span):
    """A span whose containers are made on first use."""

    # What the SDK's constructor would set on each instance, and is the same for all of ours.
    _sampler = None
    _trace_config = None
    _record_exception = True
    _set_status_on_exception = True
    _record_end_metrics = None
    _end_time: int | None = None
    _status = Status(StatusCode.UNSET)

    # The containers, once they are made.
    _own_attributes: Any = None
    _own_events: Any = None
    _own_links: Any = None

    def __init__(
        self,
        tracer: Tracer,
        name: str,
        context: SpanContext,
        parent: SpanContext,
        at: int,
        attributes: Mapping[str, Any],
        links: Sequence[Link],
        kind: SpanKind,
    ) -> None:
        # The SDK's constructors are not called: what they build is what this class avoids.
        self._name = name
        self._context = context
        self._parent = parent
        self._start_time = at
        self._kind = kind
        self._early = attributes
        self._resource = tracer.resource
        self._limits = tracer._span_limits
        self._span_processor = tracer.span_processor
        self._instrumentation_scope = tracer._instrumentation_scope
        self._instrumentation_info = tracer.instrumentation_info
        self._lock = threading.Lock()
        if links:
            self._own_links = self._new_links(links)

    # Nobody but the SDK's constructors assigns these three, hence the read-only properties.
    @property
    def _attributes(self) -> Any:  # type: ignore[override]
        if self._own_attributes is None:
            limits = self._limits
            made = BoundedAttributes(
                limits.max_span_attributes,
                self._early,
                immutable=False,
                max_value_len=limits.max_span_attribute_length,
            )
            return self._keep("_own_attributes", made)
        return self._own_attributes

    @property
    def _events(self) -> Any:  # type: ignore[override]
        if self._own_events is None:
            made = self._new_events()  # type: ignore[no-untyped-call]
            return self._keep("_own_events", made)
        return self._own_events

    @property
    def _links(self) -> Any:  # type: ignore[override]
        if self._own_links is None:
            return self._keep("_own_links", self._new_links(()))
        return self._own_links

    def _keep(self, name: str, made: Any) -> Any:
        # Readers hold no lock, so two may come at once: the first container stays.
        return self.__dict__.setdefault(name, made)

    def end(self, end_time: int | None = None) -> None:
        """End the span as the SDK would."""
        self.finish(time_ns() if end_time is None else end_time, {})

    def finish(self, at: int, attributes: Mapping[str, Any], error: str | None = None) -> None:
        """End it with its last attributes; containers that nobody touched stay unmade."""
        with self._lock:
            if self._end_time is not None:
                return  # user code ended it
            self._end_time = at
            if self._own_attributes is None:
                self._own_attributes = {**self._early, **attributes}
            else:
                self._own_attributes.update(attributes)
                self._own_attributes._immutable = True
            if self._own_events is None:
                self._own_events = ()
            if self._own_links is None:
                self._own_links = ()
            if error is not None and self._status.status_code is not StatusCode.OK:
                self._status = Status(StatusCode.ERROR, error)
        if _TELLS_ENDING:
            self._span_processor._on_ending(self)
        self._span_processor.on_end(self)
