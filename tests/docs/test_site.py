"""The documentation site: every link leads somewhere, nothing comes from the network, words are spelled right."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import pytest

from tools import docs_site

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
LOADED: Final = {("script", "src"), ("img", "src"), ("link", "href"), ("source", "srcset"), ("iframe", "src")}


class PageReader(HTMLParser):
    """Collects the anchors of a page, its links, and what a browser loads with it."""

    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            if (tag, name) == ("a", "href") and value:
                self.links.append(value)
            if (tag, name) in LOADED and value:
                self.loaded.append(value)


@cache
def read(path: Path) -> PageReader:
    reader = PageReader()
    reader.feed(path.read_text("utf-8"))
    return reader


def broken(site: Path) -> list[str]:
    """Return the links to pages, files and anchors of the site that do not exist."""
    found = []
    for page in sorted(site.rglob("*.html")):
        for link in read(page).links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = page if not parts.path else (page.parent / unquote(parts.path)).resolve()
            target = target / "index.html" if target.is_dir() else target
            has_anchor = not parts.fragment or parts.fragment in read(target).anchors if target.exists() else False
            if not has_anchor:
                found.append(f"{page.relative_to(site)}: {link}")
    return found


def test_every_link_leads_to_a_page_and_an_anchor(site: Path) -> None:
    assert broken(site) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<h1 id="top"></h1><a href="#top"></a><a href="#no"></a><a href="b.html"></a>')

    assert broken(tmp_path) == ["a.html: #no", "a.html: b.html"]


def test_no_page_loads_anything_from_the_network(site: Path) -> None:
    loaded = {part for page in site.rglob("*.html") for part in read(page).loaded}
    styles = [path.read_text("utf-8") for path in site.rglob("*.css")]

    assert [part for part in loaded if urlsplit(part).netloc] == []
    assert [
        found for text in styles for found in re.findall(r"url\([\"']?(?:https?:)?//[^)]*|@import[^;]*", text)
    ] == []
    assert loaded


def test_every_page_of_the_folder_is_on_the_site(site: Path) -> None:
    pages = [page.relative_to(DOCS).with_suffix(".html") for page in DOCS.rglob("*.md")]
    index = read(site / "index.html").links

    assert [str(page) for page in pages if not (site / page).is_file()] == []
    top = {str(page) for page in pages if len(page.parts) == 1} - {"index.html"}
    assert top <= {*index}


def test_the_list_for_programs_names_pages_of_the_site(site: Path) -> None:
    listed = re.findall(r"^- \[[^\]]+\]\(([^)]+)\): .+$", (site / "llms.txt").read_text("utf-8"), re.MULTILINE)

    assert len(listed) > 40
    assert [page for page in listed if not (site / page).is_file()] == []


def test_both_variants_of_each_picture_are_on_the_site(site: Path) -> None:
    for name in ("how-it-works", "life-of-a-job", "delivery", "crash"):
        shown = [page.name for page in site.rglob("*.html") if f"{name}-dark.svg" in page.read_text("utf-8")]

        assert shown, name
        assert all((site / "_images" / f"{name}-{shade}.svg").is_file() for shade in ("light", "dark"))


def test_the_index_of_the_search_knows_lease(site: Path) -> None:
    assert re.search(r"\blease", (site / "searchindex.js").read_text("utf-8"))


def test_words_are_spelled_right() -> None:
    pages = [*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "deploy").rglob("*.y*ml")]
    words = ROOT / "tools" / "spelling_allow.txt"

    checked = subprocess.run(
        [sys.executable, "-m", "codespell_lib", "--ignore-words", str(words), *map(str, pages)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (checked.stdout, checked.returncode) == ("", 0)


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("[install](../README.md#install)", "[install](readme.md#install)"),
        ("[tasks](tasks.md)", "[tasks](tasks.md)"),
        ("[the shop](../examples/shop)", "the shop (`examples/shop`)"),
        ("[`a.py`](../src/a.py)", "`a.py`"),
        ("```\n[kept](../src/a.py)\n```", "```\n[kept](../src/a.py)\n```"),
        ("[out](https://example.org/a.md)", "[out](https://example.org/a.md)"),
    ],
)
def test_links_out_of_the_folder_lead_to_pages_or_become_text(text: str, becomes: str) -> None:
    assert docs_site.prepared(text, folder="docs") == becomes


def test_a_file_of_the_root_becomes_a_page_with_its_links() -> None:
    page = docs_site.prepared("<!-- file: CONTRIBUTING.md -->", folder="docs")

    assert "(glossary.md)" in page
    assert "(docs/" not in page
    assert not page.startswith("# ")
