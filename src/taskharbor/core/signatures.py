"""The signature of a task function, and the stored form of a call to it.

A call is stored as an object keyed by parameter name, such as ``{"user_id": 7, "lang": "fr"}``, which
people can read and other languages can write. Arguments left to a default are not stored; the handler
uses the default of the code that runs it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args, get_origin

from taskharbor.core.codec import JsonCodec
from taskharbor.core.conversion import Converter, TypeMismatch, Walk, opaque_kinds, step_to, type_name
from taskharbor.core.errors import CallNotReadable, InvalidRequest, Problem, UsageError
from taskharbor.core.flat_calls import FlatShape, flat_reader, is_flat, no_reader
from taskharbor.core.typed_values import converter_for, type_hints_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taskharbor.core.flat_calls import Reader
    from taskharbor.core.model import Job

_VAR_POSITIONAL: Final = inspect.Parameter.VAR_POSITIONAL
_VAR_KEYWORD: Final = inspect.Parameter.VAR_KEYWORD
_KEYWORD_ONLY: Final = inspect.Parameter.KEYWORD_ONLY
_VARIADIC: Final = frozenset({_VAR_POSITIONAL, _VAR_KEYWORD})
_POSITIONAL: Final = frozenset({inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD})


class CallSignature:
    """The parameters and the return type of *function*.

    The worker passes the first parameter if it is annotated with *context*. Annotations are
    resolved in `check` or on first use, when all names are defined. *scope* holds the names of the enclosing
    function, if there is one.
    """

    def __init__(self, function: Callable[..., Any], *, context: type, scope: Mapping[str, Any] | None = None) -> None:
        _check(function)
        self._function = function
        self._context = context
        self._scope = scope
        self._signature = inspect.signature(function)
        # What must be converted, by the names and types of arguments. All other arguments are stored as they are.
        self._packing: dict[_Shape, tuple[tuple[str, ...], bool, _Walks]] = {}
        # If the stored arguments are the first parameters, unchanged and in order: the defaults of the others.
        self._unpacking: dict[_Shape, tuple[_Walks, tuple[Any, ...] | None, Reader]] = {}
        self.read_flat: Reader = no_reader
        """Returns the arguments of a call from its payload in JSON; None if that must be decoded and unpacked.

        It reads calls of the form that `unpack` has last seen twice in a row. With None for any of ten arguments, calls
        have a thousand forms: a pattern for each would cost more than it saves.
        """
        self._last_reader: Reader = no_reader
        self.flat_shapes: Final[dict[_Shape, FlatShape]] = {}
        for name, parameter in self._signature.parameters.items():
            if parameter.annotation is inspect.Parameter.empty:
                rule = _METHOD if name in {"self", "cls"} else _ANNOTATE
                raise UsageError(Problem(field=f"parameter {name!r}", value="not annotated", rule=rule))

    def check(self, stores: Callable[[type], bool]) -> None:
        """Raise `UsageError` if an annotation has a class without a stored form that the codec does not store either.

        Raise `UnresolvedAnnotation` if an annotation contains a name that is not defined yet.
        """
        for name, converter in {**self._converters, "return": self._result}.items():
            path = "result" if converter is self._result else name
            for place, kind in opaque_kinds(converter, path):
                if not stores(kind):
                    field = place if converter is self._result else f"parameter {place!r}"
                    rule = f"{type_name(kind)} cannot be stored: {_CONVERT}; {_STORABLE}"
                    raise UsageError(Problem(field=field, value=f"annotated {type_name(kind)}", rule=rule))

    def pack(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the stored form of a call. Raise `InvalidRequest` if it does not match the function."""
        shape: _Shape = (*map(type, args),)
        if kwargs:
            shape += (*kwargs, *map(type, kwargs.values()))
        try:
            if (plan := self._packing.get(shape)) is None:
                return self._pack_new(args, kwargs, shape)
            names, is_in_order, walks = plan
            packed = dict(zip(names, args)) if args else {}  # noqa: B905  strict= takes a quarter of the time of a call
            if kwargs:
                packed |= kwargs
                if not is_in_order:
                    packed = {name: packed[name] for name in names}
            for name, pack in walks:
                packed[name] = pack(packed[name], name)
        except TypeError as error:
            raise _refused("call", str(error)) from None
        except TypeMismatch as mismatch:
            raise _refused(mismatch.path, mismatch.reason) from None
        except RecursionError:
            raise _refused("call", "an argument is nested too deeply or contains itself") from None
        return packed

    def flat_shape(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> FlatShape | None:
        """Return how a call is written without `pack`; None if it must be packed, as the first of each shape."""
        shape: _Shape = (*map(type, args),)
        if kwargs:
            shape += (*kwargs, *map(type, kwargs.values()))
        return self.flat_shapes.get(shape)

    def unpack_job(self, job: Job) -> tuple[Sequence[Any], dict[str, Any]]:
        """Do what `unpack` does with the payload of *job*, without decoding it if its form is known."""
        # The payload of another codec is no JSON, or has other rules. Middleware may have changed the decoded one.
        args = self.read_flat(job.payload) if not job.is_decoded and type(job.codec) is JsonCodec else None
        return self.unpack(job.data) if args is None else (args, {})

    def unpack(self, payload: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the call stored in *payload*. Raise `CallNotReadable` if it does not match the function."""
        if type(payload) is not dict and not isinstance(payload, Mapping):
            raise CallNotReadable(self._label, "the payload must be an object keyed by parameter name")
        shape = (*payload, *map(type, payload.values()))
        try:
            if (plan := self._unpacking.get(shape)) is None:
                return self._unpack_new(payload, shape)
            walks, defaults, reader = plan
            if defaults is not None:
                if reader is self._last_reader:
                    self.read_flat = reader
                self._last_reader = reader
                return (*payload.values(), *defaults), {}
            values = {**self._defaults, **payload}
            for name, unpack in walks:
                values[name] = unpack(values[name], name)
        except TypeMismatch as mismatch:
            raise CallNotReadable(self._label, str(mismatch)) from None
        ordered = (*values.values(),)
        if not (named := self._keyword_only):
            return ordered, {}
        return ordered[: -len(named)], {name: values[name] for name in named}

    def pack_json(self, payload: object) -> dict[str, Any]:
        """Return the stored form of a call that another program wrote as JSON, as `pack` stores it.

        Values of types that JSON lacks are text: see `core.json_text`. Raise `InvalidRequest` with every problem. What
        this accepts, `unpack` does.
        """
        given: Any = payload
        if not isinstance(given, Mapping):
            raise _refused("payload", f"must be an object with the parameters of {self._task}", value="invalid")
        parameters, packed = self._own_signature.parameters, dict[str, Any]()
        problems = [self._unknown(name) for name in given if name not in parameters]
        for name, parameter in parameters.items():
            path = f"payload.{name}"
            try:
                if name in given:
                    packed[name] = self._pack_one(parameter, given[name], path)
                elif name in self._required:
                    problems.append(Problem(field=path, value="missing", rule=f"required by {self._task}"))
            except TypeMismatch as mismatch:
                problems.append(Problem(field=mismatch.path, value="invalid", rule=mismatch.reason))
            except RecursionError:
                problems.append(Problem(field=path, value="invalid", rule="it is nested too deeply"))
        if problems:
            raise InvalidRequest(problems)
        return packed

    def takes(self, name: str, value: object) -> bool:
        """Return whether *value*, a part of a JSON document, can be the argument *name*."""
        try:
            self._converters[name].read(value, name)
        except (KeyError, TypeMismatch):
            return False
        return True

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

    def _pack_new(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], shape: _Shape) -> dict[str, Any]:
        """Pack a call whose shape is new or cannot be kept: parameter by parameter."""
        given = self._own_signature.bind(*args, **kwargs).arguments
        converters = self._converters
        packed = {name: converters[name].pack(value, name) for name, value in given.items()}
        if self._is_simple:
            walks = [(name, converters[name].pack) for name in given if not converters[name].keeps(type(given[name]))]
            is_in_order = [*given][len(args) :] == [*kwargs]
            _keep(self._packing, shape, (tuple(given), is_in_order, walks))
            kinds = [*map(type, (*args, *kwargs.values()))]
            if is_in_order and not walks and is_flat(kinds):
                _keep(self.flat_shapes, shape, FlatShape([*given], kinds))
        return packed

    def _unpack_new(self, payload: Mapping[str, Any], shape: _Shape) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Unpack a payload whose shape is new or cannot be kept: parameter by parameter."""
        call = self._call(payload)
        if self._is_simple:
            each = ((name, self._converters[name]) for name in self._own_signature.parameters if name in payload)
            walks = [(name, c.unpack) for name, c in each if not c.keeps(type(payload[name]))]
            defaults = None if walks else self._defaults_after(payload)
            kinds = [*map(type, payload.values())]
            is_read = defaults is not None and is_flat(kinds)
            reader = flat_reader([*payload], kinds, defaults or ()) if is_read else no_reader
            _keep(self._unpacking, shape, (walks, defaults, reader))
            self._last_reader = reader
        return call

    def _defaults_after(self, payload: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """Return the defaults of all parameters after those in *payload*; None if its values cannot be passed first."""
        if self._keyword_only or [*self._defaults][: len(payload)] != [*payload]:
            return None
        return (*self._defaults.values(),)[len(payload) :]

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
            elif parameter.kind in _VARIADIC:
                continue
            elif parameter.default is inspect.Parameter.empty:
                raise TypeMismatch(name, "missing, and it has no default")
            else:
                _place(parameter, parameter.default, args, kwargs)
        return tuple(args), kwargs

    def _pack_one(self, parameter: inspect.Parameter, given: Any, path: str) -> Any:
        converter = self._converters[parameter.name]
        if parameter.kind is _VAR_KEYWORD and isinstance(given, Mapping):
            _check_free(given, self._own_signature.parameters, path)
        return converter.pack(converter.read(given, path), path)

    def _unknown(self, name: str) -> Problem:
        known = list(self._own_signature.parameters)
        near = get_close_matches(name, known, n=1)
        more = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(known) or 'no arguments'}"
        rule = f"{self._task} has no such parameter; {more}"
        return Problem(field=step_to("payload", name), value="unknown", rule=rule)

    @property
    def _task(self) -> str:
        return f"task {self._label!r}"

    @property
    def _label(self) -> str:
        return str(getattr(self._function, "__name__", self._function))

    @cached_property
    def _hints(self) -> dict[str, Any]:
        return type_hints_of(self._function, self._scope)

    @cached_property
    def takes_context(self) -> bool:
        """Whether the worker passes the first parameter."""
        takes = False
        for place, (name, parameter) in enumerate(self._signature.parameters.items()):
            hint = _bare(self._hints[name])
            takes = takes or (place == 0 and hint is self._context and parameter.kind in _POSITIONAL)
            if (place > 0 or not takes) and (hint is self._context or self._context in get_args(hint)):
                label = self._context.__name__
                rule = f"only the first parameter, 'def task(ctx: {label}, …)', is filled in by the worker"
                raise UsageError(Problem(field=f"parameter {name!r}", value=f"annotated {label}", rule=rule))
        return takes

    @cached_property
    def _own_signature(self) -> inspect.Signature:
        """The signature without the context parameter."""
        skipped = 1 if self.takes_context else 0
        return self._signature.replace(parameters=list(self._signature.parameters.values())[skipped:])

    @cached_property
    def _is_simple(self) -> bool:
        """Whether no parameter is variadic."""
        return all(each.kind not in _VARIADIC for each in self._own_signature.parameters.values())

    @cached_property
    def _defaults(self) -> dict[str, Any]:
        """The parameters in their order, with their defaults. A call that uses it gives those without."""
        return {name: each.default for name, each in self._own_signature.parameters.items()}

    @cached_property
    def _keyword_only(self) -> tuple[str, ...]:
        return tuple(name for name, each in self._own_signature.parameters.items() if each.kind is _KEYWORD_ONLY)

    @cached_property
    def _required(self) -> frozenset[str]:
        parameters = self._own_signature.parameters
        needed = {name for name, each in parameters.items() if each.default is inspect.Parameter.empty}
        return frozenset(name for name in needed if parameters[name].kind not in _VARIADIC)

    @cached_property
    def _converters(self) -> dict[str, Converter]:
        parameters = self._own_signature.parameters
        return {name: converter_for(_whole(each.kind, self._hints[name])) for name, each in parameters.items()}

    @cached_property
    def _result(self) -> Converter:
        return converter_for(self._hints.get("return", Any))


def _keep(plans: dict[_Shape, Any], shape: _Shape, plan: object) -> None:
    if len(plans) >= _MAX_SHAPES:  # payloads of other programs have any order of keys
        plans.clear()
    plans[shape] = plan


def _bare(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


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


_Shape = tuple[Any, ...]
_Walks = list[tuple[str, Walk]]
_MAX_SHAPES: Final = 256
_ANNOTATE: Final = "annotate it: the annotation defines how values are checked and stored"
_CONVERT: Final = "annotate it with a type that can, such as str, and convert the value in the task"
_STORABLE: Final = (
    "types that can be stored are None, bool, int, float, str, bytes, date, datetime, timedelta, Decimal and UUID,"
    " enums, dataclasses, named tuples, TypedDicts, pydantic models, and lists, tuples, sets and dicts of these"
)
_METHOD: Final = "a task cannot be a method, since the object is not stored: write a function or a staticmethod"


def _refused(field: str, reason: str, *, value: str = "not what the task takes") -> InvalidRequest:
    return InvalidRequest([Problem(field=field, value=value, rule=reason)])
