"""The search page's server: `create_app` for tests and other servers, `serve` for the command."""

import errno
import json
import logging
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from insclr.errors import UserError
from insclr.web.settings import ServeOptions

if TYPE_CHECKING:
    from fastapi import FastAPI

    from insclr.web.served import Served, ServedStore

_log = logging.getLogger(__name__)
_GRACE = 4  # seconds that requests under way have after SIGTERM


def create_app(stores: Sequence["ServedStore"], settings: ServeOptions | None = None) -> "FastAPI":
    """The page and its API for one store, or two to compare (after, before)."""
    from fastapi import FastAPI
    from starlette.formparsers import MultiPartParser

    from insclr import __version__
    from insclr.web.decode_pool import DecodePool
    from insclr.web.learning import Learning
    from insclr.web.limits import Limit
    from insclr.web.pages import show_pages
    from insclr.web.request_checks import RequestChecks
    from insclr.web.served import Served
    from insclr.web.server_metrics import ServerMetrics

    settings = settings or ServeOptions()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        app.state.learning.stop()
        served.decoders.close()

    app = FastAPI(
        title="InsCLR search",
        version=__version__,
        summary="Show a photo, get every photo of that thing.",
        docs_url=None,  # the usual documentation pages load scripts from other hosts: we bring our own
        redoc_url=None,
        lifespan=lifespan,
    )
    decoders = DecodePool(settings.decoders, settings.decode_seconds)
    uploads, previews = Limit(settings.max_uploads), Limit(settings.max_previews)
    request_bytes = Limit(settings.max_server_bytes)
    metrics = ServerMetrics(
        lambda: {
            "insclr_uploads_in_progress": uploads.used,
            "insclr_previews_in_progress": previews.used,
            "insclr_request_bytes_in_progress": request_bytes.used,
            "insclr_decoders_killed_total": decoders.killed,
        }
    )
    if not settings.originals:
        for one in stores:
            one.hide_camera_data()
    matchings = Limit(settings.max_uploads)
    served = Served(tuple(stores), settings, decoders, uploads, matchings, previews, request_bytes, metrics)
    app.state.served = served
    app.state.learning = Learning(served)
    _answer_requests(app)
    _explain_errors(app)
    _report_state(app, served)
    # Uploads stay in memory: nothing of them is ever written to disk.
    MultiPartParser.spool_max_size = settings.max_bytes + 1

    show_pages(app)
    app.add_middleware(
        RequestChecks,
        settings=settings,
        request_bytes=request_bytes,
        uploads=uploads,
        metrics=metrics,
    )
    return app


def _answer_requests(app: "FastAPI") -> None:
    """The API."""
    from insclr.web.api import api
    from insclr.web.history_api import history_api, names_api
    from insclr.web.photos_api import photos_api
    from insclr.web.teach_api import teach_api
    from insclr.web.things_api import things_api
    from insclr.web.why import why_api

    for router in (api, why_api, things_api, photos_api, history_api, names_api, teach_api):
        app.include_router(router)


def _report_state(app: "FastAPI", served: "Served") -> None:
    """Add /healthz for health checks, and /metrics for Prometheus (which needs the token, like every page)."""
    from fastapi.responses import JSONResponse, Response

    from insclr.web.request_checks import HEALTH

    @app.get(HEALTH, include_in_schema=False)
    async def health() -> JSONResponse:
        return JSONResponse({"status": "ok"})

    @app.get("/metrics", include_in_schema=False)
    async def metrics() -> Response:
        return Response(served.metrics.text(), media_type="text/plain; version=0.0.4")


def _explain_errors(app: "FastAPI") -> None:
    """Answer every error with JSON and the right status."""
    from fastapi import Request
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse

    from insclr.store import StoreUnavailable
    from insclr.web.limits import RETRY, Busy, ClientGone
    from insclr.web.served import Refused

    @app.exception_handler(Refused)
    def refuse(_: Request, error: Refused) -> JSONResponse:
        return JSONResponse({"detail": error.detail}, status_code=error.status, headers=error.headers)

    @app.exception_handler(RequestValidationError)
    def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        # Without what was sent: JSON can express neither NaN nor half of a surrogate pair.
        detail = [{"loc": list(one["loc"]), "msg": one["msg"], "type": one["type"]} for one in error.errors()]
        return JSONResponse({"detail": json.loads(json.dumps(detail))}, status_code=422)

    @app.exception_handler(ClientGone)
    def nobody_there(_: Request, __: ClientGone) -> JSONResponse:
        return JSONResponse({"detail": "the client has gone"}, status_code=499)

    @app.exception_handler(Busy)
    def busy(_: Request, error: Busy) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, status_code=503, headers=RETRY)

    @app.exception_handler(StoreUnavailable)
    def unavailable(_: Request, error: StoreUnavailable) -> JSONResponse:
        _log.warning("%s", error)
        return JSONResponse({"detail": str(error)}, status_code=503, headers=RETRY)

    @app.exception_handler(OSError)
    def disk_fails(_: Request, error: OSError) -> JSONResponse:
        _log.error("%s", error)
        detail = f"the server's disk fails ({error.strerror or error}): try again, and look into its log"
        status = 507 if error.errno in (errno.ENOSPC, errno.EDQUOT) else 503
        return JSONResponse({"detail": detail}, status_code=status, headers=RETRY)

    @app.exception_handler(MemoryError)
    def no_memory(_: Request, __: MemoryError) -> JSONResponse:
        _log.error("the server is out of memory")
        return JSONResponse(
            {"detail": "the server is out of memory: try again later"}, status_code=503, headers=RETRY
        )

    @app.exception_handler(UserError)
    def mistake(_: Request, error: UserError) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, status_code=400)


def open_served(
    uris: Sequence[str | Path], models: Sequence[str] = (), device: str = "auto", engine: str = "auto"
) -> list["ServedStore"]:
    """Open one store, or two: the first is shown as "after", the second as "before".

    A store with an earlier model is shown beside that one.
    """
    from insclr.retrieval.query import describer_of
    from insclr.store import open_store
    from insclr.store.store_models import model_before
    from insclr.web.served import ServedStore

    if not 1 <= len(uris) <= 2:
        raise UserError(f"one store or two can be served, not {len(uris)}")
    if len(uris) == 1 and (earlier := model_before(uris[0])):
        try:
            return open_served([uris[0], earlier], models, device, engine)
        except UserError as error:
            _log.warning("the model before is not shown: %s", error)
    titles = ("Search",) if len(uris) == 1 else ("After", "Before")
    found = []
    for place, (title, uri) in enumerate(zip(titles, uris, strict=True)):
        store = open_store(uri)
        model = models[place] if place < len(models) else ""
        # Two requests are described at a time (see Describer): each gets half of the cores.
        describer = describer_of(store.info, model, workers=0, device=device, engine=engine, streams=2)
        found.append(ServedStore(title, store, describer))
    return found


def serve(
    stores: Sequence["ServedStore"], settings: ServeOptions, listening: Callable[[], None] = lambda: None
) -> None:
    """Serve until interrupted, and end soon after; UserError when the port is taken.

    `listening` is called once the port is open.
    """
    app = create_app(stores, settings)
    import uvicorn

    from insclr.web.request_checks import RareLines, allowed_connections, make_protocol

    connections = allowed_connections(settings.max_connections)
    # A proxy brings the connections of all clients from one address.
    per_address = connections if settings.proxy else max(4, connections // 2)
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # With the protocol's number asyncio sends short answers at once; else they wait 40 ms for an acknowledgement.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host, settings.port))
        except OSError as error:
            raise UserError(
                f"cannot listen on {settings.host}:{settings.port} ({error.strerror}): give another --port"
            ) from error
        listener.listen(128)
        listening()
        config = uvicorn.Config(
            app,
            http=make_protocol(settings, connections, per_address),
            ws="none",
            log_level="warning",
            server_header=False,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=_GRACE,
            proxy_headers=bool(settings.proxy),
            forwarded_allow_ips=settings.proxy or None,
        )
        for source in (*logging.getLogger().handlers, *map(logging.getLogger, ("uvicorn.error", "asyncio"))):
            source.addFilter(RareLines())
        _server_class()(config).run(sockets=[listener])


def _server_class() -> Any:
    import uvicorn

    class _EndingServer(uvicorn.Server):
        """A server whose process ends a few seconds after a signal, even while threads are busy."""

        async def shutdown(self, sockets: Any = None) -> None:
            timer = threading.Timer(_GRACE + 3, os._exit, (143,))
            timer.daemon = True
            timer.start()
            await super().shutdown(sockets)

    return _EndingServer
