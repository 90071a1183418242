"""The forms of an app that `taskharbor worker APP` accepts, and its errors."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING

import pytest

from taskharbor import MemoryDriver, Worker
from taskharbor.cli.app_loader import load_app
from taskharbor.cli.errors import AppNotLoaded
from taskharbor.cli.main import ExitCode, cli, run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("_in_a_folder", "_nothing_starts")

HANDLERS = "handlers = {'greet': lambda job: None}\n"
HARBOR = """
from taskharbor import Harbor
harbor = Harbor()
@harbor.task(aliases=("hello",))
def greet() -> None: ...
"""
REGISTER = "def register(worker):\n    worker.register('part', lambda job: None)\n"


@pytest.mark.parametrize("app", ["shop.py", "shop.py:handlers", "shop", "shop:handlers", "./shop.py"])
def test_an_app_is_a_file_or_a_module_with_or_without_a_name_in_it(app: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(HANDLERS)

    assert types_of(app) == ("greet",)


def test_an_app_may_be_a_function_that_registers_handlers(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(REGISTER)

    assert types_of("shop.py") == ("part",)


def test_an_app_may_be_inside_of_something(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("class Mail:\n    jobs = {'mail.send': print}\n")

    assert types_of("shop:Mail.jobs") == ("mail.send",)


def test_an_app_may_be_a_harbor(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(HARBOR)

    assert types_of("shop.py") == ("greet", "hello")


def test_without_an_attribute_the_first_known_one_is_used(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(HANDLERS + REGISTER)

    assert types_of("shop.py") == ("part",)


def test_a_file_may_import_what_stands_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "deep"
    folder.mkdir()
    (folder / "beside.py").write_text(HANDLERS)
    (folder / "shop.py").write_text("from beside import handlers\n")

    assert types_of("deep/shop.py") == ("greet",)


def test_an_app_file_does_not_replace_a_standard_module(tmp_path: Path) -> None:
    (tmp_path / "queue.py").write_text(HANDLERS)

    assert types_of("queue.py") == ("greet",)
    assert sys.modules.get("queue") is not sys.modules["queue_app"]


@pytest.mark.parametrize(
    ("text", "app", "line"),
    [
        (HANDLERS, "shpo.py", "cannot load shpo.py: file not found; did you mean shop.py\\?"),
        (HANDLERS, "shop.py:handelrs", "cannot load shop.py: it has no 'handelrs'; did you mean shop.py:handlers\\?"),
        (HANDLERS, "shop:app.jobs", r"cannot load shop: it has no 'app.jobs'; .* \(it has handlers\)"),
        (HANDLERS, "wholesale", "cannot load wholesale: no module 'wholesale' in .*; run this in the folder .*"),
        (HANDLERS, "shop.mail", "cannot load shop.mail: no module 'shop.mail' in .*; run this in the folder .*"),
        (
            "jobs = {}",
            "shop.py",
            r"cannot load shop.py: it has none of app, harbor, register, handlers; .* \(it has jobs\)",
        ),
        ("app = 7", "shop.py", "cannot load shop.py: it is of type int; name a Harbor, a mapping .*"),
        ("handlers = {}", "shop.py", "cannot load shop.py: it registers no handler; call worker.register.*"),
        (
            "1 / 0",
            "shop.py",
            r"cannot load shop.py: ZeroDivisionError: division by zero \(shop.py, line 1\); .* shows .*",
        ),
        ("\n1 / 0", "shop", r"cannot load shop: ZeroDivisionError: division by zero \(shop.py, line 2\); .* shows .*"),
        ("def f(:", "shop.py", r"cannot load shop.py: SyntaxError: invalid syntax \(shop.py, line 1\); .* shows where"),
        (
            "import nowhere",
            "shop.py",
            r"cannot load shop.py: .*No module named 'nowhere' \(shop.py, line 1\); install .*",
        ),
        (
            "raise SystemExit",
            "shop",
            r"cannot load shop: importing it ends the process \(shop.py, line 1\); move that .*",
        ),
        ("def app(worker): 1 / 0", "shop.py", r"cannot load shop.py: ZeroDivisionError: .* \(shop.py, line 1\); .*"),
        ("app = {'a': lambda: 1}", "shop.py", r"cannot load shop.py: .*a handler takes \(job\) or \(job, ctx\).*; .*"),
    ],
)
def test_an_app_that_cannot_be_loaded_ends_with_10(
    text: str, app: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shop.py").write_text(text)

    ended = run(cli, ["worker", app, "--url", "memory://"])

    out, err = capsys.readouterr()
    assert ended == ExitCode.APP_IMPORT_FAILED
    assert out == ""
    assert re.fullmatch(f"error: {line}\n", err), err


def test_as_json_an_app_that_cannot_be_loaded_is_an_object_with_a_stable_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ended = run(cli, ["worker", "shop.py", "--url", "memory://", "--json"])

    assert ended == ExitCode.APP_IMPORT_FAILED
    assert json.loads(capsys.readouterr().err)["error"]["code"] == "app-not-loaded"


def test_debug_shows_where_the_users_code_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "shop.py").write_text("def find():\n    raise LookupError('no stock')\nfind()")

    run(cli, ["--debug", "worker", "shop.py", "--url", "memory://"])

    assert "in find\n" in capsys.readouterr().err


def test_a_file_that_failed_is_not_taken_for_imported(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("1 / 0")

    with pytest.raises(AppNotLoaded):
        load_app("shop.py")

    assert "shop" not in sys.modules


def types_of(app: str) -> tuple[str, ...]:
    worker = Worker(MemoryDriver())
    load_app(app)(worker)
    return worker.types
