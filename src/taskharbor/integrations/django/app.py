"""The harbors of a Django project as an app for the command line: ``taskharbor.integrations.django.app:default``.

The attribute is the alias of a task backend. The environment variable DJANGO_SETTINGS_MODULE names the settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import django

django.setup()

from taskharbor.integrations.django.stores import aliases, harbor_of  # noqa: E402  it needs the settings

if TYPE_CHECKING:
    from taskharbor.harbor import Harbor


def __getattr__(name: str) -> Harbor:
    if name not in aliases():
        raise AttributeError(f"TASKS has no backend of TaskHarbor named {name!r}")  # noqa: TRY003  as Python's own
    return harbor_of(name)
