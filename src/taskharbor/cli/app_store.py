"""Finds out which store an app names, in a process of its own.

The development server must not import the app itself: it could not import it again after a change.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Final

IMPORT_TIMEOUT_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AppStore:
    """The store that an app names: a URL, a driver of its own, or neither."""

    url: str | None = None
    is_driver: bool = False


def find_app_store(app: str) -> AppStore | None:
    """Return the store of *app*. If the app cannot be loaded, print why and return None."""
    command = [sys.executable, "-m", __name__, app]
    try:
        # In its own process group: Ctrl-C must reach only the parent.
        done = subprocess.run(  # noqa: S603  fixed command
            command, stdout=subprocess.PIPE, timeout=IMPORT_TIMEOUT_SECONDS, check=False, process_group=0
        )
    except subprocess.TimeoutExpired:
        from taskharbor.cli.render import echo_status

        echo_status(f"error: importing {app} takes longer than {IMPORT_TIMEOUT_SECONDS:g} s")
        return None
    return AppStore(**json.loads(done.stdout)) if done.returncode == 0 else None


def main(app: str) -> int:
    """Load *app*, and print its store to stdout as JSON. What the app itself prints goes to stderr."""
    from taskharbor.cli.app_loader import load_app
    from taskharbor.cli.errors import report
    from taskharbor.cli.store import check_shared

    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as answer:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        try:
            harbor = load_app(app).harbor
            store = None if harbor is None else harbor.source
            found = AppStore(url=store) if store is None or isinstance(store, str) else AppStore(is_driver=True)
            check_shared(found.url)
        except Exception as error:  # noqa: BLE001  print one line instead of a traceback
            return report(error, as_json=False, debug=False)
        json.dump(asdict(found), answer)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
