"""Check the words of the project: identifiers, comments, docstrings, strings and Markdown.

python -m tools.prose [--count]     fail on what the house style bans; or print how often each occurs

`docs/glossary.md` has the words to use. Exceptions are in ``prose_allow.toml``, each with its reason.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter, defaultdict
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT: Final = Path(__file__).resolve().parent.parent
ALLOWED: Final = Path(__file__).with_name("prose_allow.toml")
SUFFIXES: Final = {".html", ".py", ".md", ".sql"}

INSTEAD: Final = {
    r"shall": "must, may or will",
    r"nobody|somebody|whoever": "the actor",
    r"rings?|rang|rung|ringing|bells?|doorbells?": "notify",
    r"ears?|hears?|heard|hearing|deaf": "listener, receive",
    r"hang up|hangs up|hung up": "disconnect",
    r"in hand": "running",
    r"tells?|told|telling": "return, report, log",
    r"giv(?:e|es|en|ing) (?:it |them )?back|gave back": "release",
    r"bring(?:s|ing)? back|brought back": "reclaim",
    r"go(?:es)? on": "continue, retry",
    r"spent": "exhausted",
    r"call(?:s|ed|ing)? off": "cancel",
    r"for ever": "until stopped",
    r"mend(?:s|ed|ing)?": "fix",
    r"bites?": "batch",
    r"in vain|all the same|the world|strangers?": "rewrite the sentence",
}
_BANNED: Final = {re.compile(rf"\b(?:{words})\b"): instead for words, instead in INSTEAD.items()}
_ANY_BANNED: Final = re.compile(rf"\b(?:{'|'.join(INSTEAD)})\b")
_PARTS: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


@dataclass(frozen=True, slots=True)
class Finding:
    path: str
    line: int
    word: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.word!r}: {self.instead}"


def main(arguments: Sequence[str]) -> int:
    found = [each for each in findings() if not is_allowed(each)]
    if "--count" in arguments:
        for word, count in Counter(each.word for each in found).most_common():
            print(f"{count:>6}  {word}")
        print(f"{len(found):>6}  in all")
        return 0
    for each in found:
        print(each)
    return 1 if found else 0


def findings() -> Iterator[Finding]:
    homes: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
    for file in _files():
        path, source = file.relative_to(ROOT).as_posix(), file.read_text("utf-8")
        texts = python_texts(source) if file.suffix == ".py" else _plain_texts(source)
        yield from (Finding(path, line, word, instead) for line, word, instead in banned_in(texts))
        if file.suffix == ".py":
            yield from (Finding(path, *each) for each in without_unit(source))
            if path.startswith("src/"):
                for node in ast.parse(source).body:
                    if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                        homes[node.name].append((path, node.lineno))
    for name, places in homes.items():
        yield from (Finding(*place, name, f"{len(places)} public classes have this name") for place in places[1:])


def is_allowed(found: Finding) -> bool:
    return any(
        fnmatch(found.path, each["path"]) and ("*" in each["words"] or found.word in each["words"])
        for each in _allowed()
    )


def _allowed() -> list[dict[str, Any]]:
    allowed: list[dict[str, Any]] = tomllib.loads(ALLOWED.read_text("utf-8"))["allow"]
    return allowed


def _files() -> list[Path]:
    folders = ("src", "tests", "benchmarks", "tools", "examples", "docs")
    inside = [file for folder in folders for file in (ROOT / folder).rglob("*") if file.suffix in SUFFIXES]
    return sorted([*inside, *ROOT.glob("*.md")])


def python_texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield the words of each identifier, string and block of comments, with the line that each begins at."""
    comment: list[str] = []
    begins = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        line = token.start[0]
        if token.type == tokenize.COMMENT:
            if comment and line != last + 1:
                yield begins, " ".join(comment)
                comment.clear()
            begins, last = (line, line) if not comment else (begins, line)
            comment.append(token.string.lstrip("# "))
        elif token.type == tokenize.NAME:
            yield line, " ".join(_PARTS.findall(token.string))
        elif token.type == tokenize.STRING:
            yield line, token.string
    if comment:
        yield begins, " ".join(comment)


def _plain_texts(source: str) -> Iterator[tuple[int, str]]:
    yield 1, source


def banned_in(texts: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str, str]]:
    for begins, text in texts:
        folded = re.sub(r"[\s_]", " ", text).lower()
        if not _ANY_BANNED.search(folded):  # one search of nearly every text, not one for each pattern
            continue
        for pattern, instead in _BANNED.items():
            for found in pattern.finditer(folded):
                yield begins + text.count("\n", 0, found.start()), found[0], instead


def without_unit(source: str) -> Iterator[tuple[int, str, str]]:
    """Yield constants that are numbers of seconds, as their comment says, and whose name does not say so."""
    lines = source.splitlines()
    for node in ast.parse(source).body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=float())):
                if "second" in lines[node.lineno - 1].partition("#")[2] and not name.endswith("_SECONDS"):
                    yield node.lineno, name, "a number of seconds ends in _SECONDS"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
