"""Fits the arguments of a request to a handler's signature, with the types it declares.

A signature is read once. An error names the argument that does not fit, and never shows its value.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from inspect import Parameter
from itertools import chain, repeat
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any

import msgspec

from ergon_framework.errors import HookError, JobError, describe
from ergon_framework.executor.context import HasContext, JobContext
from ergon_framework.ports.round_trip import came_back, change_told, is_path, needs_check

if TYPE_CHECKING:
    from ergon_framework.ports.lifespan import DependencyScope

MAX_NAME = 60
MAX_PLACES = 5
_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_ANYTHING = (Parameter.empty, Any, object)
_AS_THEY_ARE = (str, bool, int, list, dict)
_SHOWN_VALUE = re.compile(r"^(Invalid (?:enum )?value).*?( - at `\$.*)?$", re.DOTALL)

Bound = tuple[list[Any], dict[str, Any]]
Converter = Callable[[Any], Any]


class InvalidArgumentsError(JobError):
    """The arguments of a request do not fit the handler's signature."""

    code = "invalid_arguments"


class Binding:
    """The signature of a handler, ready to bind arguments."""

    def __init__(
        self, name: str, function: Callable[..., Any], scope: DependencyScope | None = None
    ) -> None:
        self.name = name
        self._scope = scope
        parameters = self._parameters = _parameters(name, function)
        hints = _hints(name, function, parameters)
        self._contexts = {each for each, hint in hints.items() if _is_context(hint)}
        self._injected = {} if scope is None else scope.injected(hints)
        ours = self._ours = self._contexts | self._injected.keys()
        _refuse_uninjected(name, parameters, ours)
        self._positional = [
            (each.name, each.default) for each in parameters.values() if each.kind in _POSITIONAL
        ]
        self._by_position = [each for each, _ in self._positional if each not in ours]
        self._by_name = {
            each.name
            for each in parameters.values()
            if each.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
            and each.name not in ours
        }
        self._keyword_only = [
            each.name for each in parameters.values() if each.kind is Parameter.KEYWORD_ONLY
        ]
        self._required = [
            each.name
            for each in parameters.values()
            if each.default is Parameter.empty
            and each.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
            and each.name not in ours
        ]
        self._is_fine_alone = not self._required and not ours
        kinds = {each.kind: each.name for each in parameters.values()}
        self._has_positional_only = Parameter.POSITIONAL_ONLY in kinds
        self._is_simple = (
            set(self._required) <= set(self._by_position)
            and not ours
            and not self._has_positional_only
        )
        self._more_positional = kinds.get(Parameter.VAR_POSITIONAL)
        self._more_keywords = kinds.get(Parameter.VAR_KEYWORD)
        self._converters = {
            each: _converter(name, each, hint)
            for each, hint in hints.items()
            if each not in ours and hint not in _ANYTHING
        }

    @property
    def positional(self) -> list[str]:
        """The names of arguments that may be given without a name, in their order."""
        return self._by_position

    @property
    def signature(self) -> str:
        """How the handler is called, without what it is given by others than its caller."""
        own = [_shown(each) for each in self._parameters.values() if each.name not in self._ours]
        return f"{self.name}{inspect.Signature(own)}"

    def bind(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], job: HasContext | None = None
    ) -> Bound:
        """The arguments to call the handler with, or an InvalidArgumentsError."""
        if self._is_fine_alone and not args and not kwargs:
            return [], {}
        names = self._by_position
        given = dict(zip(names, args, strict=False))
        if self._is_simple and not kwargs and len(args) == len(names):  # as most calls are
            return [], self._converted(given)
        more = [] if len(args) <= len(names) else self._more(args)
        rest = self._take_keywords(kwargs, given) if kwargs else {}
        for name in self._required:
            if name not in given:
                raise InvalidArgumentsError(f"the argument {name!r} is missing")
        if self._converters:
            given = self._converted(given)
            more, rest = self._convert_rest(more, rest)
        for name in self._contexts:
            given[name] = None if job is None else job.context
        if self._injected and job is not None and self._scope is not None:
            for name, kind in self._injected.items():
                given[name] = self._scope.value(kind)
        if not more and not self._has_positional_only:
            return [], {**given, **rest} if rest else given
        positional = [given.get(each, default) for each, default in self._positional]
        for name in self._keyword_only:
            if name in given:
                rest[name] = given[name]
        return [*positional, *more], rest

    def refuse_changed(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        sent: tuple[Sequence[Any], Mapping[str, Any]],
    ) -> None:
        """Refuse arguments that would arrive as other values than those that were given."""
        more, others = self._more_positional or "", self._more_keywords or ""
        by_position = zip(chain(self._by_position, repeat(more)), args, sent[0], strict=False)
        by_name = (
            (name if name in self._by_name else others, value, sent[1][name])
            for name, value in kwargs.items()
        )
        for name, given, arrives in chain(by_position, by_name):
            if name not in self._converters or not needs_check(given):
                continue
            arrived = self._converters[name](arrives)
            if not came_back(given, arrived):
                raise InvalidArgumentsError(
                    change_told(name, given, arrived),
                    remedy=f"pass what the handler takes: {self.signature}",
                )

    def _converted(self, given: dict[str, Any]) -> dict[str, Any]:
        converters = self._converters
        for name, value in given.items():
            if name in converters:
                given[name] = converters[name](value)
        return given

    def _more(self, args: Sequence[Any]) -> list[Any]:
        """What is left for ``*args``."""
        most = len(self._by_position)
        if self._more_positional is None:
            raise InvalidArgumentsError(
                f"{len(args)} positional arguments were given, at most {most} are taken"
            )
        return list(args[most:])

    def _take_keywords(self, kwargs: Mapping[str, Any], given: dict[str, Any]) -> dict[str, Any]:
        """Add what was given by name; what is left for ``**kwargs`` is returned."""
        rest: dict[str, Any] = {}
        for name, value in kwargs.items():
            if name not in self._by_name:
                if self._more_keywords is None or name in self._ours:
                    raise InvalidArgumentsError(f"there is no argument {_short(name)!r}")
                rest[name] = value
            elif name in given:
                raise InvalidArgumentsError(f"the argument {name!r} was given twice")
            else:
                given[name] = value
        return rest

    def _convert_rest(
        self, more: list[Any], rest: dict[str, Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        convert = self._converters.get(self._more_positional or "")
        if convert is not None:
            more = [convert(value) for value in more]
        convert = self._converters.get(self._more_keywords or "")
        if convert is not None:
            rest = {name: convert(value) for name, value in rest.items()}
        return more, rest


class BatchBinding:
    """The signature of a batch handler: one list of units, each the one argument of a job."""

    def __init__(
        self, name: str, function: Callable[..., Any], scope: DependencyScope | None = None
    ) -> None:
        parameters = _parameters(name, function)
        hints = _hints(name, function, parameters)
        self._contexts = [each for each, hint in hints.items() if _is_context(_element(hint))]
        self._injected = {} if scope is None else scope.injected(hints)
        self._scope = scope
        ours = {*self._contexts, *self._injected}
        _refuse_uninjected(name, parameters, ours)
        units = [each for each in parameters.values() if each.name not in ours]
        if len(units) != 1 or units[0].kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
            raise HookError(
                f"the batch handler {name!r} does not take one list of units",
                remedy=f"write it as def {name}(units: list[Unit]): each job has one argument",
            )
        (self._units,) = units
        element = _element(hints.get(self._units.name, list))
        if element is None:
            raise HookError(
                f"the batch handler {name!r} takes {self._units.name!r}, which is no list",
                remedy=f"annotate it as a list: {self._units.name}: list[{units[0].annotation}]",
            )

        def one() -> None: ...

        kind = Parameter.POSITIONAL_OR_KEYWORD
        unit = Parameter(self._units.name, kind, annotation=element)
        one.__signature__ = inspect.Signature([unit])  # type: ignore[attr-defined]
        self._one = Binding(name, one)

    @property
    def positional(self) -> list[str]:
        """The name of the one argument of a job."""
        return self._one.positional

    @property
    def signature(self) -> str:
        """How the handler is called for one job."""
        return self._one.signature

    def bind(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], job: HasContext | None = None
    ) -> Bound:
        """The unit of one job, or an InvalidArgumentsError."""
        return list(self._one.bind(args, kwargs)[1].values()), {}

    def refuse_changed(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        sent: tuple[Sequence[Any], Mapping[str, Any]],
    ) -> None:
        """Refuse a unit that would arrive as another value than the one that was given."""
        self._one.refuse_changed(args, kwargs, sent)

    def together(self, units: list[Any], jobs: Sequence[HasContext]) -> Bound:
        """The arguments to call the handler with for many jobs."""
        given: dict[str, Any] = {name: [job.context for job in jobs] for name in self._contexts}
        if self._scope is not None:
            given |= {name: self._scope.value(kind) for name, kind in self._injected.items()}
        if self._units.kind is Parameter.POSITIONAL_ONLY:
            return [units], given
        return [], {self._units.name: units, **given}


def _element(hint: Any) -> Any:
    """The type of what a list holds; None for what is no list."""
    if hint in _ANYTHING or hint is list:
        return Any
    origin = typing.get_origin(hint)
    if not isinstance(origin, type) or not issubclass(list, origin):
        return None
    return typing.get_args(hint)[0]


class _Bare(str):
    """An annotation that is text already, shown without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _shown(parameter: Parameter) -> Parameter:
    annotation = parameter.annotation
    return (
        parameter.replace(annotation=_Bare(annotation))
        if isinstance(annotation, str)
        else parameter
    )


def _refuse_uninjected(
    name: str, parameters: Mapping[str, Parameter], found: Collection[str]
) -> None:
    # Not imported for this: a script that has INJECTED got it from there.
    lifespan = sys.modules.get("ergon_framework.ports.lifespan")
    if lifespan is not None:
        lifespan.refuse_uninjected(f"the handler {name!r}", parameters, found)


def _parameters(name: str, function: Callable[..., Any]) -> Mapping[str, Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError) as error:
        raise HookError(
            f"the handler {name!r} has no readable signature", remedy="wrap it in a function"
        ) from error


def _hints(
    name: str, function: Callable[..., Any], parameters: Mapping[str, Parameter]
) -> dict[str, Any]:
    """The types of the parameters; the annotation of the result is not looked at."""

    def stand_in() -> None: ...

    stand_in.__annotations__ = {
        each.name: each.annotation
        for each in parameters.values()
        if each.annotation is not Parameter.empty
    }
    try:
        return typing.get_type_hints(stand_in, _namespace(function), include_extras=True)
    except Exception as error:
        raise HookError(
            f"an annotation of the handler {name!r} cannot be read: {describe(error)}",
            remedy="annotate with types that its module imports outside of TYPE_CHECKING",
        ) from error


def _namespace(function: Any) -> dict[str, Any]:
    """The names that stand where the function was written."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif hasattr(function, "__func__"):
            function = function.__func__
        elif hasattr(function, "__globals__"):
            found: dict[str, Any] = function.__globals__
            return found
        elif inspect.isroutine(function) or isinstance(function, type):
            return {}
        else:
            function = type(function).__call__


def _is_context(hint: Any) -> bool:
    if typing.get_origin(hint) in (typing.Union, UnionType):
        return {JobContext} == set(typing.get_args(hint)) - {NoneType}
    return hint is JobContext


def _converter(handler: str, name: str, hint: Any) -> Converter:
    """A function that turns a JSON value into the declared type."""
    # A struct with one field remembers how its type is read; a bare type is looked at every time.
    try:
        struct = msgspec.defstruct("Argument", [(name, hint)])
        msgspec.json.Decoder(struct, dec_hook=_made)
    except Exception as error:
        raise HookError(
            f"the handler {handler!r} cannot take its argument {name!r} from JSON:"
            f" {describe(error)}",
            remedy="annotate it with a type that JSON can be turned into, or with Any",
        ) from error

    plain = hint if hint in _AS_THEY_ARE else None

    def convert(value: Any) -> Any:
        if type(value) is plain:
            return value
        try:
            return getattr(msgspec.convert({name: value}, struct, dec_hook=_made), name)
        except (msgspec.ValidationError, RecursionError) as error:
            raise InvalidArgumentsError(f"the argument {name!r}: {_reason(error, name)}") from None

    return convert


def _made(kind: Any, value: Any) -> Any:
    """A pydantic model or the like out of JSON; any other foreign type must be there already."""
    validate = getattr(kind, "model_validate", None)
    if validate is not None:
        try:
            return validate(value)
        except ValueError as error:
            raise ValueError(f"Not a valid `{kind.__name__}`: {_places(error)}") from None
    if is_path(kind, value):
        return kind(value)
    if isinstance(value, kind):
        return value
    raise TypeError(f"Expected `{kind.__name__}`, got `{type(value).__name__}`")


def _places(error: ValueError) -> str:
    """The fields that a model refuses, and why, without their values."""
    found: list[Any] = getattr(error, "errors", list)()
    places = [f"{'.'.join(map(str, each['loc']))} ({each['type']})" for each in found[:MAX_PLACES]]
    more = len(found) - len(places)
    return ", ".join([*places, *([f"{more} more"] if more else [])]) or "refused"


def _reason(error: Exception, name: str) -> str:
    """The reason without any value: some texts of msgspec end with the one they refuse."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    text = _SHOWN_VALUE.sub(r"\1\2", str(error))
    return text.removesuffix(f" - at `$.{name}`")


def _short(name: str) -> str:
    return name if len(name) <= MAX_NAME else name[:MAX_NAME] + "…"
