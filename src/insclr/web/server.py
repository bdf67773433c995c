"""The search page's server: `create_app` for tests and other servers, `serve` for the command."""

import logging
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from insclr.errors import UserError
from insclr.web.settings import ServeSettings

if TYPE_CHECKING:
    from fastapi import FastAPI

    from insclr.web.served import ServedStore

_log = logging.getLogger(__name__)
_STATIC = Path(__file__).parent / "static"


def create_app(stores: Sequence["ServedStore"], settings: ServeSettings | None = None) -> "FastAPI":
    """The page and its API for one store, or two to compare (after, before)."""
    try:
        from fastapi import FastAPI
        from fastapi.responses import FileResponse
        from fastapi.staticfiles import StaticFiles
    except ImportError:
        raise UserError("the search page needs FastAPI: pip install 'insclr[web]'") from None
    from insclr import __version__
    from insclr.web.api import api
    from insclr.web.request_checks import RequestChecks
    from insclr.web.served import Served

    settings = settings or ServeSettings()
    # The usual documentation pages load scripts from other hosts: we bring our own.
    app = FastAPI(
        title="InsCLR search",
        version=__version__,
        summary="Show a photo, get every photo of that thing.",
        docs_url=None,
        redoc_url=None,
    )
    app.state.served = Served(tuple(stores), settings)
    app.include_router(api)
    _explain_errors(app)

    @app.get("/", include_in_schema=False)
    def page() -> FileResponse:
        return FileResponse(_STATIC / "index.html")

    @app.get("/docs", include_in_schema=False)
    def docs() -> FileResponse:
        return FileResponse(_STATIC / "docs.html")

    app.mount("/static", StaticFiles(directory=_STATIC))
    app.add_middleware(RequestChecks, settings=settings)
    return app


def _explain_errors(app: "FastAPI") -> None:
    """Every mistake becomes a JSON answer with the right status; none ends the server."""
    from fastapi import Request
    from fastapi.responses import JSONResponse

    from insclr.retrieval.store import StoreUnavailable
    from insclr.web.served import Refused

    @app.exception_handler(Refused)
    def refused(_: Request, error: Refused) -> JSONResponse:
        return JSONResponse({"detail": error.detail}, status_code=error.status)

    @app.exception_handler(StoreUnavailable)
    def unavailable(_: Request, error: StoreUnavailable) -> JSONResponse:
        _log.warning("%s", error)
        return JSONResponse({"detail": str(error)}, status_code=503)

    @app.exception_handler(UserError)
    def mistake(_: Request, error: UserError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, status_code=400)


def open_served(
    uris: Sequence[str | Path], models: Sequence[str] = (), device: str = "auto"
) -> list["ServedStore"]:
    """Open one store, or two: the first is shown as "after", the second as "before"."""
    from insclr.retrieval.describer import describer_of
    from insclr.retrieval.store import open_store
    from insclr.web.served import ServedStore

    if not 1 <= len(uris) <= 2:
        raise UserError(f"one store or two can be served, not {len(uris)}")
    titles = ("Search",) if len(uris) == 1 else ("After", "Before")
    found = []
    for place, (title, uri) in enumerate(zip(titles, uris, strict=True)):
        store = open_store(uri)
        model = models[place] if place < len(models) else ""
        found.append(ServedStore(title, store, describer_of(store.info, model, workers=0, device=device)))
    return found


def serve(stores: Sequence["ServedStore"], settings: ServeSettings) -> None:
    """Serve until interrupted; UserError when the port is taken."""
    app = create_app(stores, settings)
    import torch
    import uvicorn

    # Two requests are embedded at a time (see ModelDescriber): each gets half of the cores.
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // 2))

    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host, settings.port))
        except OSError as error:
            raise UserError(
                f"cannot listen on {settings.host}:{settings.port} ({error.strerror}): give another --port"
            ) from error
        config = uvicorn.Config(app, log_level="warning", server_header=False, timeout_keep_alive=30)
        uvicorn.Server(config).run(sockets=[listener])
