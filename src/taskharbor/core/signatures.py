"""The signature of a task function, and the stored form of a call to it.

A call is stored as an object keyed by parameter name, such as ``{"user_id": 7, "lang": "fr"}``, which
people can read and other languages can write. Arguments left to a default are not stored; the handler
uses the default of the code that runs it.
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

_VAR_POSITIONAL: Final = inspect.Parameter.VAR_POSITIONAL
_VAR_KEYWORD: Final = inspect.Parameter.VAR_KEYWORD
_KEYWORD_ONLY: Final = inspect.Parameter.KEYWORD_ONLY
_SIMPLE: Final = frozenset({inspect.Parameter.POSITIONAL_OR_KEYWORD, _KEYWORD_ONLY})
_POSITIONAL: Final = frozenset({inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD})


class CallSignature:
    """The parameters and the return type of *function*.

    The worker passes the first parameter if it is annotated with *context*. Annotations are
    resolved on first use, when all names are defined. *scope* holds the names of the enclosing
    function, if there is one.
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
        """Whether the worker passes the first parameter."""
        return self._takes_context

    def pack(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the stored form of a call. Raise `InvalidRequest` if it does not match the function."""
        try:
            names, given = self._simple_names, dict(zip(self._simple_names[: self._positional], args, strict=False))
            if kwargs:
                given |= {name: kwargs[name] for name in names[len(args) :] if name in kwargs}
            if len(given) != len(args) + len(kwargs) or not self._required <= given.keys():
                given = self._own_signature.bind(*args, **kwargs).arguments  # 11 frames, and the right error
            converters, packed = self._converters, {}
            for name, value in given.items():
                packed[name] = converters[name].pack(value, name)
        except TypeError as error:
            raise _refused("arguments", str(error)) from None
        except TypeMismatch as mismatch:
            raise _refused(mismatch.path, mismatch.reason) from None
        except RecursionError:
            raise _refused("arguments", "one of them is nested too deeply or contains itself") from None
        return packed

    def unpack(self, payload: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the call stored in *payload*. Raise `CallNotReadable` if it does not match the function."""
        if not isinstance(payload, Mapping):
            raise CallNotReadable(self._label, "the payload must be an object keyed by parameter name")
        try:
            return self._call(payload)
        except TypeMismatch as mismatch:
            raise CallNotReadable(self._label, str(mismatch)) from None

    def pack_result(self, result: object) -> object:
        """Return the stored form of a result."""
        try:
            return self._result.pack(result, "result")
        except TypeMismatch as mismatch:
            raise _refused(mismatch.path, mismatch.reason, value="not what the task returns") from None

    def unpack_result(self, stored: object) -> Any:
        """Return the result with this stored form."""
        try:
            return self._result.unpack(stored, "result")
        except TypeMismatch as mismatch:
            raise CallNotReadable(self._label, str(mismatch)) from None

    def _call(self, payload: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        parameters = self._own_signature.parameters
        for name in payload:
            if name not in parameters:
                raise TypeMismatch(name, "no such parameter")
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for name, parameter in parameters.items():
            if parameter.kind is _VAR_KEYWORD and isinstance(payload.get(name), Mapping):
                _check_free(payload[name], parameters, name)
            if name in payload:
                _place(parameter, self._converters[name].unpack(payload[name], name), args, kwargs)
            elif parameter.kind in {_VAR_POSITIONAL, _VAR_KEYWORD}:
                continue
            elif parameter.default is inspect.Parameter.empty:
                raise TypeMismatch(name, "missing, and it has no default")
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
            takes = takes or (place == 0 and hint is self._context and parameter.kind in _POSITIONAL)
            if (place > 0 or not takes) and (hint is self._context or self._context in get_args(hint)):
                label = self._context.__name__
                rule = f"only the first parameter, 'def task(ctx: {label}, …)', is filled in by the worker"
                raise UsageError(Problem(field=f"parameter {name!r}", value=f"annotated {label}", rule=rule))
        return takes

    @cached_property
    def _own_signature(self) -> inspect.Signature:
        """The signature without the context parameter."""
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
        return sum(each.kind in _POSITIONAL for each in self._own_signature.parameters.values())

    @cached_property
    def _required(self) -> frozenset[str]:
        parameters = self._own_signature.parameters
        return frozenset(name for name, each in parameters.items() if each.default is inspect.Parameter.empty)

    @cached_property
    def _converters(self) -> dict[str, Converter]:
        parameters = self._own_signature.parameters
        return {name: converter_for(_whole(each.kind, self._hints[name])) for name, each in parameters.items()}

    @cached_property
    def _result(self) -> Converter:
        return converter_for(self._hints.get("return", Any))


def _whole(kind: Any, annotation: Any) -> Any:
    """Return the annotation of all values that a parameter collects."""
    if kind is _VAR_POSITIONAL:
        return tuple[annotation, ...]
    return dict[str, annotation] if kind is _VAR_KEYWORD else annotation


def _place(parameter: inspect.Parameter, value: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
    if parameter.kind is _VAR_POSITIONAL:
        args.extend(value)
    elif parameter.kind is _VAR_KEYWORD:
        kwargs.update(value)
    elif parameter.kind is _KEYWORD_ONLY:
        kwargs[parameter.name] = value
    else:
        args.append(value)


def _check_free(more: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter], path: str) -> None:
    """Raise `TypeMismatch` if a name in ``**kwargs`` is the name of a parameter."""
    for name in more:
        if name in parameters and parameters[name].kind in {_KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}:
            raise TypeMismatch(f"{path}[{name!r}]", "a parameter has this name: store the value under it")


def _check(function: Any) -> None:
    """Raise `UsageError` if *function* cannot be a task."""
    kind = type(function).__name__
    name = repr(function.__name__) if hasattr(function, "__name__") else f"an object of type {kind}"
    if hasattr(function, "enqueue"):
        rule = "it is already a task; for jobs stored under other names, pass these as aliases=(…,)"
    elif not callable(function) or isinstance(function, type) or not hasattr(function, "__name__"):
        rule = "write a function with 'def' instead; pass options by name, as in task(queue='mail')"
    elif inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        rule = "it is a generator, and a job has one result: return a list, or report progress with ctx.progress(…)"
    else:
        return
    raise UsageError(Problem(field="task", value=name, rule=rule))


_ANNOTATE: Final = "annotate it: the annotation defines how values are checked and stored"
_METHOD: Final = "a task cannot be a method, since the object is not stored: write a function or a staticmethod"


def _refused(field: str, reason: str, *, value: str = "not what the task takes") -> InvalidRequest:
    return InvalidRequest([Problem(field=field, value=value, rule=reason)])
