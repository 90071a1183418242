"""Build the documentation site to build/docs: python -m tools.docs_site (or make docs).

It is also the extension of Sphinx that reads pages as this repository writes them: Markdown that is readable without
Sphinx. When a page is read,

- a comment ``<!-- generated: cli -->`` is replaced by that part of `tools.reference`;
- a comment ``<!-- file: CHANGELOG.md -->`` is replaced by that file of the repository, without its title;
- a ``<picture>`` with a dark and a light image becomes two images, of which the theme shows one;
- the README of a folder lists the other pages of its folder, and the index those pages that it does not name;
- pages of internals/ are left out of the search;
- links to files outside of docs/ lead to their page on the site, or become plain code.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import sys
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from sphinx.cmd.build import build_main

from tools.reference import PARTS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sphinx.application import Sphinx

ROOT: Final = Path(__file__).resolve().parent.parent
DOCS: Final = ROOT / "docs"
SITE: Final = ROOT / "build" / "docs"

PAGES_OF_FILES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "README.md": "readme.md",
        "CHANGELOG.md": "changelog.md",
        "CONTRIBUTING.md": "contributing.md",
        "SECURITY.md": "security.md",
    }
)
"""The page of the site for each file of the root that has one."""

UNNAMED: Final = "<!-- pages that no list names -->"
_GENERATED: Final = re.compile(r"<!-- generated: ([a-z-]+) -->")
_FILE: Final = re.compile(r"<!-- file: ([\w./-]+) -->")
_PICTURE: Final = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="(?P<dark>[^"]+)">\s*'
    r'<img src="(?P<light>[^"]+)"[^>]*?alt="(?P<alt>[^"]*)"[^>]*>\s*</picture>',
    re.DOTALL,
)
_LINK: Final = re.compile(r"\[(?P<text>[^\]\[]+)\]\((?P<path>[^)#\s:]+)(?P<anchor>#[\w-]+)?\)")
_CODE: Final = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def main(arguments: Sequence[str]) -> int:
    """Build the site anew; a warning is an error."""
    target = Path(arguments[0]) if arguments else SITE
    shutil.rmtree(target, ignore_errors=True)
    doctrees = target.parent / f"{target.name}.doctrees"
    options = ["-b", "html", "-E", "-W", "--keep-going", "-q", "-d", str(doctrees)]
    code = build_main([*options, str(DOCS), str(target)])
    shutil.rmtree(doctrees, ignore_errors=True)
    if code == 0:
        (target / ".buildinfo").unlink(missing_ok=True)
        (target / "llms.txt").write_text(list_of_pages(), "utf-8")
        print(f"built {target}/index.html")
    return code


def list_of_pages() -> str:
    """Return llms.txt: every page of the lists of the index with its title and its first paragraph, for programs."""
    index = (DOCS / "index.md").read_text("utf-8")
    lines = ["# TaskHarbor\n\n> Durable background jobs for Python, stored in your own database.\n"]
    for caption, listed in re.findall(r":caption: (.+)\n:hidden:\n\n((?:.+\n)+?)```", index):
        pages = [
            page for line in listed.split("\n") for page in ([line] if line != UNNAMED else _unnamed(index)) if page
        ]
        lines += [f"\n## {caption}\n\n", *map(_line_of_list, pages)]
    return "".join(lines)


def _line_of_list(page: str) -> str:
    title, _, rest = (DOCS / f"{page}.md").read_text("utf-8").removeprefix("# ").partition("\n")
    first = " ".join(re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", rest.strip().split("\n\n")[0]).split())
    return f"- [{title}]({page}.html): {first}\n"


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _read(_app: Sphinx, page: str, source: list[str]) -> None:
    text = prepared(source[0], folder=posixpath.dirname(f"docs/{page}"))
    if page == "index":
        text = text.replace(UNNAMED, "\n".join(_unnamed(text)))
    elif page.endswith("/README"):
        text += "\n```{toctree}\n:hidden:\n:glob:\n\n[0-9a-z]*\n```\n"
    # Records of decisions are no answer to a reader's search, and there are more of them than of other pages.
    source[0] = f"---\nnosearch: true\n---\n\n{text}" if page.startswith("internals/") else text


def _unnamed(index: str) -> list[str]:
    """Return the pages of docs/ that no list of *index* names, so that a new page is on the site at once."""
    lists = {line for block in _CODE.findall(index) for line in block.splitlines()}
    return [page.stem for page in sorted(DOCS.glob("*.md")) if page.stem not in lists | {"index"}]


def prepared(text: str, *, folder: str) -> str:
    """Return the Markdown of a page in *folder* of the repository as Sphinx must read it."""
    text = _GENERATED.sub(lambda found: PARTS[found[1]](), text)
    text = _FILE.sub(lambda found: _file(found[1], folder), text)
    text = _PICTURE.sub(lambda found: _two_images(**found.groupdict()), text)
    return _outside_of_code(text, lambda part: _LINK.sub(lambda found: _link(found, folder), part))


def _file(path: str, folder: str) -> str:
    """Return the text of a file without its title, with links as they must be in *folder*."""
    text = (ROOT / path).read_text("utf-8").partition("\n")[2]
    home = posixpath.dirname(path)

    def moved(found: re.Match[str]) -> str:
        target = posixpath.relpath(posixpath.join(home, found["path"]), folder)
        return f"[{found['text']}]({target}{found['anchor'] or ''})"

    text = re.sub(r'(src|srcset)="(?!https?:)([^"]+)"', lambda found: _source(found, home, folder), text)
    return _outside_of_code(text, lambda part: _LINK.sub(moved, part))


def _source(found: re.Match[str], home: str, folder: str) -> str:
    return f'{found[1]}="{posixpath.relpath(posixpath.join(home, found[2]), folder)}"'


def _two_images(dark: str, light: str, alt: str) -> str:
    alt = " ".join(alt.split())
    return "\n".join(
        f"```{{image}} {path}\n:alt: {alt}\n:class: only-{theme}\n```\n"
        for theme, path in (("light", light), ("dark", dark))
    )


def _link(found: re.Match[str], folder: str) -> str:
    target = posixpath.normpath(posixpath.join(folder, found["path"]))
    if target.startswith("docs/") or found["path"].startswith("/"):
        return found[0]
    if target in PAGES_OF_FILES:
        page = posixpath.relpath(f"docs/{PAGES_OF_FILES[target]}", folder)
        return f"[{found['text']}]({page}{found['anchor'] or ''})"
    return found["text"] if found["text"].startswith("`") else f"{found['text']} (`{target}`)"


def _outside_of_code(text: str, change: Callable[[str], str]) -> str:
    """Apply *change* to the parts of a page that are not in a block of code."""
    parts, at = [], 0
    for block in _CODE.finditer(text):
        parts += [change(text[at : block.start()]), block[0]]
        at = block.end()
    return "".join([*parts, change(text[at:])])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
