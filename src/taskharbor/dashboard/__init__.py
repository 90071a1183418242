"""The dashboard: pages at ``/ui`` that are rendered by the server, with live updates.

``create_app(harbor, parts=[dashboard()])`` adds it to the HTTP API.

How to add a page, for example ``things``:

1. ``pages/things.py``: ``router = ui_router()``; endpoints with ``@requires_scope(...)``, which take a `UiRequest` and
   return ``await request.page("things.html", **context)``. Read the store by ``request.reads`` (`queries.Reads`): it is
   cached for a second, shared by all tabs, and bounded. Add the module to ``pages/__init__.py``.
2. ``templates/things.html`` extends ``base.html`` and imports ``_macros.html`` (badges, times, tables, empty states,
   forms, equivalents). A live part is ``{% call m.live("name", "topics") %}{% block name %}...{% endblock %}``: the
   browser fetches the block by itself when one of its topics has changed.
3. An action is a link to a preview page (GET) whose form POSTs to the same path; its endpoint calls a function of
   `taskharbor.api.actions`, which checks rights and ETag and writes the audit entry, and returns
   ``request.redirect(path, "message", undo=...)``.
4. Charts come from `charts`, words and icons from `texts`. No ``style=`` and no inline script: the content security
   policy forbids both.
"""

from __future__ import annotations

from taskharbor.dashboard.mount import Dashboard, dashboard
from taskharbor.dashboard.sessions import Person

__all__ = ["Dashboard", "Person", "dashboard"]
