"""A Django application with the dashboard beside it, in a separate process: Django can be configured only once.

It prints its address, then serves until its input is closed. The recipe is that of docs/dashboard.md.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Mount

from taskharbor import Harbor
from taskharbor.api import create_app, lifespan_for
from taskharbor.dashboard import Person, dashboard
from tests.support.dashboard_rig import serve_app


def main() -> None:
    import django  # noqa: PLC0415  only this process configures it
    from django.conf import settings  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        settings.configure(
            SECRET_KEY="only for tests",
            ALLOWED_HOSTS=["*"],
            ROOT_URLCONF="tests.support.dashboard_django",
            INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"],
            DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(Path(folder, "app.db"))}},
            USE_TZ=True,
        )
        django.setup()
        with serve_app(application(Harbor("memory://"))) as address:
            print(address, flush=True)  # noqa: T201  for the test
            sys.stdin.read()


def application(harbor: Harbor) -> Any:
    """Return the ASGI application of the recipe, with users in the database."""
    from django.contrib.auth import get_user_model  # noqa: PLC0415  it needs the settings
    from django.core.asgi import get_asgi_application  # noqa: PLC0415
    from django.core.management import call_command  # noqa: PLC0415

    call_command("migrate", verbosity=0)
    get_user_model().objects.create_user("ana", password="secret", is_staff=True)
    get_user_model().objects.create_user("bob", password="secret")
    api = create_app(harbor, needs_keys=True, parts=[dashboard(authorize=staff)])
    return Starlette(
        routes=[Mount("/background", api), Mount("/", get_asgi_application())], lifespan=lifespan_for(harbor)
    )


async def staff(request: Any) -> Person | None:
    """Return the user of Django's session, if they are staff."""
    from django.conf import settings  # noqa: PLC0415  it needs the settings
    from django.contrib.auth import aget_user  # noqa: PLC0415
    from django.contrib.sessions.backends.db import SessionStore  # noqa: PLC0415
    from django.http import HttpRequest  # noqa: PLC0415

    known = HttpRequest()
    known.session = SessionStore(request.cookies.get(settings.SESSION_COOKIE_NAME))
    user = await aget_user(known)
    return Person(user.get_username(), {"admin"}) if user.is_staff else None


def enter(request: Any) -> Any:
    """Log in the user that the path names."""
    from django.contrib.auth import authenticate, login  # noqa: PLC0415
    from django.contrib.sessions.backends.db import SessionStore  # noqa: PLC0415
    from django.http import HttpResponse  # noqa: PLC0415

    request.session = SessionStore()
    login(request, authenticate(username=request.GET["name"], password="secret"))
    request.session.save()
    response = HttpResponse("in")
    response.set_cookie("sessionid", request.session.session_key)
    return response


def _patterns() -> list[Any]:
    from django.urls import path  # noqa: PLC0415

    return [path("enter", enter)]


if __name__ == "__main__":
    main()
else:
    urlpatterns = _patterns()
