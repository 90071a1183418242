"""Output on terminals and in pipes."""

from __future__ import annotations

import io
import re
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from taskharbor import Status
from taskharbor.cli import render
from taskharbor.cli.render import ProgressLine, print_facts, print_table, printable, relative, span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taskharbor.cli.render import Cell

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TITLES = ("id", "status", "count", "due", "took")
ROWS: Sequence[Sequence[Cell]] = [
    ["a-1", Status.DEAD, 1_200, NOON - timedelta(minutes=3), timedelta(seconds=90)],
    ["b-2", Status.PENDING, 7, NOON + timedelta(hours=2), None],
]


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def at_a_screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    return screen


def test_a_pipe_gets_exact_values_between_tabs(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(TITLES, ROWS, now=NOON, empty="none")

    assert capsys.readouterr().out.splitlines() == [
        "id\tstatus\tcount\tdue\ttook",
        "a-1\tDEAD\t1200\t2026-01-01T11:57:00Z\t90",
        "b-2\tPENDING\t7\t2026-01-01T14:00:00Z\t",
    ]


def test_a_terminal_without_rich_gets_columns_and_relative_times(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = at_a_screen(monkeypatch)
    monkeypatch.setattr(render, "has_rich", lambda: False)

    print_table(TITLES, ROWS, now=NOON, empty="none")

    assert screen.getvalue().splitlines() == [
        "ID   STATUS   COUNT  DUE     TOOK",
        "a-1  DEAD     1,200  3m ago  1m30s",
        "b-2  PENDING      7  in 2h   -",
    ]


def test_a_terminal_gets_a_colored_table_unless_no_color_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = at_a_screen(monkeypatch)
    print_table(TITLES, ROWS, now=NOON, empty="none")
    colored = screen.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")

    print_table(TITLES, ROWS, now=NOON, empty="none")

    assert "3m ago" in colored
    assert "\x1b[31mDEAD" in colored
    assert "[31m" not in screen.getvalue().removeprefix(colored)


def test_untrusted_text_is_not_interpreted_as_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = at_a_screen(monkeypatch)

    print_table(["error"], [["[red]not red[/red] \x1b[2J"]], now=NOON, empty="none")

    assert "[red]not red[/red]" in screen.getvalue()
    assert "\x1b[2J" not in screen.getvalue()


@pytest.mark.parametrize("with_rich", [True, False])
@pytest.mark.parametrize(
    ("columns", "shown", "omitted"),
    [
        (80, ("id", "type", "queue", "status", "error"), "due"),
        (70, ("id", "type", "status", "error"), "queue, due"),
        (45, ("id", "status"), "type, queue, due, error"),
        (10, ("id", "status"), "type, queue, due, error"),
    ],
)
def test_a_narrow_terminal_gets_fewer_columns_and_the_names_of_the_others(
    columns: int,
    shown: tuple[str, ...],
    omitted: str,
    *,
    with_rich: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    screen = at_a_screen(monkeypatch)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(render, "has_rich", lambda: with_rich)
    job_id = "01a1e4b9-a3d1-703a-bfa3-bf8c9c29b7e7"
    titles = ("id", "type", "queue", "status", "due", "error")
    cells = [job_id, "" if columns < 50 else "greet", "default", Status.DEAD, NOON, "E: " + "long " * 9]

    print_table(titles, [cells], now=NOON, empty="none")

    lines = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue()).splitlines()
    if columns > 10:
        assert lines[0].lower().split() == list(shown)
        assert job_id in screen.getvalue()
        assert "DEAD" in screen.getvalue()
    if with_rich:
        assert max(map(len, lines)) <= columns
    assert capsys.readouterr().err == f"the terminal is too narrow for: {omitted}; --json shows all\n"


def test_the_first_column_is_always_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = at_a_screen(monkeypatch)
    monkeypatch.setenv("COLUMNS", "15")

    print_table(("queue", "waiting", "due"), [["default", 1, NOON]], now=NOON, empty="none")

    assert "default" in screen.getvalue()
    assert "due" not in screen.getvalue()


def test_facts_are_aligned_and_missing_values_are_omitted(capsys: pytest.CaptureFixture[str]) -> None:
    print_facts([("id", "a-1"), ("worker", None), ("due", NOON)], now=NOON)

    assert capsys.readouterr().out == "id   a-1\ndue  2026-01-01T12:00:00Z\n"


def test_unprintable_characters_are_replaced() -> None:
    assert printable("a\tb\nc\x1b[2Jd\x00é…") == "a b c\N{REPLACEMENT CHARACTER}[2Jd\N{REPLACEMENT CHARACTER}é…"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0ms"),
        (0.0421, "42ms"),
        (1, "1s"),
        (9.94, "9.9s"),
        (10, "10s"),
        (61, "1m1s"),
        (3_600, "1h"),
        (86_399, "23h59m"),
        (90_000, "1d1h"),
    ],
)
def test_a_duration_is_shown_in_one_or_two_units(seconds: float, text: str) -> None:
    assert span(timedelta(seconds=seconds)) == text


def test_now_is_past() -> None:
    assert relative(NOON, NOON) == "0ms ago"


def test_progress_shows_rate_and_remaining_time(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 4.0, 10.0, 10.0])

    with ProgressLine("requeued", 400, monotonic=lambda: next(times)) as progress:
        progress.advance(50)  # too early to print anything
        progress.advance(50)

    assert capsys.readouterr() == ("", "requeued: 100 of 400 (25%), 10/s, 30s left\n")


def test_progress_without_a_total_shows_count_and_rate(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 10.0, 10.0])

    with ProgressLine("searching", None, monotonic=lambda: next(times)) as progress:
        progress.advance(1_000)

    assert capsys.readouterr().err == "searching: 1,000, 100/s\n"
