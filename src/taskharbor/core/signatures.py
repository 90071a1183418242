"""What a function takes and returns, and how a call of it is stored.

A call is stored as an object by the names of the parameters, ``{"user_id": 7, "lang": "fr"}``,
so that a person can read it and other languages can write it. What a call leaves to a default
is not stored: the default of the day it runs is taken.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, get_args

from taskharbor.core.conversion import Converter, TypeMismatch
from taskharbor.core.errors import CallNotReadable, InvalidRequest, Problem, UsageError
from taskharbor.core.typed_values import converter_for, type_hints_of

if TYPE_CHECKING:
    from collections.abc import Callable

_MANY: Final = inspect.Parameter.VAR_POSITIONAL
_NAMED: Final = inspect.Parameter.VAR_KEYWORD
_KEYWORD: Final = inspect.Parameter.KEYWORD_ONLY
_SIMPLE: Final = frozenset({inspect.Parameter.POSITIONAL_OR_KEYWORD, _KEYWORD})
_IN_PLACE: Final = frozenset({inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD})


class CallSignature:
    """The parameters of *function*, and what it returns.

    *context* is the class whose annotation on the first parameter means that the worker
    fills it in. Annotations are looked at when they are first needed, by then all names are
    defined; *scope* holds the names of the function around it, if there is one.
    """

    def __init__(self, function: Callable[..., Any], *, context: type, scope: Mapping[str, Any] | None = None) -> None:
        _check(function)
        self._function = function
        self._context = context
        self._scope = scope
        self._signature = inspect.signature(function)
        for name, parameter in self._signature.parameters.items():
            if parameter.annotation is inspect.Parameter.empty:
                rule = _METHOD if name in {"self", "cls"} else _ANNOTATE
                raise UsageError(Problem(field=f"parameter {name!r}", value="not annotated", rule=rule))

    @property
    def takes_context(self) -> bool:
        """Whether the first parameter is the worker's to fill in."""
        return self._takes_context

    def pack(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return a call as it is stored. Raise `InvalidRequest` where it does not fit the function."""
        try:
            names, given = self._simple_names, dict(zip(self._simple_names[: self._positional], args, strict=False))
            if kwargs:
                given |= {name: kwargs[name] for name in names[len(args) :] if name in kwargs}
            if len(given) != len(args) + len(kwargs) or not self._required <= given.keys():
                given = self._own_signature.bind(*args, **kwargs).arguments  # 11 frames, and the right error
            converters, packed = self._shapes, {}
            for name, value in given.items():
                packed[name] = converters[name].pack(value, name)
        except TypeError as error:
            raise _refused("arguments", str(error)) from None
        except TypeMismatch as misfit:
            raise _refused(misfit.path, misfit.reason) from None
        except RecursionError:
            raise _refused("arguments", "one of them is nested too deeply, or holds itself") from None
        return packed

    def unpack(self, payload: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the call that is stored as *payload*. Raise `CallNotReadable` where it does not fit (any more)."""
        if not isinstance(payload, Mapping):
            raise CallNotReadable(self._label, "the payload must be an object by the names of its parameters")
        try:
            return self._call(payload)
        except TypeMismatch as misfit:
            raise CallNotReadable(self._label, str(misfit)) from None

    def pack_result(self, result: object) -> object:
        """Return a result as it is stored."""
        try:
            return self._result.pack(result, "result")
        except TypeMismatch as misfit:
            raise _refused(misfit.path, misfit.reason, value="not what the task returns") from None

    def unpack_result(self, stored: object) -> Any:
        """Return the result that is stored so."""
        try:
            return self._result.unpack(stored, "result")
        except TypeMismatch as misfit:
            raise CallNotReadable(self._label, str(misfit)) from None

    def _call(self, payload: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        parameters = self._own_signature.parameters
        for name in payload:
            if name not in parameters:
                raise TypeMismatch(name, "there is no such parameter")
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for name, parameter in parameters.items():
            if parameter.kind is _NAMED and isinstance(payload.get(name), Mapping):
                _check_free(payload[name], parameters, name)
            if name in payload:
                _place(parameter, self._shapes[name].unpack(payload[name], name), args, kwargs)
            elif parameter.kind in {_MANY, _NAMED}:
                continue
            elif parameter.default is inspect.Parameter.empty:
                raise TypeMismatch(name, "is missing, and has no default")
            else:
                _place(parameter, parameter.default, args, kwargs)
        return tuple(args), kwargs

    @property
    def _label(self) -> str:
        return str(getattr(self._function, "__name__", self._function))

    @cached_property
    def _hints(self) -> dict[str, Any]:
        return type_hints_of(self._function, self._scope)

    @cached_property
    def _takes_context(self) -> bool:
        takes = False
        for place, (name, parameter) in enumerate(self._signature.parameters.items()):
            hint = self._hints[name]
            takes = takes or (place == 0 and hint is self._context and parameter.kind in _IN_PLACE)
            if (place > 0 or not takes) and (hint is self._context or self._context in get_args(hint)):
                label = self._context.__name__
                rule = f"only the first parameter, 'def task(ctx: {label}, …)', is filled in by the worker"
                raise UsageError(Problem(field=f"parameter {name!r}", value=f"annotated {label}", rule=rule))
        return takes

    @cached_property
    def _own_signature(self) -> inspect.Signature:
        """The parameters that a call fills in."""
        skipped = 1 if self._takes_context else 0
        return self._signature.replace(parameters=list(self._signature.parameters.values())[skipped:])

    @cached_property
    def _simple_names(self) -> tuple[str, ...]:
        """The parameters in their order; none if one is variadic or positional-only."""
        parameters = self._own_signature.parameters
        is_simple = all(each.kind in _SIMPLE for each in parameters.values())
        return tuple(parameters) if is_simple else ()

    @cached_property
    def _positional(self) -> int:
        """How many parameters a call may give by position."""
        return sum(each.kind in _IN_PLACE for each in self._own_signature.parameters.values())

    @cached_property
    def _required(self) -> frozenset[str]:
        parameters = self._own_signature.parameters
        return frozenset(name for name, each in parameters.items() if each.default is inspect.Parameter.empty)

    @cached_property
    def _shapes(self) -> dict[str, Converter]:
        parameters = self._own_signature.parameters
        return {name: converter_for(_whole(each.kind, self._hints[name])) for name, each in parameters.items()}

    @cached_property
    def _result(self) -> Converter:
        return converter_for(self._hints.get("return", Any))


def _whole(kind: Any, annotation: Any) -> Any:
    """Return the annotation of all that a parameter takes together."""
    if kind is _MANY:
        return tuple[annotation, ...]
    return dict[str, annotation] if kind is _NAMED else annotation


def _place(parameter: inspect.Parameter, value: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
    if parameter.kind is _MANY:
        args.extend(value)
    elif parameter.kind is _NAMED:
        kwargs.update(value)
    elif parameter.kind is _KEYWORD:
        kwargs[parameter.name] = value
    else:
        args.append(value)


def _check_free(more: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter], path: str) -> None:
    """Raise `TypeMismatch` if a name in ``**kwargs`` is that of a parameter."""
    for name in more:
        if name in parameters and parameters[name].kind in {_KEYWORD, inspect.Parameter.POSITIONAL_OR_KEYWORD}:
            raise TypeMismatch(f"{path}[{name!r}]", "there is a parameter of this name: store it under that")


def _check(function: Any) -> None:
    """Raise `UsageError` where *function* is nothing that a worker could call and be done with."""
    kind = type(function).__name__
    name = repr(function.__name__) if hasattr(function, "__name__") else f"an object of type {kind}"
    if hasattr(function, "enqueue"):
        rule = "it is one already; for jobs that are stored under other names, name these as aliases=(…,)"
    elif not callable(function) or isinstance(function, type) or not hasattr(function, "__name__"):
        rule = "write a function with 'def' that does the same; options have names, as in task(queue='mail')"
    elif inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        rule = "it yields, and a job has one result: return a list, or say how far it is by ctx.progress(…)"
    else:
        return
    raise UsageError(Problem(field="task", value=name, rule=rule))


_ANNOTATE: Final = "annotate it: by that its values are checked, stored and read back"
_METHOD: Final = "a task cannot be a method, whose object is not stored: write a function, or a staticmethod"


def _refused(field: str, reason: str, *, value: str = "not what the task takes") -> InvalidRequest:
    return InvalidRequest([Problem(field=field, value=value, rule=reason)])
