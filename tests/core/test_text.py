from __future__ import annotations

import re
import tracemalloc
from typing import Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from taskharbor.core.text import MAX_TEXT_CHARS, is_storable, make_storable, one_line

few = settings(max_examples=150, deadline=None)

NOTE: Final = re.compile(r"… ([\d,]+) characters left out …")

texts = st.text(st.characters(exclude_categories=()) | st.sampled_from(["\x00", "\ud800", "\udfff"]))
limits = st.integers(40, 120)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("", ""),
        ("plain", "plain"),
        ("\t\r\n\x01\x7f", "\t\r\n\x01\x7f"),
        ("Grüße, 世界 🚢", "Grüße, 世界 🚢"),
        ("\ud7ff\ue000", "\ud7ff\ue000"),
        ("a\x00b", "a\\x00b"),
        ("a\ud800b\udfffc", "a\\ud800b\\udfffc"),
        ("\ud83d\udea2", "\\ud83d\\udea2"),
    ],
)
def test_only_unstorable_characters_are_escaped(text: str, kept: str) -> None:
    assert make_storable(text) == kept


@pytest.mark.parametrize("point", [0, 0xD800, 0xDBFF, 0xDC00, 0xDFFF])
def test_neither_nul_nor_a_surrogate_is_storable(point: int) -> None:
    assert not is_storable(chr(point))


@pytest.mark.parametrize("point", [1, 0xD7FF, 0xE000, 0x10FFFF])
def test_every_other_character_is_storable(point: int) -> None:
    assert is_storable(chr(point))


def test_text_at_the_limit_is_kept() -> None:
    text = "x" * MAX_TEXT_CHARS

    assert make_storable(text) == text


def test_text_longer_than_the_limit_is_cut_to_exactly_the_limit() -> None:
    cut = make_storable("h" + "x" * MAX_TEXT_CHARS + "t")

    assert len(cut) == MAX_TEXT_CHARS
    assert NOTE.search(cut)


def test_the_head_and_the_tail_are_kept() -> None:
    text = "head of it " + "x" * 10_000 + " tail of it"

    cut = make_storable(text, limit=100)

    assert cut.startswith("head of it ")
    assert cut.endswith(" tail of it")


@few
@given(st.integers(40, 200), st.integers(0, 20_000))
@example(40, 980)
def test_the_note_contains_the_number_of_omitted_characters(limit: int, more: int) -> None:
    text = "x" * (limit + 1 + more)

    cut = make_storable(text, limit=limit)

    [said] = NOTE.findall(cut)
    assert int(said.replace(",", "")) == len(text) - cut.count("x")


@few
@given(texts, limits)
def test_the_result_is_storable_for_any_text(text: str, limit: int) -> None:
    kept = make_storable(text, limit=limit)

    assert kept.encode().decode() == kept
    assert "\x00" not in kept
    assert len(kept) <= limit
    assert is_storable(kept)


@few
@given(texts, limits)
def test_make_storable_is_idempotent(text: str, limit: int) -> None:
    once = make_storable(text, limit=limit)

    assert make_storable(once, limit=limit) == once


@few
@given(texts)
def test_text_is_storable_if_and_only_if_it_is_unchanged(text: str) -> None:
    assert is_storable(text) == (make_storable(text) == text)


@few
@given(st.text())
def test_text_without_nul_and_surrogates_is_never_changed(text: str) -> None:
    plain = text.replace("\x00", "")

    assert make_storable(plain) == plain


@pytest.mark.parametrize("filling", ["x", "\x00", "\ud800", "世"])
def test_a_huge_text_is_cut_before_it_is_copied(filling: str) -> None:
    gigantic = filling * 50_000_000

    tracemalloc.start()
    kept = make_storable(gigantic)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert len(kept) == MAX_TEXT_CHARS
    assert peak < 1_000_000


def test_escapes_do_not_push_text_over_the_limit() -> None:
    text = "\x00" * MAX_TEXT_CHARS

    assert len(make_storable(text)) == MAX_TEXT_CHARS


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("GET /v1/jobs", "GET /v1/jobs"),
        ("a\nb\r\tc", r"a\nb\r\tc"),
        ("\x1b[2J\x07\x9b", r"\x1b[2J\x07\x9b"),
        ("\u2028\u202e", r"\u2028\u202e"),
        ("\ud800", r"\ud800"),
        ("é 😀", "é 😀"),
    ],
)
def test_a_log_line_has_no_line_breaks_or_control_characters(text: str, line: str) -> None:
    assert one_line(text, limit=100) == line


def test_a_log_line_is_cut_after_escaping() -> None:
    assert one_line("\n" * 50, limit=10) == r"\n" * 5
    assert one_line("x" * 50, limit=10) == "x" * 10
