from __future__ import annotations

import click

from taskharbor.cli.options import json_option, url_or_app_option


@click.command()
@click.argument("app", required=False)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8000, show_default=True, help="0 takes a free one.")
@url_or_app_option
@json_option
def api(*, app: str | None, host: str, port: int, url: str | None, as_json: bool) -> None:
    """Serve the HTTP API until a signal.

    Once the store has an API key, every request needs one, a few seconds after it was made. Without any key
    the API is for this machine only: another address is refused, and so is what comes through a proxy. The
    log goes to stderr.

    Payloads are written with the codec of APP, which is named and found as for 'taskharbor worker'.
    Without an app they are plain JSON. A store whose payloads are written with another codec is refused.
    """
    from importlib.util import find_spec

    from taskharbor.cli.logs import log_to_stderr
    from taskharbor.cli.refusals import NotInstalled

    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise NotInstalled("FastAPI", "api")
    from taskharbor.api.serving import serve
    from taskharbor.cli.writing import open_harbor

    log_to_stderr(as_json=as_json)
    with open_harbor(app, url) as harbor:
        serve(harbor, host=host, port=port)
