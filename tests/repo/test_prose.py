"""The word check finds what the house style bans, and every exception has a reason."""

from __future__ import annotations

import tomllib

import pytest

from tools import prose


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("# nobody comes\n", ["nobody"]),
        ('"""It goes on\n    for ever."""\n', ["goes on", "for ever"]),
        ("ring_bell = 1\n", ["ring", "bell"]),
        ("def whoever_is_told() -> None: ...\n", ["whoever", "told"]),
        ("class Doorbell: ...\n", ["doorbell"]),
        ("string, appears, spend = 'shallow', 'bellow', 'mending'[0]\n", ["mending"]),
    ],
)
def test_banned_words_are_found_in_comments_strings_and_names(source: str, words: list[str]) -> None:
    assert sorted(word for _, word, _ in prose.banned_in(prose.python_texts(source))) == sorted(words)


def test_a_number_of_seconds_without_its_unit_is_found() -> None:
    source = "LIMIT: Final = 2.0  # seconds\nLIMIT_SECONDS: Final = 2.0  # seconds\n"

    assert [name for _, name, _ in prose.without_unit(source)] == ["LIMIT"]


def test_every_exception_has_a_reason() -> None:
    exceptions = tomllib.loads(prose.ALLOWED.read_text("utf-8"))["allow"]

    assert exceptions
    assert all(each["reason"].strip() and each["words"] for each in exceptions)
