"""Rules about the repository that no other tool checks."""

from __future__ import annotations

import ast
import re
import subprocess
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parents[2]
SOURCE: Final = ROOT / "src" / "taskharbor"
MODULES: Final = sorted(SOURCE.rglob("*.py"))

# Without their endings, so that this file does not contain them.
REGISTRY_HOSTS: Final = [f"{name}.org" for name in ("pypi", "pythonhosted", "npmjs")]
FOR_SIGNALS: Final = {
    ("service", name) for name in ("queue.Empty", "queue.SimpleQueue", "threading.Thread", "time", "time.monotonic")
}
IMPORTS_BY_NAME: Final = {"__import__", "import_module", "import_string", "load_module", "resolve_name"}
IMPORTERS: Final = {
    "__init__.py": "the modules of public names",
    "cli/app_loader.py": "the app, which the command line or a file names",
    "cli/main.py": "the modules of commands",
    "core/pydantic_models.py": "pydantic, if it is there",
    "integrations/django/__init__.py": "the modules of public names",
    "integrations/django/stores.py": "modules that the settings of Django name",
    "integrations/django/tasks_api.py": "Django's own tasks or their backport",
    "task_registry.py": "modules that the code of the user includes",
    "testing/conformance/__init__.py": "the modules of the kit",
    "testing/plugin.py": "the harbor, which the settings of pytest name",
}
"""Where modules are imported by a name, and who says which. It is never a store: its rows may come from anyone."""
MACHINE_PATH: Final = re.compile(r"(?<![\w.~-])/(?:home|root|Users|work)/\w")


def test_no_tracked_file_names_a_package_registry() -> None:
    found = [f"{path}: {host}" for path, text in tracked_texts() for host in REGISTRY_HOSTS if host in text]

    assert not found


def test_no_tracked_file_holds_an_absolute_path_of_a_machine() -> None:
    found = [f"{path}: {match[0]}" for path, text in tracked_texts() for match in MACHINE_PATH.finditer(text)]

    assert not found


def test_no_module_exceeds_the_line_limit() -> None:
    sizes = {shown(path): len(path.read_text("utf-8").splitlines()) for path in MODULES}

    assert not {name: size for name, size in sizes.items() if size > 450}


def test_no_function_exceeds_the_line_limit() -> None:
    sizes = {
        f"{shown(path)}:{node.lineno} {node.name}": body_lines(node)
        for path in MODULES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }

    assert not {name: size for name, size in sizes.items() if size > 40}


def test_every_package_exports_its_public_names_sorted_and_completely() -> None:
    packages = {path: exported(path) for path in SOURCE.rglob("__init__.py")}
    declared = {path: names for path, names in packages.items() if names is not None}

    assert not [shown(path) for path, names in declared.items() if names != sorted(names, key=export_order)]
    assert not {shown(path): missing for path, names in declared.items() if (missing := public_names(path) - {*names})}


def test_the_library_has_no_calls_that_execute_stored_bytes() -> None:
    found = [
        f"{shown(path)}:{line} {name}"
        for path in MODULES
        for line, name in names_used(parsed(path))
        if name.split(".")[0] in {"pickle", "marshal", "shelve"} or name in {"eval", "exec", "yaml.load"}
    ]

    assert not found


def test_modules_are_imported_by_name_only_where_no_store_chooses_it() -> None:
    found = {
        shown(path)
        for path in MODULES
        for _, name in names_used(parsed(path))
        if name.split(".")[-1] in IMPORTS_BY_NAME
    }

    assert {path.removeprefix("src/taskharbor/") for path in found} == IMPORTERS.keys()


def test_services_use_threads_waits_clocks_and_randomness_of_the_runtime_only() -> None:
    parts = [
        *(SOURCE / "worker").rglob("*.py"),
        *(SOURCE / "schedules").rglob("*.py"),
        *(SOURCE / f"{name}.py" for name in ("enqueuer", "janitor", "service")),
    ]
    found = [
        f"{shown(path)}:{line} {name}"
        for path in parts
        if path.exists()
        for line, name in names_used(parsed(path))
        if name.split(".")[0] in {"concurrent", "multiprocessing", "queue", "random", "threading", "time"}
        if (path.stem, name) not in FOR_SIGNALS
        if path.parent.name != "isolation"  # it waits for real processes, which no other runtime replaces
    ]

    assert not found


def test_every_skip_and_expected_failure_gives_its_reason() -> None:
    cases = [*(ROOT / "tests").rglob("*.py"), *(SOURCE / "testing").rglob("*.py")]
    found = [f"{shown(path)}:{line}" for path in cases for line in skips_without_reason(parsed(path))]

    assert not found


def tracked_texts() -> Iterator[tuple[str, str]]:
    for path in tracked_files():
        yield shown(path), path.read_text("utf-8", errors="replace")


def tracked_files() -> list[Path]:
    if (ROOT / ".git").exists():
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        paths = [ROOT / name for name in listing.split("\0") if name]
    else:
        generated = {".venv", ".cache", "__pycache__", "build", "dist"}
        paths = [path for path in ROOT.rglob("*") if not is_generated(path.relative_to(ROOT), generated)]
    return [path for path in paths if path.is_file()]  # git also lists deleted files


def is_generated(path: Path, generated: set[str]) -> bool:
    return any(part in generated or part.endswith(("_cache", ".egg-info")) for part in path.parts)


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def exported(path: Path) -> list[str] | None:
    """Return the literal `__all__`; a computed one (the kit's cases) is complete anyway."""
    for statement in parsed(path).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List(elts=names)):
                listed = [name.value for name in names if isinstance(name, ast.Constant)]
                return list(map(str, listed)) if len(listed) == len(names) else None
    return None


def export_order(name: str) -> tuple[bool, bool, list[str | int]]:
    """Sort as ruff does (RUF022): constants, then classes, then the rest; numbers by their value."""
    is_constant = name.isupper() and len(name) > 1
    parts = [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
    return not is_constant, not name[0].isupper(), parts


def public_names(path: Path) -> set[str]:
    names = chain.from_iterable(names_bound(statement) for statement in parsed(path).body)
    return {name for name in names if not name.startswith("_") and name != "*"}


def names_bound(statement: ast.stmt) -> list[str]:
    """Return the names that a statement defines in its module, without imports of third-party names."""
    match statement:
        case ast.ImportFrom(module=str() as module) if module.split(".")[0] == SOURCE.name:
            return [alias.asname or alias.name for alias in statement.names]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


def names_used(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=str() as module, names=names):
                yield from ((node.lineno, f"{module}.{alias.name}") for alias in names)
            case ast.Call(func=ast.Name() | ast.Attribute() as function):
                yield node.lineno, ast.unparse(function)


def skips_without_reason(tree: ast.Module) -> Iterator[int]:
    explained: set[ast.AST] = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call) and has_reason(node)}
    skip = re.compile(r"pytest\.(mark\.)?(skip|skipif|xfail|importorskip)")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and skip.fullmatch(ast.unparse(node)) and node not in explained:
            yield node.lineno


def has_reason(call: ast.Call) -> bool:
    by_name = [keyword.value for keyword in call.keywords if keyword.arg == "reason"]
    by_place = call.args[:1] if ast.unparse(call.func) in {"pytest.skip", "pytest.xfail", "pytest.mark.skip"} else []
    return any(not (isinstance(value, ast.Constant) and not value.value) for value in [*by_name, *by_place])


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), filename=str(path))


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
