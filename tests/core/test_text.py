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
def test_only_what_no_store_can_keep_is_escaped(text: str, kept: str) -> None:
    assert make_storable(text) == kept


@pytest.mark.parametrize("point", [0, 0xD800, 0xDBFF, 0xDC00, 0xDFFF])
def test_neither_nul_nor_a_surrogate_is_storable(point: int) -> None:
    assert not is_storable(chr(point))


@pytest.mark.parametrize("point", [1, 0xD7FF, 0xE000, 0x10FFFF])
def test_every_other_character_is_storable(point: int) -> None:
    assert is_storable(chr(point))


def test_text_exactly_as_long_as_the_limit_is_kept_whole() -> None:
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
def test_the_note_says_how_many_characters_were_left_out(limit: int, more: int) -> None:
    text = "x" * (limit + 1 + more)

    cut = make_storable(text, limit=limit)

    [said] = NOTE.findall(cut)
    assert int(said.replace(",", "")) == len(text) - cut.count("x")


@few
@given(texts, limits)
def test_the_result_can_be_stored_whatever_the_text_was(text: str, limit: int) -> None:
    kept = make_storable(text, limit=limit)

    assert kept.encode().decode() == kept
    assert "\x00" not in kept
    assert len(kept) <= limit
    assert is_storable(kept)


@few
@given(texts, limits)
def test_making_text_storable_twice_is_making_it_storable_once(text: str, limit: int) -> None:
    once = make_storable(text, limit=limit)

    assert make_storable(once, limit=limit) == once


@few
@given(texts)
def test_text_is_storable_exactly_when_nothing_has_to_be_done_to_it(text: str) -> None:
    assert is_storable(text) == (make_storable(text) == text)


@few
@given(st.text())
def test_text_without_nul_and_surrogates_is_never_changed(text: str) -> None:
    plain = text.replace("\x00", "")

    assert make_storable(plain) == plain


@pytest.mark.parametrize("filling", ["x", "\x00", "\ud800", "世"])
def test_a_gigantic_text_is_not_copied_to_keep_a_page_of_it(filling: str) -> None:
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
def test_a_line_of_a_log_stays_one_and_steers_nothing(text: str, line: str) -> None:
    assert one_line(text, limit=100) == line


def test_a_line_of_a_log_is_cut_after_it_was_escaped() -> None:
    assert one_line("\n" * 50, limit=10) == r"\n" * 5
    assert one_line("x" * 50, limit=10) == "x" * 10
