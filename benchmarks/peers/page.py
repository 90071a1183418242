"""Write the tables and plots of the last run into docs/benchmarks.md: python -m benchmarks.peers.page.

The tables stand between comments that name them; the text around them is written by hand. A test compares.
"""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, Any, Final

from benchmarks.peers import tables
from benchmarks.peers.environments import ROOT
from benchmarks.peers.plan import MAX_PEER_BACKLOG, MEASURES
from benchmarks.peers.plots import plots
from tools.render_picture import FOLDER

if TYPE_CHECKING:
    from pathlib import Path

PAGE: Final = ROOT / "docs" / "benchmarks.md"
NO_RUN: Final = "No run of `make bench` has been recorded yet.\n"
_SECTION: Final = re.compile(r"(<!-- peers: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def page(text: str, report: dict[str, Any] | None) -> str:
    """Return *text* with the sections of *report* in place of those that it has."""
    return _SECTION.sub(lambda found: found[1] + section(found[2], report) + found[3], text)


def section(name: str, report: dict[str, Any] | None) -> str:
    if name == "gives_up":
        return tables.markdown(["system", "gives up", "a power failure costs"], tables.gives_up_rows())
    if report is None:
        return NO_RUN
    made = {
        "claims": lambda: tables.markdown(tables.CLAIM_HEADINGS, tables.claim_rows(report["measured"])),
        "machine": lambda: _machine(report),
        "missed": lambda: _missed(report),
        "missing": lambda: _missing(report),
        "systems": lambda: tables.markdown(tables.SETTINGS_HEADINGS, tables.settings_rows(report)),
    }
    return made[name]() if name in made else _group(name, report)


def _group(name: str, report: dict[str, Any]) -> str:
    group = tables.GROUPS[name]
    rows = tables.group_rows(report["measured"], group)
    headings = ["system", *(column.heading for column in group.columns)]
    return _pictures(name, report) + (tables.markdown(headings, rows) if rows else "Not measured in this run.\n")


def _missed(report: dict[str, Any]) -> str:
    rows = tables.missed_rows(report["measured"])
    return tables.markdown(tables.MISSED_HEADINGS, rows) if rows else "No drain was missed.\n"


def _missing(report: dict[str, Any]) -> str:
    rows = [[what, reason.replace("\n", " ")] for what, reason in report["not measured"].items()]
    return tables.markdown(["not measured", "reason"], rows) if rows else "No measurement failed.\n"


def _machine(report: dict[str, Any]) -> str:
    machine, sizes = report["machine"], report["sizes"]
    later = "".join(f", and on {day} ({MEASURES[measure].title})" for measure, day in report.get("days", {}).items())
    return (
        textwrap.fill(
            f"Measured on {machine['date']}, in {report['minutes']:.0f} minutes{later}: {machine['cores']} cores, "
            f"PostgreSQL {machine['postgresql']}, Python {machine['python']}. "
            f"Drains run {sizes['drain']:,} jobs, under an old snapshot {sizes['snapshot']:,}. "
            f"The store with finished jobs has {sizes['history']:,} of them. "
            f"The large backlog is {sizes['backlog']:,} jobs, at most {MAX_PEER_BACKLOG:,} for the others. "
            f"A system that is slow runs fewer. A dash is what was not measured in this run, or does not apply.",
            width=120,
            break_long_words=False,
        )
        + "\n"
    )


def _pictures(name: str, report: dict[str, Any]) -> str:
    files = {path.stem.rpartition("-")[2]: path for path in plots(report) if path.stem.startswith(f"peers-{name}-")}
    if not files:
        return ""
    light, dark = (f"images/{files[theme].name}" for theme in ("light", "dark"))
    source = f'<source media="(prefers-color-scheme: dark)" srcset="{dark}">'
    title = tables.GROUPS[name].title
    return f'<picture>\n  {source}\n  <img alt="{title}" src="{light}" width="800">\n</picture>\n\n'


def files() -> dict[Path, str]:
    """Return the page and the plots as they must be."""
    report = tables.load()
    return {PAGE: page(PAGE.read_text("utf-8"), report), **(plots(report) if report else {})}


def write() -> None:
    made = files()
    for path in {*FOLDER.glob("peers-*.svg")} - made.keys():
        path.unlink()
    for path, text in made.items():
        path.write_text(text, "utf-8")


if __name__ == "__main__":
    write()
