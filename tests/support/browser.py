"""A real browser for tests of the dashboard: every page is watched for violations, errors and foreign requests."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import sync_playwright

from tests.support.chromium import ARGUMENTS, find_chromium

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from playwright.sync_api import Browser, BrowserContext, Page, Response

SCREENS: Final = Path(__file__).parents[2] / ".cache" / "screens"
WIDE: Final = 1280
NARROW: Final = 375
TIMEOUT_MS: Final = 15_000
TAGS: Final = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
_WATCH: Final = """
window.__violations = [];
document.addEventListener("securitypolicyviolation", (e) =>
  window.__violations.push(`${e.violatedDirective} ${e.blockedURI} ${e.sourceFile}:${e.lineNumber}`));
"""


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Yield Chromium. Launching it takes most of a second: share one."""
    found = find_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=found.program, args=list(ARGUMENTS), env={**found.environment}
        )
        try:
            yield browser
        finally:
            browser.close()


class Screen:
    """A page of the browser, with what went wrong on it. Call `check` at the end; fixtures do."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.url = url
        self.context = context
        self.problems: list[str] = []
        self.allowed: set[int] = set()
        """Statuses from 400 that the test expects."""
        context.add_init_script(_WATCH)
        context.set_default_timeout(TIMEOUT_MS)
        context.on("response", self._response)
        context.on("request", lambda request: self._host(request.url))
        self.page = self.new_page()

    def new_page(self) -> Page:
        page = self.context.new_page()
        page.on("console", lambda message: self._console(message.type, message.text))
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        return page

    def go(self, path: str, *, expect: int = 200) -> Response:
        """Open *path* of the dashboard, and check its status."""
        if expect >= 400:
            self.allowed.add(expect)
        response = self.page.goto(f"{self.url}/ui{path}")
        assert response is not None
        assert response.status == expect, f"{path}: {response.status}"
        return response

    def log_in(self, key: str) -> None:
        """Log in with an API key."""
        self.page.goto(f"{self.url}/ui/login")
        self.page.fill("#key", key)
        self.page.click("main button")
        self.page.wait_for_url(f"{self.url}/ui/")

    def text(self, selector: str = "main") -> str:
        return self.page.inner_text(selector)

    def check(self) -> None:
        """Fail if any page violated its policy, logged an error, failed to load something, or asked another host."""
        for page in self.context.pages:
            self.problems += _violations(page)
        assert self.problems == [], self.problems

    def _console(self, kind: str, text: str) -> None:
        if kind == "error" and not any(f"status of {status}" in text for status in self.allowed):
            self.problems.append(f"console: {text}")

    def _response(self, response: Response) -> None:
        if response.status >= 400 and response.status not in self.allowed:
            self.problems.append(f"{response.status} {response.url}")

    def _host(self, url: str) -> None:
        if urlsplit(url).scheme in {"http", "https", "ws", "wss"} and urlsplit(url).netloc != urlsplit(self.url).netloc:
            self.problems.append(f"foreign host: {url}")


def _violations(page: Page) -> list[str]:
    """Return what the policy of the page has blocked. A page that is being left is asked again when it has loaded."""
    for _ in range(10):
        try:
            page.wait_for_load_state()
            return [str(each) for each in page.evaluate("window.__violations || []")]
        except PlaywrightError as error:
            if "context was destroyed" not in str(error):
                raise
    raise AssertionError("the page does not stop loading")


def axe_violations(page: Page) -> list[str]:
    """Return the accessibility rules that the page breaks, with the elements."""
    page.evaluate(_axe())  # not stopped by the page's policy
    options = {"runOnly": {"type": "tag", "values": list(TAGS)}}
    found: dict[str, Any] = page.evaluate("options => axe.run(document, options)", options)
    return [
        f"{each['id']}: {each['help']}: {node['target']} {node['html'][:160]}"
        for each in found["violations"]
        for node in each["nodes"][:4]
    ]


@cache
def _axe() -> str:
    return (files("axe_playwright_python") / "axe.min.js").read_text()


_LAYOUT: Final = """() => {
  const found = [];
  const visible = e => e.offsetParent !== null && e.getBoundingClientRect().width > 1;
  const name = e => e.tagName + "." + e.className;
  const bar = document.querySelector("header.bar");
  if (bar && Math.abs(bar.getBoundingClientRect().top) > 1) found.push("the header is not at the top");
  if (document.documentElement.scrollWidth > innerWidth) {
    const wide = [...document.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right > innerWidth + 1);
    found.push("scrolls sideways: " + wide.slice(0, 3).map(name).join(", "));
  }
  const bare = [...document.querySelectorAll("tbody td")].find(e => !e.dataset.l && !e.querySelector("input"));
  if (bare) found.push("a cell has no label: " + bare.textContent.slice(0, 40));
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!own || !visible(e) || parseFloat(getComputedStyle(e).fontSize) >= 11) continue;
    found.push("small text: " + e.textContent.slice(0, 40));
    break;
  }
  const boxes = [...document.querySelectorAll("main > *, .bar > *")].filter(visible);
  const rects = boxes.map(e => e.getBoundingClientRect());
  boxes.forEach((a, i) => boxes.slice(i + 1).forEach((b, n) => {
    const p = rects[i], q = rects[i + 1 + n];
    const meets = p.left < q.right - 2 && q.left < p.right - 2 && p.top < q.bottom - 2 && q.top < p.bottom - 2;
    if (meets && !a.contains(b) && !b.contains(a)) found.push(`${name(a)} overlaps ${name(b)}`);
  }));
  const heads = document.querySelectorAll("h1").length;
  if (heads !== 1) found.push(`has ${heads} h1`);
  return found;
}"""


def layout_problems(page: Page) -> list[str]:
    """Return what is wrong with the layout, which axe does not see."""
    problems: list[str] = page.evaluate(_LAYOUT)
    return problems


def screenshot(page: Page, name: str) -> Path:
    """Save a picture of the whole page for a person to look at."""
    SCREENS.mkdir(parents=True, exist_ok=True)
    path = SCREENS / f"{name}.png"
    page.screenshot(path=path, full_page=True)
    return path


def note_changes(screen: Screen) -> Callable[[], bool]:
    """Return a function that says whether the page has received a change of jobs, and a second later another event."""
    screen.page.evaluate("""() => {
      window.__changes = [];
      document.addEventListener("changes", e => window.__changes.push(e.detail.topics));
    }""")

    def has_seen() -> bool:
        changes: list[list[str]] = screen.page.evaluate("window.__changes")
        first = next((at for at, topics in enumerate(changes) if "jobs" in topics), len(changes))
        return len(changes) > first + 1

    return has_seen


def tour(screen: Screen, name: str, path: str) -> Sequence[str]:
    """Show a page in both themes and widths, take pictures, and return what axe and the layout check found."""
    found = []
    screen.go(path)
    for scheme, width in (("light", WIDE), ("dark", WIDE), ("dark", NARROW), ("light", NARROW)):
        screen.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        screen.page.set_viewport_size({"width": width, "height": 800})
        screenshot(screen.page, f"{name}-{scheme}-{width}")
        found += [f"{scheme} {width}: {each}" for each in layout_problems(screen.page)]
        if (scheme, width) in {("light", WIDE), ("dark", NARROW)}:
            found += [f"{scheme} {width}: {each}" for each in axe_violations(screen.page)]
    return found
