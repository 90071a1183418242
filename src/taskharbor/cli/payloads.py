"""Payloads as they are typed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from taskharbor.cli.values import InvalidValue, tag

if TYPE_CHECKING:
    from collections.abc import Sequence


def read_payload(given: str) -> Any:
    """Return the payload that *given* is as JSON, or that is found in ``@file``, or for ``-`` on stdin."""
    return _parsed(_text(given), given)


def payload_of(pairs: Sequence[str]) -> dict[str, Any]:
    """Return the object that the pairs make; without any, an empty one: a call without arguments."""
    made: dict[str, Any] = {}
    for pair in pairs:
        key, value = tag(pair)
        if key in made:
            raise InvalidValue(pair, f"{key} is given twice")
        made[key] = _value(value)
    return made


def _text(payload: str) -> str:
    """Return the JSON that *payload* is, or points at."""
    if payload != "-" and not payload.startswith("@"):
        return payload
    try:
        if payload == "-":
            return sys.stdin.read()
        with click.open_file(payload[1:], encoding="utf-8") as file:
            text: str = file.read()
            return text
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValue(payload, f"cannot be read: {error}") from error


def _parsed(text: str, given: str) -> Any:
    import json

    try:
        return json.loads(text, parse_constant=_refuse)
    except ValueError as error:
        where = given if given.startswith("@") or given == "-" else text
        raise InvalidValue(where, f"this is no JSON: {error}; the shell wants it in single quotes") from error


def _value(text: str) -> Any:
    import json

    try:
        return json.loads(text, parse_constant=_refuse)
    except ValueError:
        return text


def _refuse(constant: str) -> None:
    """Refuse NaN and Infinity, which no JSON has."""
    raise ValueError(constant)
