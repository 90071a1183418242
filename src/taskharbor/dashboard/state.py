"""The state of one mounted dashboard: templates, static files, sessions, cached reads, and the pages shown last."""

from __future__ import annotations

import hashlib
import shlex
import time
from collections import OrderedDict
from dataclasses import dataclass
from importlib.resources import files
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from taskharbor.api.problems import not_found
from taskharbor.core.states import Status
from taskharbor.core.text import plural
from taskharbor.dashboard import charts, texts
from taskharbor.views import iso_time

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taskharbor.dashboard.queries import Reads
    from taskharbor.dashboard.routing import UiRequest
    from taskharbor.dashboard.sessions import Authorize, Sessions
    from taskharbor.dashboard.shell import Shell

MAX_LAST_PAGES: Final = 100
MAX_PAGE_CHARS: Final = 200_000
PACKAGE: Final = "taskharbor.dashboard"
TYPES: Final = MappingProxyType({"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"})


class Assets:
    """The static files. Their address contains a hash of all of them, so that browsers may keep them."""

    def __init__(self) -> None:
        folder = files(PACKAGE) / "static"
        self.files = {
            each.name: (each.read_bytes(), TYPES[each.name.rpartition(".")[2]])
            for each in folder.iterdir()
            if each.name.rpartition(".")[2] in TYPES
        }
        whole = hashlib.sha256()
        for name, (content, _) in sorted(self.files.items()):
            whole.update(name.encode() + b"\0" + content + b"\0")
        self.mark = whole.hexdigest()[:12]


class LastPages:
    """The contents of the pages that were shown last, for the time when the store does not answer."""

    def __init__(self) -> None:
        self._pages: OrderedDict[tuple[str, str, str], tuple[float, str]] = OrderedDict()

    def put(self, request: UiRequest, text: str) -> None:
        """Keep the main part of a page for the same user and address."""
        main = text.partition("<main")[2].partition(">")[2].rpartition("</main>")[0]
        if 0 < len(main) <= MAX_PAGE_CHARS:
            self._pages[_address(request)] = (time.monotonic(), main)
            self._pages.move_to_end(_address(request))
        while len(self._pages) > MAX_LAST_PAGES:
            self._pages.popitem(last=False)

    def get(self, request: UiRequest) -> tuple[Markup | str, float]:
        """Return the main part that was shown last, and its age in seconds."""
        at, main = self._pages.get(_address(request), (0.0, ""))
        main = main.replace("<h1", "<h2").replace("</h1>", "</h2>")
        return Markup(main), time.monotonic() - at  # noqa: S704  rendered by our own templates


def _address(request: UiRequest) -> tuple[str, str, str]:
    return request.caller.name, request.session_text or "", str(request.url)


@dataclass(frozen=True, slots=True, kw_only=True)
class UiState:
    """What the requests of one dashboard share."""

    environment: Environment
    assets: Assets
    sessions: Sessions
    reads: Reads
    label: str | None
    read_only: bool
    authorize: Authorize | None
    paths: frozenset[str]
    """The paths of pages without parameters, below the dashboard. The navigation shows those that exist."""
    last_pages: LastPages

    def render(self, name: str, shell: Shell, context: Mapping[str, Any], *, part: str | None = None) -> str:
        """Return a template as text: all of it, or the block *part*."""
        template = self.environment.get_template(name)
        values = {**context, "ui": shell}
        values["m"] = self.environment.get_template("_macros.html").make_module(values)
        if part is None:
            return template.render(values)
        if part not in template.blocks:
            raise not_found("part", part)
        scope = template.new_context(values)
        return "".join(template.blocks[part](scope))


def make_environment() -> Environment:
    """Return the environment of the templates. Values are escaped, and an unknown name is an error."""
    environment = Environment(
        loader=PackageLoader(PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "states": {each.value: texts.STATES[each] for each in Status},
        "heads_of": charts.heads_of,
        "sums_of": charts.sums_of,
        "sparkline": charts.sparkline,
    }
    environment.filters |= {
        "shell": shlex.quote,
        "span": texts.span,
        "number": texts.number,
        "plural": plural,
        "utc": texts.utc,
        "iso": iso_time,
        "ago": texts.ago,
        "capitalize_first": texts.capitalize_first,
        "short_name": texts.short_name,
    }
    return environment
