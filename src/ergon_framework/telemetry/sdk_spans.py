"""Writes spans past the slow parts of the OpenTelemetry SDK, where that is known to be safe.

The identifiers, the sampling decision and the processors are the SDK's own; only its costly
constructor is avoided, by ``LeanSpan``. That is done only when all it relies on is as expected: a
plain tracer, limits our attributes cannot exceed, a sampler that follows the parent, and a trial
that exports the same spans both ways. Otherwise ``ApiSpanWriter`` does the work. This is the only
module that uses private names of the SDK. Import it only where the absence of the SDK is provided
for.
"""

# ruff: noqa: SLF001 - spans, processors and samplers of the SDK are reached by private names

from __future__ import annotations

import threading
import types
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from time import time_ns
from typing import Any, TypeGuard

from opentelemetry.attributes import BoundedAttributes
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import (
    ReadableSpan,
    SpanProcessor,
    SynchronousMultiSpanProcessor,
    Tracer,
    TracerProvider,
)
from opentelemetry.sdk.trace import Span as SdkSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
)

from ergon_framework.telemetry.span_writer import ApiSpanWriter, SpanParent

_SDK_PROCESSORS = (SpanProcessor, SimpleSpanProcessor, BatchSpanProcessor)
_EMPTY_METHODS = {
    method: [getattr(known, method, None) for known in _SDK_PROCESSORS]
    for method in ("on_start", "_on_ending")
}

# The exporting processor asks whether a span is sampled, which all of ours are, and passes it on.
# That this is all it does is read off the names its function uses.
_PASSES_ON = {"context", "trace_flags", "sampled", "_batch_processor", "emit"}


def only_passes_on(processor: type[BatchSpanProcessor]) -> bool:
    """Whether a class of batching processors does no more than pass sampled spans on."""
    return set(processor.on_end.__code__.co_names) == _PASSES_ON


_IS_SHORTENED = only_passes_on(BatchSpanProcessor)


class SpanProcessors:
    """The listening methods of a tracer's processors.

    With ``is_shortened`` a batching processor is passed over: its spans go to its queue directly.
    """

    __slots__ = ("_is_shortened", "ended", "ending", "group", "members", "starting")

    def __init__(self, processor: SpanProcessor, *, is_shortened: bool = _IS_SHORTENED) -> None:
        self._is_shortened = is_shortened
        if type(processor) is not SynchronousMultiSpanProcessor:
            alone = SynchronousMultiSpanProcessor()  # type: ignore[no-untyped-call]
            alone.add_span_processor(processor)
            processor = alone
        self.group = processor
        self.refresh()

    def refresh(self) -> None:
        """Find the methods to call; again when processors were added to ``group``."""
        members = self.group._span_processors
        self.starting = _listening(members, "on_start")
        self.ending = _listening(members, "_on_ending")
        self.ended = tuple(_on_end(member, is_shortened=self._is_shortened) for member in members)
        self.members = members


def _listening(members: tuple[SpanProcessor, ...], method: str) -> tuple[Callable[..., Any], ...]:
    if not hasattr(SpanProcessor, method):
        return ()  # older releases of the SDK do not call processors before a span ends
    return tuple(getattr(member, method) for member in members if not _does_nothing(member, method))


def _on_end(member: SpanProcessor, *, is_shortened: bool) -> Callable[[ReadableSpan], Any]:
    if type(member) is BatchSpanProcessor and "on_end" not in vars(member) and is_shortened:
        return member._batch_processor.emit
    return member.on_end


def _does_nothing(member: SpanProcessor, method: str) -> bool:
    return method not in vars(member) and getattr(type(member), method) in _EMPTY_METHODS[method]


_OK, _ERROR = StatusCode.OK, StatusCode.ERROR
_INTERNAL = SpanKind.INTERNAL


class LeanSpan(SdkSpan):
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

    _processors: SpanProcessors
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

    # Only the SDK's constructors assign these three, and they are not called: read-only is enough.
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
        """End the span with its last attributes; containers that were never used are not made."""
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
        processors = self._processors
        if processors.members is not processors.group._span_processors:
            processors.refresh()
        for tell in processors.ending:
            tell(self)
        for tell in processors.ended:
            tell(self)


def lean_spans_of(tracer: Tracer, processors: SpanProcessors) -> type[LeanSpan]:
    """The class of a tracer's lean spans, which holds what all of them share."""
    shared = {
        "_processors": processors,
        "_limits": tracer._span_limits,
        "_span_processor": tracer.span_processor,
        "_instrumentation_scope": tracer._instrumentation_scope,
        "_instrumentation_info": tracer.instrumentation_info,
    }
    return types.new_class("LeanSpan", (LeanSpan,), exec_body=lambda body: body.update(shared))


_MAX_ATTRIBUTES = 32  # more than any of our spans has
_new = tuple.__new__


class SdkSpanWriter:
    """Writes lean spans below local parents, and leaves everything else to the API."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._api = ApiSpanWriter(tracer)
        self._drops_unsampled = tracer.sampler is not ALWAYS_ON
        self._new_id = tracer.id_generator.generate_span_id
        self._processors = SpanProcessors(tracer.span_processor)
        self._lean = lean_spans_of(tracer, self._processors)
        self._begin = self._lean.begin

    def start(
        self,
        name: str,
        below: SpanParent,
        at: int,
        attributes: dict[str, Any],
        links: Sequence[Link] = (),
        kind: SpanKind = _INTERNAL,
    ) -> Span:
        """Start a span."""
        parent = below.parent
        if type(below.span) is not self._lean and not self._is_sampled(parent):
            return self._start_otherwise(name, below, at, attributes, links, kind)
        # What SpanContext(...) makes of ids that are known to be valid.
        fields = (parent[0], self._new_id(), False, parent[3], parent[4], True)
        context = _new(SpanContext, fields)
        resource = self._tracer.resource
        span = self._begin(name, context, parent, at, attributes, resource, links, kind)
        processors = self._processors
        if processors.members is not processors.group._span_processors:
            processors.refresh()
        for tell in processors.starting:
            tell(span, parent_context=below.context)
        return span

    def finish(
        self, span: Span, at: int, attributes: Mapping[str, Any], error: str | None = None
    ) -> None:
        """End the span with its last attributes, as failed if there is an error text."""
        if type(span) is self._lean:  # isinstance() is slow for abstract classes
            span.finish(at, attributes, error)
        else:
            self._api.finish(span, at, attributes, error)

    def _is_sampled(self, parent: SpanContext) -> bool:
        """Whether a span below it is sure to be recorded."""
        is_local = parent.is_valid and not parent.is_remote
        return is_local and parent.trace_flags.sampled and _is_enabled(self._tracer)

    def _start_otherwise(
        self,
        name: str,
        below: SpanParent,
        at: int,
        attributes: dict[str, Any],
        links: Sequence[Link],
        kind: SpanKind,
    ) -> Span:
        parent = below.parent
        is_local = parent.is_valid and not parent.is_remote
        if is_local and self._drops_unsampled and not parent.trace_flags.sampled:
            return NonRecordingSpan(
                SpanContext(
                    parent.trace_id, self._new_id(), False, parent.trace_flags, parent.trace_state
                )
            )
        return self._api.start(name, below, at, attributes, links, kind)


def can_be_lean(tracer: object) -> TypeGuard[Tracer]:
    """Whether lean spans of this tracer are exported exactly like its own spans."""
    if type(tracer) is not Tracer:
        return False  # a subclass or a wrapper may do more than we know of
    limits = tracer._span_limits
    most = limits.max_span_attributes
    return (
        (most is None or most >= _MAX_ATTRIBUTES)
        and limits.max_span_attribute_length is None
        and _follows_parent(tracer.sampler)
        and _is_unwatched(tracer)
        and lean_spans_match()
    )


def _is_unwatched(tracer: Tracer) -> bool:
    """Whether the SDK does not count this tracer's spans."""
    counting = type(getattr(tracer, "_tracer_metrics", None)).__name__
    return counting in {"NoneType", "NoOpTracerMetrics"}


def _is_enabled(tracer: Tracer) -> bool:
    is_enabled = getattr(tracer, "_is_enabled", None)  # newer releases can switch a tracer off
    return is_enabled is None or bool(is_enabled())


def _follows_parent(sampler: object) -> bool:
    return sampler is ALWAYS_ON or (
        type(sampler) is ParentBased
        and sampler._local_parent_sampled is ALWAYS_ON
        and sampler._local_parent_not_sampled is ALWAYS_OFF
    )


class _Kept(SpanProcessor):
    """Keeps what it is given, for the trial."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


@cache
def lean_spans_match() -> bool:
    """Whether lean spans are exported as the SDK's own are; tried once in a process.

    Another release of the SDK may work differently.
    """
    provider = TracerProvider(ALWAYS_ON, Resource.get_empty(), shutdown_on_exit=False)
    kept = _Kept()
    provider.add_span_processor(kept)
    tracer = provider.get_tracer("ergon.trial")
    if not isinstance(tracer, Tracer):
        return False
    root = tracer.start_span("root", Context())
    below = SpanParent(root, Context())
    for writer in (ApiSpanWriter(tracer), SdkSpanWriter(tracer)):
        link = Link(root.get_span_context())
        span = writer.start("touched", below, 1, {"early": 1}, [link], SpanKind.CONSUMER)
        span.set_attribute("during", 2)
        span.add_event("event", {"n": 3}, 4)
        writer.finish(span, 5, {"late": 6}, "error")
        span = writer.start("untouched", below, 1, {"early": 1})
        writer.finish(span, 5, {"late": 6})
    exported = [_exported(span) for span in kept.spans]
    return len(exported) == 4 and exported[:2] == exported[2:]


def _exported(span: ReadableSpan) -> tuple[object, ...]:
    """All that an exporter reads, but for the span's own id."""
    context = span.get_span_context()
    return (
        (span.name, span.kind, span.parent, span.start_time, span.end_time),
        (span.status.status_code, span.status.description, dict(span.attributes or {})),
        [(event.name, event.timestamp, dict(event.attributes or {})) for event in span.events],
        [(link.context, dict(link.attributes or {})) for link in span.links],
        (span.dropped_attributes, span.dropped_events, span.dropped_links),
        (span.resource, span.instrumentation_scope),
        None if context is None else (context.trace_id, context.trace_flags, context.trace_state),
    )
