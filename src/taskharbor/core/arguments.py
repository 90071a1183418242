"""What a function takes and returns, and how a call of it is stored.

A call is stored as an object by the names of the parameters, ``{"user_id": 7, "lang": "fr"}``,
so that a person can read it and other languages can write it. What a call leaves to a default
is not stored: the default of the day it runs is taken.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, get_type_hints

from taskharbor.core.errors import CallNotReadable, InvalidRequest, Problem, UsageError
from taskharbor.core.shapes import Misfit, Shape, shape_of

if TYPE_CHECKING:
    from collections.abc import Callable

_MANY: Final = inspect.Parameter.VAR_POSITIONAL
_NAMED: Final = inspect.Parameter.VAR_KEYWORD


class Arguments:
    """The parameters of *function*, and what it returns.

    *context* is the class whose annotation on the first parameter means that the worker
    fills it in. Annotations are looked at when they are first needed, by then all names are
    defined; *scope* holds the names of the function around it, if there is one.
    """

    def __init__(self, function: Callable[..., Any], *, context: type, scope: Mapping[str, Any] | None = None) -> None:
        self._function = function
        self._context = context
        self._scope = scope
        self._signature = inspect.signature(function)
        for name, parameter in self._signature.parameters.items():
            if parameter.annotation is inspect.Parameter.empty:
                rule = "annotate it: by that its values are checked, stored and read back"
                raise UsageError(Problem(field=f"parameter {name!r}", value="not annotated", rule=rule))

    @property
    def takes_context(self) -> bool:
        """Whether the first parameter is the worker's to fill in."""
        return self._takes_context

    def pack(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return a call as it is stored. Raise `InvalidRequest` where it does not fit the function."""
        try:
            bound = self._own_signature.bind(*args, **kwargs)
            return {name: self._shapes[name].pack(value, name) for name, value in bound.arguments.items()}
        except TypeError as error:
            raise _refused("arguments", str(error)) from None
        except Misfit as misfit:
            raise _refused(misfit.path, misfit.why) from None

    def unpack(self, payload: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the call that is stored as *payload*. Raise `CallNotReadable` where it does not fit (any more)."""
        if not isinstance(payload, Mapping):
            raise CallNotReadable(self._label, "the payload must be an object by the names of its parameters")
        try:
            return self._call(payload)
        except Misfit as misfit:
            raise CallNotReadable(self._label, str(misfit)) from None

    def pack_result(self, result: object) -> object:
        """Return a result as it is stored."""
        try:
            return self._result.pack(result, "result")
        except Misfit as misfit:
            raise _refused(misfit.path, misfit.why) from None

    def unpack_result(self, stored: object) -> Any:
        """Return the result that is stored so."""
        try:
            return self._result.unpack(stored, "result")
        except Misfit as misfit:
            raise CallNotReadable(self._label, str(misfit)) from None

    def _call(self, payload: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        parameters = self._own_signature.parameters
        for name in payload:
            if name not in parameters:
                raise Misfit(name, "there is no such parameter")
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for name, parameter in parameters.items():
            if name in payload:
                _place(parameter, self._shapes[name].unpack(payload[name], name), args, kwargs)
            elif parameter.kind in {_MANY, _NAMED}:
                continue
            elif parameter.default is inspect.Parameter.empty:
                raise Misfit(name, "is missing, and has no default")
            else:
                _place(parameter, parameter.default, args, kwargs)
        return tuple(args), kwargs

    @property
    def _label(self) -> str:
        return str(getattr(self._function, "__name__", self._function))

    @cached_property
    def _hints(self) -> dict[str, Any]:
        try:
            return get_type_hints(self._function, localns=dict(self._scope) if self._scope else None)
        except NameError as error:
            rule = f"{error}; define or import that name outside of 'if TYPE_CHECKING'"
            raise UsageError(Problem(field="annotation", value=f"of {self._label}", rule=rule)) from error

    @cached_property
    def _takes_context(self) -> bool:
        first = next(iter(self._signature.parameters), None)
        return first is not None and self._hints[first] is self._context

    @cached_property
    def _own_signature(self) -> inspect.Signature:
        """The parameters that a call fills in."""
        skipped = 1 if self._takes_context else 0
        return self._signature.replace(parameters=list(self._signature.parameters.values())[skipped:])

    @cached_property
    def _shapes(self) -> dict[str, Shape]:
        parameters = self._own_signature.parameters
        return {name: shape_of(_whole(each.kind, self._hints[name])) for name, each in parameters.items()}

    @cached_property
    def _result(self) -> Shape:
        return shape_of(self._hints.get("return", Any))


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
    elif parameter.kind is inspect.Parameter.KEYWORD_ONLY:
        kwargs[parameter.name] = value
    else:
        args.append(value)


def _refused(field: str, why: str) -> InvalidRequest:
    return InvalidRequest([Problem(field=field, value="not what the task takes", rule=why)])
