from __future__ import annotations

import ast
import doctest
import json
import pkgutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest

import taskharbor

SOURCE: Final = Path(taskharbor.__file__).parent
TREE: Final = ast.parse((SOURCE / "__init__.py").read_text("utf-8"))


def imports_for_type_checkers() -> dict[str, str]:
    """Return the module of every name, as a type checker sees it."""
    [block] = [node for node in TREE.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    return {
        alias.asname or alias.name: statement.module or ""
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }


def imports_when_asked_for() -> dict[str, str]:
    """Return the module of every name at run time."""
    return {name: f"taskharbor.{home}" for name, home in taskharbor._HOMES.items()}  # noqa: SLF001  the table under test


def printed_by(script: str) -> list[str]:
    """Run *script* in a new process, and return the JSON it prints."""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=30)
    names: list[str] = json.loads(done.stdout)
    return names


@pytest.mark.parametrize("name", taskharbor.__all__)
def test_every_exported_name_can_be_imported(name: str) -> None:
    assert getattr(taskharbor, name) is not None


def test_every_exported_name_has_a_home_and_every_home_is_exported() -> None:
    assert {*imports_when_asked_for(), "__version__"} == {*taskharbor.__all__, "PostgresDriver"}


def test_a_star_import_needs_no_extra() -> None:
    assert printed_by("import sys; sys.modules['psycopg'] = None\nfrom taskharbor import *\nprint('[]')") == []


def test_a_type_checker_sees_what_is_there_at_run_time() -> None:
    assert imports_for_type_checkers() == imports_when_asked_for()


@pytest.mark.parametrize(("name", "home"), imports_when_asked_for().items(), ids=imports_when_asked_for())
def test_a_name_is_imported_from_where_it_is_defined(name: str, home: str) -> None:
    value = getattr(taskharbor, name)

    assert value is getattr(import_module(home), name)


def test_a_star_import_imports_every_exported_name() -> None:
    names = printed_by(
        "import json\n"
        "from taskharbor import *\n"
        "import taskharbor\n"
        "print(json.dumps([name for name in taskharbor.__all__ if name in globals()]))"
    )

    assert names == taskharbor.__all__


@pytest.mark.parametrize("name", ["Habor", "core.Status", ""])
def test_an_unknown_attribute_raises_an_attribute_error_with_its_name(name: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'taskharbor' has no attribute '{name}'"):
        getattr(taskharbor, name)


def test_an_unknown_name_cannot_be_imported() -> None:
    with pytest.raises(ImportError, match="cannot import name 'Habor'"):
        exec("from taskharbor import Habor")


def test_importing_the_package_imports_no_submodules_or_heavy_modules() -> None:
    loaded = printed_by("import json, sys, taskharbor; print(json.dumps([*sys.modules]))")

    ours = {name for name in loaded if name.split(".")[0] == "taskharbor"}
    heavy = {
        "asyncio",
        "click",
        "cronsim",
        "cryptography",
        "dataclasses",
        "hashlib",
        "logging",
        "rich",
        "socket",
        "ssl",
    }
    assert ours == {"taskharbor", "taskharbor._version"}
    assert heavy.isdisjoint(loaded)


def test_a_client_on_the_memory_store_needs_the_standard_library_only() -> None:
    loaded = printed_by(
        "import json, sys\n"
        "before = {*sys.modules}\n"
        "from taskharbor import *\n"
        "print(json.dumps(sorted({name.split('.')[0] for name in {*sys.modules} - before})))"
    )

    assert {*loaded} - sys.stdlib_module_names == {"taskharbor"}


def modules_with_examples() -> list[str]:
    # The examples of the command line are commands; its own tests run them.
    modules = pkgutil.walk_packages([str(SOURCE)], prefix="taskharbor.", onerror=lambda _: None)
    names = [module.name for module in modules if module.name.split(".")[1] != "cli"]
    return [name for name in names if ">>> " in source_of(name)]


def source_of(name: str) -> str:
    path = SOURCE.parent.joinpath(*name.split("."))
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text("utf-8")


def test_there_are_examples_to_run() -> None:
    assert {"taskharbor.client", "taskharbor.core.retry", "taskharbor.core.states"} <= {*modules_with_examples()}


@pytest.mark.parametrize("name", modules_with_examples())
def test_the_examples_in_the_documentation_hold(name: str) -> None:
    try:
        module = import_module(name)
    except ImportError as missing:
        pytest.skip(f"an extra is not installed: {missing}")

    failed, attempted = doctest.testmod(module)

    assert attempted
    assert not failed
