"""The tasks of a harbor: their types, two tasks of one type, and the modules that define them."""

from __future__ import annotations

import importlib
import subprocess
import sys
import threading
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

from taskharbor import Harbor
from taskharbor.core.errors import UsageError
from taskharbor.task_registry import DuplicateTask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Write = Callable[[str, str], Path]

BG = """
    from taskharbor import Harbor

    harbor = Harbor("memory://")
    harbor.include("shop.mail", "shop.images")
"""
MAIL = """
    from shop.bg import harbor


    @harbor.task(queue="mail")
    def send(to: str) -> None: ...


    @harbor.schedule("0 2 * * *")
    @harbor.task
    def report() -> None: ...
"""
IMAGES = """
    from shop.bg import harbor


    @harbor.task(queue="images")
    def resize(file: str) -> None: ...
"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write modules of a package `shop` that can be imported until the test ends. The current folder is its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a reload must not read the code of an earlier second
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()

    def write(name: str, text: str) -> Path:
        file = tmp_path / "shop" / f"{name}.py"
        file.write_text(dedent(text))
        importlib.invalidate_caches()
        return file

    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
        del sys.modules[name]


@pytest.fixture
def shop(write: Write) -> Harbor:
    """The harbor of a package with three modules, none of which defines a task before another is imported."""
    write("bg", BG)
    write("mail", MAIL)
    write("images", IMAGES)
    harbor: Harbor = importlib.import_module("shop.bg").harbor
    return harbor


def test_two_functions_of_one_name_in_one_module_are_refused_with_both_places(write: Write) -> None:
    write(
        "mail",
        """
        from taskharbor import Harbor

        harbor = Harbor("memory://")

        @harbor.task
        def send(to: str) -> None: ...

        @harbor.task
        def send(to: str, copy: str) -> None: ...
        """,
    )

    with pytest.raises(DuplicateTask) as caught:
        importlib.import_module("shop.mail")

    assert str(caught.value) == (
        "two tasks have the type 'send': send at shop/mail.py:6 and send at shop/mail.py:9; jobs are stored with the"
        " type, so it must be unique: rename one of them, or set another type, as in @harbor.task(type='mail.send')"
    )


def test_two_functions_of_one_name_in_two_modules_are_refused_when_both_are_loaded(write: Write) -> None:
    write("bg", BG)
    write("mail", MAIL)
    write("images", IMAGES.replace("resize", "send"))

    with pytest.raises(DuplicateTask, match=r"'send': send at shop/mail\.py:5 and send at shop/images\.py:5") as caught:
        importlib.import_module("shop.bg").harbor.queues  # noqa: B018  the use of the property is tested

    assert str(caught.value).endswith(
        "rename one of them, set another type, as in @harbor.task(type='images.send'), or use Harbor(names='qualified')"
    )
    assert caught.value.__notes__ == ["while importing shop.images, which harbor.include(…) names at shop/bg.py:5"]


def test_two_classes_of_one_name_do_not_hide_a_duplicate(write: Write) -> None:
    one = """
        class Mail:
            @staticmethod
            @harbor.task
            def send() -> None: ...
    """
    write("mail", f"from taskharbor import Harbor\nharbor = Harbor()\n{dedent(one)}\n{dedent(one)}")

    with pytest.raises(DuplicateTask, match=r"Mail\.send at shop/mail\.py:5 and Mail\.send at shop/mail\.py:11"):
        importlib.import_module("shop.mail")


def test_a_module_that_is_reloaded_replaces_its_tasks_also_if_their_lines_moved(shop: Harbor, write: Write) -> None:
    before = shop.tasks["send"]
    mail = sys.modules["shop.mail"]

    importlib.reload(mail)
    write("mail", "\n\n\n" + dedent(MAIL))
    importlib.reload(mail)

    assert shop.tasks["send"] is mail.send
    assert shop.tasks["send"] is not before


def test_a_module_that_is_also_run_as_main_defines_the_same_tasks(shop: Harbor, write: Write) -> None:
    file = write("mail", MAIL)
    shop.tasks  # noqa: B018  imports the module

    exec(compile(file.read_text(), str(file), "exec"), {"__name__": "__main__", "__file__": str(file)})

    assert shop.tasks["send"].__module__ == "__main__"


def test_a_function_that_is_defined_again_in_a_session_replaces_its_task(quick: Harbor) -> None:
    names: dict[str, Any] = {"harbor": quick, "__name__": "__main__"}

    for cell in ("<cell 1>", "<cell 2>"):
        exec(compile("@harbor.task\ndef send() -> None: ...", cell, "exec"), names)

    assert quick.tasks["send"] is names["send"]


def test_included_modules_are_imported_when_the_tasks_are_needed(shop: Harbor) -> None:
    assert "shop.mail" not in sys.modules

    worker = shop.worker()

    assert worker.types == ("report", "resize", "send")
    assert shop.queues == ["default", "images", "mail"]
    assert list(shop.schedules) == ["report"]


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("first", ["shop.bg", "shop.mail", "shop.images"])
def test_modules_that_import_the_harbor_that_includes_them_can_be_imported_in_any_order(first: str) -> None:
    for name in ("shop.bg", "shop.mail", "shop.images"):
        sys.modules.pop(name, None)

    importlib.import_module(first)

    assert set(importlib.import_module("shop.bg").harbor.tasks) == {"send", "report", "resize"}


@pytest.mark.usefixtures("shop")
def test_an_enqueue_imports_no_included_module() -> None:
    importlib.import_module("shop.mail").send.enqueue("ada@example.org")

    assert "shop.images" not in sys.modules


def test_a_second_thread_waits_until_all_included_modules_are_imported(shop: Harbor, write: Write) -> None:
    write("mail", "from tests.test_task_registry import GATE\nGATE.wait(60)\n" + dedent(MAIL))
    GATE.clear()
    found: list[set[str]] = []
    threads = [threading.Thread(target=lambda: found.append(set(shop.tasks))) for _ in range(4)]

    for thread in threads:
        thread.start()
    GATE.set()
    for thread in threads:
        thread.join(60)

    assert found == 4 * [{"send", "report", "resize"}]


GATE = threading.Event()


def test_an_included_module_may_ask_for_the_tasks_while_it_is_imported(shop: Harbor, write: Write) -> None:
    write("mail", f"{dedent(MAIL)}\nKNOWN = set(harbor.tasks)\n")

    assert set(shop.tasks) == {"send", "report", "resize"}
    assert {"send", "report"} <= sys.modules["shop.mail"].KNOWN


def test_an_error_in_an_included_module_names_it_and_is_raised_again(shop: Harbor, write: Write) -> None:
    write("images", "1 / 0")

    for _ in range(2):
        with pytest.raises(ZeroDivisionError) as caught:
            shop.worker()
        assert caught.value.__notes__ == ["while importing shop.images, which harbor.include(…) names at shop/bg.py:5"]

    write("images", IMAGES)
    assert "resize" in shop.worker().types


def test_an_included_module_that_does_not_exist_is_refused_with_the_place_of_the_include(write: Write) -> None:
    write("bg", BG.replace("shop.mail", "shop.mial"))

    with pytest.raises(UsageError) as caught:
        importlib.import_module("shop.bg").harbor.tasks  # noqa: B018  the use of the property is tested

    assert str(caught.value) == (
        "include is 'shop.mial': there is no module 'shop.mial'; correct harbor.include(…) at shop/bg.py:5"
    )


@pytest.mark.parametrize("module", ["shop/mail.py", "", ".mail", 7, None])
def test_an_include_of_something_that_is_no_module_name_is_refused(quick: Harbor, module: Any) -> None:
    with pytest.raises(UsageError, match=r"include is .*: must be the dotted name of a module, such as 'shop.mail'"):
        quick.include(module)


def test_qualified_types_contain_the_module_and_the_class() -> None:
    harbor = Harbor("memory://", names="qualified")

    class Mail:
        @staticmethod
        @harbor.task
        def send() -> None: ...

    @harbor.task(type="own")
    def other() -> None: ...

    outer = "test_qualified_types_contain_the_module_and_the_class"
    assert sorted(harbor.tasks) == ["own", f"tests.test_task_registry.{outer}.Mail.send"]


def test_two_modules_may_have_a_task_of_one_name_if_types_are_qualified(write: Write) -> None:
    write("bg", BG.replace('"memory://"', '"memory://", names="qualified"'))
    write("mail", MAIL)
    write("images", IMAGES.replace("resize", "send"))

    assert set(importlib.import_module("shop.bg").harbor.tasks) == {
        "shop.mail.send",
        "shop.mail.report",
        "shop.images.send",
    }


def test_a_script_in_a_package_has_the_qualified_types_of_its_module(write: Write) -> None:
    harbor = Harbor("memory://", names="qualified")
    file = write("mail", "@harbor.task\ndef send(to: str) -> None: ...")
    names = {"__name__": "__main__", "__file__": str(file), "__spec__": None, "harbor": harbor}

    exec(compile(file.read_text(), str(file), "exec"), names)

    assert list(harbor.tasks) == ["shop.mail.send"]


@pytest.mark.parametrize("run", [["shop/mail.py"], ["-m", "shop.mail"], ["-c", "from shop.mail import *; show()"]])
def test_a_qualified_type_is_the_same_however_the_module_is_run(write: Write, run: list[str]) -> None:
    file = write(
        "mail",
        """
        from taskharbor import Harbor

        harbor = Harbor("memory://", names="qualified")

        @harbor.task
        def send(to: str) -> None: ...

        def show() -> None:
            print(*harbor.tasks)

        if __name__ == "__main__":
            show()
        """,
    )

    shown = subprocess.run(
        [sys.executable, *run], cwd=file.parent.parent, capture_output=True, text=True, timeout=60, check=True
    )

    assert shown.stdout == "shop.mail.send\n"


def test_an_unknown_way_to_name_tasks_is_refused() -> None:
    with pytest.raises(UsageError, match="names is 'dotted': must be one of 'function', 'qualified'"):
        Harbor("memory://", names="dotted")  # type: ignore[arg-type]
