"""The pages of the server: their common head, the page itself, and the dialogs that every page has."""

import html
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import FastAPI

_STATIC = Path(__file__).parent / "static"
# Path, title, file of the page and script. They hold nothing of the collection: other sites may link to them.
_PAGES = {
    "/": ("Search", "index", "app"),
    "/photos": ("Photos", "photos", "photos"),
    "/things": ("Things", "things", "things"),
    "/teach": ("Teach", "teach", "teach"),
    "/history": ("History", "history", "history"),
    "/docs": ("API", "docs", "docs"),
}
PAGE_PATHS = tuple(path for path in _PAGES if path != "/docs")


def show_pages(app: "FastAPI") -> None:
    """Serve the pages and what they load."""
    from fastapi.responses import HTMLResponse
    from fastapi.staticfiles import StaticFiles

    def add(path: str) -> None:
        @app.get(path, include_in_schema=False)
        def page() -> HTMLResponse:
            return HTMLResponse(_page(path))

    for path in _PAGES:
        add(path)
    app.mount("/static", StaticFiles(directory=_STATIC))


def _page(path: str) -> str:
    title, name, script = _PAGES[path]
    head = _read("head").replace("{title}", html.escape(title)).replace("{script}", script)
    link = f'<a href="{path[1:] or "./"}">'
    return head.replace(link, f'{link[:-1]} aria-current="page">') + _read(name) + _read("dialogs")


def _read(name: str) -> str:
    return (_STATIC / f"{name}.html").read_text(encoding="utf-8")
