"""Run every benchmark and write its figures to docs/figures/<benchmark>.json.

A benchmark is a module of benchmarks/ with a function ``figures() -> dict[str, object]``.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import platform
import sys
import traceback
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
FIGURES: Final = ROOT / "docs" / "figures"


def main() -> int:
    names = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if not path.stem.startswith("_"))
    outcomes = [prove(name) for name in names]
    return 0 if all(outcomes) else 1


def prove(name: str) -> bool:
    target = FIGURES / f"{name}.json"
    target.unlink(missing_ok=True)  # no figures must remain from an earlier run if this one fails
    try:
        figures = measure_in_process(name)
        text = json.dumps({"figures": figures, "machine": machine()}, indent=2, sort_keys=True)
    except Exception:  # noqa: BLE001 - a failed benchmark must not stop the others
        traceback.print_exc()
        print(f"FAILED   {name}", flush=True)
        return False
    FIGURES.mkdir(parents=True, exist_ok=True)
    target.write_text(text + "\n", encoding="utf-8")
    print(f"written  {target.relative_to(ROOT)}", flush=True)
    return True


def measure_in_process(name: str) -> dict[str, object]:
    """Return the figures of one benchmark, measured in a new process."""
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(measure, name).result()


def measure(name: str) -> dict[str, object]:
    figures: dict[str, object] = importlib.import_module(f"benchmarks.{name}").figures()
    return figures


def machine() -> dict[str, object]:
    return {
        "cores": os.cpu_count(),
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    sys.exit(main())
