"""A span of the OpenTelemetry SDK at a tenth of its price.

:class:`LeanSpan` is a span of the SDK in every respect but one: the locked, cleaned and bounded
containers for attributes, events and links are made when somebody touches them, which user code
seldom does. Whether it may be used is decided in ``sdk_writer``.
"""

# ruff: noqa: SLF001 - a subclass of the SDK's span lives on the SDK's private names

from __future__ import annotations

import threading
import types
from collections.abc import Mapping, Sequence
from time import time_ns
from typing import Any

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Span, Tracer
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode

from ergon_framework.telemetry.audience import Audience

_OK, _ERROR, _INTERNAL = StatusCode.OK, StatusCode.ERROR, SpanKind.INTERNAL


class LeanSpan(Span):
    """A span whose containers are made on first use. Instances are of :func:`lean_spans_of`."""

    # What the SDK's constructor would set on each instance, and is the same for all of ours.
    _sampler = None
    _trace_config = None
    _record_exception = True
    _set_status_on_exception = True
    _record_end_metrics = None
    _end_time: int | None = None
    _status = Status(StatusCode.UNSET)
    _kind = _INTERNAL

    # The containers, once they are made.
    _own_attributes: Any = None
    _own_events: Any = None
    _own_links: Any = None

    _audience: Audience
    _context: SpanContext
    _early: dict[str, Any]

    @classmethod
    def begin(
        cls,
        name: str,
        context: SpanContext,
        parent: SpanContext,
        at: int,
        attributes: dict[str, Any],
        resource: Resource,
        links: Sequence[Link],
        kind: SpanKind,
    ) -> LeanSpan:
        """A started span. The SDK's constructors are not called: what they build is avoided."""
        self: LeanSpan = object.__new__(cls)
        self._name = name
        self._context = context
        self._parent = parent
        self._start_time = at
        self._early = attributes
        self._resource = resource
        self._lock = threading.Lock()
        if kind is not _INTERNAL:
            self._kind = kind
        if links:
            self._own_links = self._new_links(links)
        return self

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
            if self._end_time is not None:
                return ()
            made = self._new_events()  # type: ignore[no-untyped-call]
            return self._keep("_own_events", made)
        return self._own_events

    @property
    def _links(self) -> Any:  # type: ignore[override]
        if self._own_links is None:
            if self._end_time is not None:
                return ()
            return self._keep("_own_links", self._new_links(()))
        return self._own_links

    def _keep(self, name: str, made: Any) -> Any:
        # Readers hold no lock, so two may come at once: the first container stays.
        return self.__dict__.setdefault(name, made)

    def get_span_context(self) -> SpanContext:
        """The span's identity."""
        return self._context

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
                self._early.update(attributes)
                self._own_attributes = self._early
            else:
                self._own_attributes.update(attributes)
                self._own_attributes._immutable = True
            if error is not None and self._status.status_code is not _OK:
                self._status = Status(_ERROR, error)
        audience = self._audience
        if audience.members is not audience.group._span_processors:
            audience.look()
        for tell in audience.ending:
            tell(self)
        for tell in audience.ended:
            tell(self)


def lean_spans_of(tracer: Tracer, audience: Audience) -> type[LeanSpan]:
    """The class of a tracer's lean spans, which holds what all of them share."""
    shared = {
        "_audience": audience,
        "_limits": tracer._span_limits,
        "_span_processor": tracer.span_processor,
        "_instrumentation_scope": tracer._instrumentation_scope,
        "_instrumentation_info": tracer.instrumentation_info,
    }
    return types.new_class("LeanSpan", (LeanSpan,), exec_body=lambda body: body.update(shared))
