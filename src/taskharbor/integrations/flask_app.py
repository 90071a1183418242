"""The harbor of a Flask application as an app for the command line: ``taskharbor.integrations.flask_app:harbor``.

The application is found as the ``flask`` command finds it: by FLASK_APP, or in app.py or wsgi.py.
"""

from __future__ import annotations

from flask.cli import ScriptInfo

from taskharbor.integrations.flask import current_harbor

with ScriptInfo().load_app().app_context():
    harbor = current_harbor()
