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


def test_a_harbor_is_found_beside_the_app_of_a_web_framework(tmp_path: Path) -> None:
    framework = "class Web:\n    def __call__(self, scope): ...\napp = Web()\n"
    (tmp_path / "shop.py").write_text(framework + HARBOR.replace("harbor =", "jobs =").replace("@harbor", "@jobs"))

    assert types_of("shop.py") == ("greet", "hello")
    with pytest.raises(AppNotLoaded, match=r"shop\.py:app: it is of type Web; name a Harbor"):
        load_app("shop.py:app")


def test_a_task_is_not_taken_for_an_app(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(HARBOR)

    with pytest.raises(AppNotLoaded, match=r"shop\.py:greet: it is of type Task; name a Harbor"):
        load_app("shop.py:greet")


def test_of_two_harbors_one_must_be_named(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("from taskharbor import Harbor\ndef f(): ...\none = Harbor()\ntwo = Harbor()\n")

    with pytest.raises(AppNotLoaded, match=r"name an attribute, such as shop.py:one \(it has one, two, f\)"):
        load_app("shop.py")


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
            r"cannot load shop.py: shop.py:1: ZeroDivisionError: division by zero; .* shows .*",
        ),
        ("\n1 / 0", "shop", r"cannot load shop: shop.py:2: ZeroDivisionError: division by zero; .* shows .*"),
        (
            "def f(:",
            "shop.py",
            r"cannot load shop.py: shop.py:1: SyntaxError: invalid syntax; .* shows .*",
        ),
        (
            "import nowhere",
            "shop.py",
            r"cannot load shop.py: shop.py:1: .*No module named 'nowhere'; install .*",
        ),
        (
            "raise SystemExit",
            "shop",
            r"cannot load shop: importing it ends the process at shop.py:1; move that .*",
        ),
        ("def app(worker): 1 / 0", "shop.py", r"cannot load shop.py: shop.py:1: ZeroDivisionError: .*; .*"),
        ("app = {'a': lambda: 1}", "shop.py", r"cannot load shop.py: .*a handler takes \(job\) or \(job, ctx\).*"),
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


def test_an_app_that_its_modules_import_under_another_name_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "outer").mkdir()
    _write_package(
        tmp_path / "outer",
        {name: text.replace("pk.", "outer.pk.") for name, text in PACKAGE.items()},
    )

    assert types_of("outer.pk.bg") == ("send",)
    ended = run(cli, ["worker", "outer/pk/bg.py", "--url", "memory://"])

    assert ended == ExitCode.APP_IMPORT_FAILED
    assert capsys.readouterr().err == (
        "error: cannot load outer/pk/bg.py: its module is loaded twice, as pk.bg and as outer.pk.bg, so there are two"
        " harbors; name it as your modules import it: outer.pk.bg\n"
    )


PACKAGE = {
    "bg": "from taskharbor import Harbor\nharbor = Harbor()\nharbor.include('pk.mail')\n",
    "mail": "from pk.bg import harbor\n\n\n@harbor.task\ndef send(to: str) -> None: ...\n",
}


@pytest.mark.parametrize("app", ["pk.bg:harbor", "pk/bg.py", "pk.mail:harbor", "pk/mail.py"])
def test_an_app_in_a_package_gets_the_tasks_of_the_modules_that_it_includes(app: str, tmp_path: Path) -> None:
    _write_package(tmp_path, PACKAGE)

    assert types_of(app) == ("send",)


@pytest.mark.parametrize(
    ("modules", "line"),
    [
        (
            {"bg": "from taskharbor import Harbor\nharbor = Harbor()\n"},
            r'the harbor has no tasks; import the modules .* as in harbor\.include\("pk\.mail"\), or put .*',
        ),
        (
            {"mail": PACKAGE["mail"] + "\n\n@harbor.task\ndef send() -> None: ...\n"},
            r"pk/mail\.py:8: two tasks have the type 'send': send at pk/mail\.py:4 and send at pk/mail\.py:8; .*",
        ),
        (
            {"mail": PACKAGE["mail"].replace("to: str", "to")},
            r"pk/mail\.py:4: parameter 'to' is not annotated: .*, while importing pk\.mail, which .* pk/bg\.py:3",
        ),
        (
            {"mail": PACKAGE["mail"].replace("to: str", "to: 'Address'")},
            r"annotation of send is unresolved: name 'Address' is not defined; .*, in task send at pk/mail\.py:4",
        ),
        (
            {"mail": "import json\n\njson.loads('{')\n"},
            r"pk/mail\.py:3: json.decoder.JSONDecodeError: .*, while .*; .* shows the traceback",
        ),
        (
            {"mail": "import nowhere"},
            r"pk/mail\.py:1: .*No module named 'nowhere', while importing .*; install .*",
        ),
        (
            {"bg": PACKAGE["bg"].replace("pk.mail", "pk.mial")},
            r"include is 'pk\.mial': there is no module 'pk\.mial'; correct .* at pk/bg\.py:3",
        ),
    ],
    ids=[
        "no task",
        "two of one name",
        "not annotated",
        "not defined",
        "error in a library",
        "no such library",
        "no such module",
    ],
)
def test_an_error_names_the_line_of_the_users_module(
    modules: dict[str, str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _write_package(tmp_path, PACKAGE | modules)

    ended = run(cli, ["worker", "pk.bg:harbor", "--url", "memory://"])

    err = capsys.readouterr().err
    assert ended == ExitCode.APP_IMPORT_FAILED
    assert re.fullmatch(rf"error: cannot load pk\.bg:harbor: {line}\n", err), err


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


def _write_package(folder: Path, modules: dict[str, str]) -> None:
    (folder / "pk").mkdir()
    for name, text in {"__init__": "", **modules}.items():
        (folder / "pk" / f"{name}.py").write_text(text)


def types_of(app: str) -> tuple[str, ...]:
    worker = Worker(MemoryDriver())
    load_app(app)(worker)
    return worker.types


def test_a_janitor_uses_the_store_of_the_app_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.py").write_text("from taskharbor import Harbor\n\nharbor = Harbor('memory://')\n", "utf-8")
    monkeypatch.delenv("TASKHARBOR_URL", raising=False)

    assert run(cli, ["janitor"]) == ExitCode.USAGE
    assert "memory:// is the memory of a single process" in capsys.readouterr().err
