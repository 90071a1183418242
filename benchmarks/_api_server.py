"""An API server that also has an empty endpoint, a bare SELECT, and an endpoint for its own CPU time."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Any

from taskharbor.api import create_app
from taskharbor.api.server import ApiServer, open_socket
from taskharbor.harbor import Harbor

if TYPE_CHECKING:
    from fastapi import FastAPI


def application(url: str) -> FastAPI:
    harbor = Harbor(url)
    app = create_app(harbor)

    @app.post("/empty")
    async def empty() -> dict[str, Any]:
        return {}

    @app.get("/select")
    async def select() -> dict[str, Any]:
        await asyncio.to_thread(harbor.driver.inspector.now)
        return {}

    @app.get("/cpu")
    async def cpu() -> float:
        return time.process_time()

    return app


def main() -> None:
    with open_socket("127.0.0.1", 0) as sock:
        print(sock.getsockname()[1], flush=True)
        ApiServer(application(sys.argv[1])).run(sockets=[sock])


if __name__ == "__main__":
    main()
