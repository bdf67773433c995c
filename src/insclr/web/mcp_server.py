"""An MCP server on a store: an assistant searches, pages and sees contact sheets; with `write` it names photos."""

import io
from collections import Counter
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from PIL import Image, ImageDraw, ImageOps

from insclr import __version__
from insclr.data.decode import BadImage, Box, decode
from insclr.describe.describer import Describer
from insclr.errors import UserError
from insclr.feedback.entries import describe_act, undo
from insclr.feedback.feedback_cache import FeedbackCache
from insclr.feedback.names import PhotoAct, name_photos, take_out_photos
from insclr.options import SearchOptions
from insclr.retrieval.query import Query, image_query
from insclr.retrieval.search import search
from insclr.store import Row, Store
from insclr.store.where import meets, number_of, parse_where

_PAGE, _MOST = 20, 200
_SHEET, _TILE, _LABEL = 48, 180, 18  # photos of a contact sheet; pixels
_DEEP = 1000  # results that can be paged through
_INSTRUCTIONS = (
    "Find photos of the same particular thing in a collection. A photo is a row with an id; paths are shown, ids are "
    "what the tools take. Lists come in pages: `remaining` counts those that follow; ask again with `offset`. "
    "`contact_sheet` shows many photos as one image with their ids."
)

P = ParamSpec("P")
R = TypeVar("R")


class StoreTools:
    """What an assistant can do with a store; every function is a tool, its docstring the description."""

    def __init__(self, store: Store, describer: Describer) -> None:
        self.store, self.describer = store, describer
        self.feedback = FeedbackCache(store)

    def search_photos(
        self,
        path: str = "",
        row: int | None = None,
        box: list[float] | None = None,
        where: str = "",
        count: int = _PAGE,
        offset: int = 0,
    ) -> dict[str, Any]:
        """Find photos of the thing in an image file (path) or in a photo of the store (row).

        `box` is a part of it: left, top, right, bottom in pixels. `where` filters by columns:
        taken >= '2024-05' and not path contains 'old'.
        """
        if (row is None) is not bool(path):
            raise UserError("give either path or row")
        if box is not None and len(box) != 4:
            raise UserError("a box is left, top, right, bottom")
        count = _page(count)
        part: Box | None = None if box is None else (box[0], box[1], box[2], box[3])
        top = min(_DEEP, offset + count + 1)
        options = SearchOptions(top=top, where=where)
        matches = search(self.store, self.describer, [self._query(path, row, part)], options)
        names = self.feedback.names([one.id for one in matches])
        shown = [
            {"row": one.id, "path": one.path, "score": round(one.score, 3), "band": one.band}
            | ({"is_query": True} if one.is_query else {})
            | ({"thing": names[one.id]} if one.id in names else {})
            for one in matches[offset : offset + count]
        ]
        more = self.store.count() - offset - len(shown) if not where else len(matches) - offset - len(shown)
        return {"results": shown, "remaining": max(0, more)}

    def list_things(
        self, contains: str = "", named_only: bool = False, count: int = _PAGE, offset: int = 0
    ) -> dict[str, Any]:
        """Things of the collection, the largest first, with their names; `contains` is a part of the name."""
        found = [
            one
            for one in self.feedback.gallery().things
            if contains.casefold() in one.name.casefold() and (one.name or not named_only)
        ]
        part = found[offset : offset + _page(count)]
        things = [
            {"id": t.id, "name": t.name, "photos": len(t.rows), "rows": [r.id for r in t.rows[:4]]}
            for t in part
        ]
        return {"things": things, "remaining": max(0, len(found) - offset - len(part))}

    def list_photos(
        self, where: str = "", thing: str = "", count: int = _PAGE, offset: int = 0
    ) -> dict[str, Any]:
        """Photos by path, those that meet a filter, or those of a thing by its id or name."""
        gallery = self.feedback.gallery()
        condition = parse_where(where, self.store.columns())
        if thing:
            known = gallery.find_named(thing) or gallery.thing(thing)
            rows: Sequence[Row] = known.rows
        else:
            rows = sorted(self.store.rows_by_path().values(), key=lambda one: one.image.path)
        kept = [r for r in rows if condition is None or meets(condition, r.image.path, r.image.columns)]
        part = kept[offset : offset + _page(count)]
        return {
            "photos": [self._facts(one) for one in part],
            "remaining": max(0, len(kept) - offset - len(part)),
        }

    def list_columns(self, column: str = "", count: int = _PAGE, offset: int = 0) -> dict[str, Any]:
        """The columns that `where` can use; with `column` its values and how many photos have each."""
        names = ["path", *self.store.columns()]
        if not column:
            return {"columns": names, "remaining": 0}
        if column not in names[1:]:
            raise UserError(f"there is no column {column}; there are: {', '.join(names[1:]) or 'none'}")
        rows = self.store.rows_by_path().values()
        values = Counter(value for one in rows if (value := one.image.columns.get(column, "")))
        numeric = all(number_of(value) is not None for value in values)
        ordered = values.most_common()
        part = ordered[offset : offset + _page(count)]
        return {
            "kind": "number" if numeric and values else "text",
            "values": [{"value": value, "photos": photos} for value, photos in part],
            "remaining": max(0, len(ordered) - offset - len(part)),
        }

    def describe_photo(self, row: int) -> dict[str, Any]:
        """What is known of a photo: path, columns, and the thing that it shows."""
        return self._facts(self._rows([row])[0])

    def view_photo(self, row: int, longest: int = 1024) -> bytes:
        """A photo as a JPEG, at most `longest` pixels (64 to 2048) on its longer side."""
        side = max(64, min(2048, longest))
        found = self._rows([row])[0]
        try:
            image = decode(self.store.info.root / found.image.path, longest=side)
        except BadImage as bad:
            raise UserError(f"{found.image.path}: {bad.reason}") from bad
        image.thumbnail((side, side))
        return _jpeg(image)

    def contact_sheet(self, rows: list[int]) -> bytes:
        """Up to 48 photos as one JPEG, each with its row id below it; a photo that is gone stays grey."""
        if not 1 <= len(rows) <= _SHEET:
            raise UserError(f"a contact sheet shows 1 to {_SHEET} photos, not {len(rows)}")
        found = self._rows(rows)
        across = min(8, len(found))
        height = _TILE + _LABEL
        sheet = Image.new("RGB", (across * _TILE, -(-len(found) // across) * height), "white")
        pen = ImageDraw.Draw(sheet)
        for place, one in enumerate(found):
            x, y = place % across * _TILE, place // across * height
            try:
                photo = decode(self.store.info.root / one.image.path, longest=_TILE)
                photo = ImageOps.pad(photo, (_TILE - 4, _TILE - 4), color="white")
            except BadImage:
                photo = Image.new("RGB", (_TILE - 4, _TILE - 4), "lightgrey")
            sheet.paste(photo, (x + 2, y + 2))
            pen.text((x + 4, y + _TILE), str(one.id), fill="black", font_size=14)
        return _jpeg(sheet)

    def name_photos(self, rows: list[int], name: str = "", thing: str = "") -> str:
        """Say that photos show a thing: the one of this id, the one of this name, or a new one of this name."""
        if not (name or thing):
            raise UserError("give a name, or the id of a thing")
        return self._write(name_photos(self.feedback.gallery(), self._rows(rows), name, thing))

    def take_out_photos(self, rows: list[int]) -> str:
        """Say that photos do not show the thing that they are in."""
        return self._write(take_out_photos(self.feedback.gallery(), self._rows(rows)))

    def undo_last(self) -> str:
        """Take back the last name or answer."""
        act = undo(self.store)
        self.feedback.invalidate()
        return f"undone: {describe_act(act, self.feedback.read())}"

    def _write(self, act: PhotoAct) -> str:
        self.feedback.append(act.entries)
        return act.message

    def _rows(self, ids: Sequence[int]) -> list[Row]:
        found = {one.id: one for one in self.store.rows([one for one in ids if 0 <= one < 2**63])}
        for one in ids:
            if one not in found:
                raise UserError(f"there is no row {one} in this store")
        return [found[one] for one in ids]

    def _facts(self, row: Row) -> dict[str, Any]:
        thing = self.feedback.gallery().thing_of.get(row.id)
        facts: dict[str, Any] = {
            "row": row.id,
            "path": row.image.path,
            "columns": dict(row.image.columns),
        }
        return facts | ({"thing": thing.name, "thing_id": thing.id} if thing else {})

    def _query(self, path: str, row: int | None, box: Box | None) -> Query:
        if row is None:
            return image_query(Path(path).expanduser(), box)
        found = self._rows([row])[0]
        if box is None:
            return Query(lambda _: _refuse_decoding(), found.image.hash, (self.store, found))
        return image_query(self.store.info.root / found.image.path, box)


def _refuse_decoding() -> tuple[Image.Image, Box | None]:
    raise UserError("this row's descriptor is in the store")


def _page(count: int) -> int:
    return max(1, min(_MOST, count))


def _jpeg(image: Image.Image) -> bytes:
    written = io.BytesIO()
    image.save(written, "JPEG", quality=85)
    return written.getvalue()


def make_server(tools: StoreTools, *, write: bool) -> Any:
    """The MCP server of these tools; without `write` it offers none that changes the store."""
    try:
        from mcp.server.mcpserver import Image as McpImage
        from mcp.server.mcpserver import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp_types import ToolAnnotations
    except ImportError:
        raise UserError("the MCP server needs the package mcp: pip install 'insclr[mcp]'") from None

    def explain(function: Callable[P, R]) -> Callable[P, Any]:
        @wraps(function)
        def run(*given: P.args, **named: P.kwargs) -> Any:
            try:
                found = function(*given, **named)
            except UserError as error:
                raise ToolError(str(error)) from error
            return McpImage(data=found, format="jpeg") if isinstance(found, bytes) else found

        run.__annotations__ = {**function.__annotations__, "return": Any}
        return run

    server = MCPServer("insclr", version=__version__, instructions=_INSTRUCTIONS, log_level="WARNING")
    reading = (
        *(tools.search_photos, tools.list_things, tools.list_photos, tools.list_columns),
        *(tools.describe_photo, tools.view_photo, tools.contact_sheet),
    )
    writing = (tools.name_photos, tools.take_out_photos, tools.undo_last) if write else ()
    for one in (*reading, *writing):
        hints = ToolAnnotations(read_only_hint=one in reading, open_world_hint=False)
        server.tool(annotations=hints, structured_output=False)(explain(one))
    return server
