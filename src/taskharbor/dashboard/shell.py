"""What every page shows: navigation, strips, the user, and the choices of the browser."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from taskharbor._version import __version__
from taskharbor.core.states import Status
from taskharbor.core.text import plural
from taskharbor.dashboard.texts import short_name, span
from taskharbor.queues import MAX_COUNT_AGE
from taskharbor.workers import WorkerState, state_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taskharbor.dashboard.routing import UiRequest

THEMES: Final = ("system", "light", "dark")
TIMES: Final = ("ago", "utc", "local")
DENSITIES: Final = ("normal", "compact")
MAX_SKEW: Final = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Look:
    """What the browser has chosen: theme, form of times, density of rows. Stored in a cookie of its own."""

    theme: str = "system"
    times: str = "ago"
    density: str = "normal"

    @classmethod
    def parse(cls, text: str) -> Look:
        """Return the choices of a cookie's value; unknown ones are replaced by the first of each kind."""
        given = text.split(".")
        values = [next((each for each in given if each in known), known[0]) for known in (THEMES, TIMES, DENSITIES)]
        return cls(*values)

    def __str__(self) -> str:
        return f"{self.theme}.{self.times}.{self.density}"


@dataclass(frozen=True, slots=True)
class NavEntry:
    """An entry of the navigation. *badge* is a number or a mark; *hint* says what it means."""

    path: str
    title: str
    key: str
    badge: str = ""
    hint: str = ""
    scope: str = "jobs:read"


NAVIGATION: Final = (
    NavEntry("/", "Overview", "o"),
    NavEntry("/jobs", "Jobs", "j"),
    NavEntry("/dead", "Dead letters", "d"),
    NavEntry("/queues", "Queues", "q"),
    NavEntry("/schedules", "Schedules", "s"),
    NavEntry("/workers", "Workers", "w"),
    NavEntry("/operations", "Operations", "p"),
    NavEntry("/health", "Health", "h"),
    NavEntry("/audit", "Audit", "a", scope="admin"),
    NavEntry("/keys", "Keys", "k", scope="admin"),
)


@dataclass(frozen=True, kw_only=True)
class Shell:
    """The context that every template has, as ``ui``."""

    request: UiRequest
    now: datetime
    nav: tuple[NavEntry, ...] = ()
    strips: tuple[str, ...] = ()
    is_away: bool = False
    at: str | None = None
    """The page that is shown, if this is only a part of it."""
    extra: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def without_store(cls, request: UiRequest) -> Shell:
        """Return a shell that needs no read: it shows no numbers."""
        return cls(request=request, now=datetime.now(UTC), nav=_known_pages(request), is_away=True)

    @property
    def label(self) -> str | None:
        """The name of the installation."""
        return self.request.ui.label

    @property
    def look(self) -> Look:
        """The choices of the browser."""
        return self.request.look

    @property
    def person(self) -> str:
        """The name of the user, for display."""
        return short_name(self.request.caller.name)

    @property
    def is_login(self) -> bool:
        """Whether no user is known, so that there is nothing to navigate to."""
        return not self.request.caller.scopes

    @property
    def is_open(self) -> bool:
        """Whether every client on this machine has full access."""
        return self.request.is_open

    @property
    def is_read_only(self) -> bool:
        """Whether nothing can be changed."""
        return self.request.is_read_only

    @property
    def has_session(self) -> bool:
        """Whether the user can log out."""
        return self.request.session_text is not None

    @property
    def token(self) -> str:
        """The token for forms."""
        return self.request.token

    @property
    def note(self) -> Mapping[str, str]:
        """The message of the form that led here."""
        return self.request.note

    @property
    def here(self) -> str:
        """The path of this page below the dashboard, with its query."""
        query = self.request.url.query
        return self.path + (f"?{query}" if query else "")

    @property
    def path(self) -> str:
        """The path of this page below the dashboard."""
        return self.request.url.path.removeprefix(self.request.base) or "/"

    @property
    def origin(self) -> str:
        """The address of the API, for commands that are shown."""
        return f"{self.request.url.scheme}://{self.request.url.netloc}{self.request.root}"

    @property
    def version(self) -> str:
        """The version of TaskHarbor."""
        return __version__

    def url(self, path: str) -> str:
        """Return the address of *path* of the dashboard."""
        return f"{self.request.base}{path}"

    def static(self, name: str) -> str:
        """Return the address of a static file."""
        return f"{self.request.base}/static/{self.request.ui.assets.mark}/{name}"

    def may(self, scope: str) -> bool:
        """Return whether the user has *scope*."""
        return self.request.may(scope)

    def can(self, scope: str) -> bool:
        """Return whether the user may change what *scope* is for."""
        return self.request.can(scope)

    def is_current(self, entry: NavEntry) -> bool:
        """Return whether this page belongs to *entry*."""
        path = self.path if self.at is None else self.at
        return path == entry.path or (entry.path != "/" and path.startswith(entry.path + "/"))


async def read_shell(request: UiRequest) -> Shell:
    """Read the numbers of the navigation and the strips."""
    if not request.may("jobs:read"):
        return Shell(request=request, now=datetime.now(UTC), nav=_known_pages(request))
    now, queues, workers = await request.reads.now(), await request.reads.queues(), await request.reads.workers()
    dead = sum(each.counts.get(Status.DEAD, 0) for each in queues)
    silent = sum(state_of(each, now) is WorkerState.SILENT for each in workers)
    badges = {
        "/dead": (f"{dead:,}" if dead else "", f"{dead:,} dead letters"),
        "/workers": ("!" if silent else "", f"{silent} silent"),
    }
    nav = tuple(
        replace(entry, badge=badges[entry.path][0], hint=badges[entry.path][1]) if entry.path in badges else entry
        for entry in _known_pages(request)
    )
    return Shell(request=request, now=now, nav=nav, strips=tuple(await _strips(request, now)))


def _known_pages(request: UiRequest) -> tuple[NavEntry, ...]:
    known = request.ui.paths
    return tuple(each for each in NAVIGATION if each.path in known and request.may(each.scope))


async def _strips(request: UiRequest, now: datetime) -> list[str]:
    """Return what is wrong with the installation itself."""
    strips = []
    if pending := await request.reads.pending_migrations():
        strips.append(f"The schema of the store is behind by {plural(pending, 'migration')}: taskharbor migrate up.")
    rolled_up_at = await request.reads.rolled_up_at()
    if rolled_up_at is not None and now - rolled_up_at > MAX_COUNT_AGE:
        strips.append(
            f"Counts and charts are {span(now - rolled_up_at)} old: workers and janitors update them, and none is live."
        )
    skew = abs(datetime.now(UTC) - now)
    if skew > MAX_SKEW:
        strips.append(f"The clock of this server differs from the store's by {span(skew)}. Ages are the store's.")
    if request.is_read_only:
        strips.append("Read only: this dashboard changes nothing.")
    return strips
