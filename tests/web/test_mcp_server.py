"""The MCP server, asked by the client of the official library: in this process, and as a command."""

import asyncio
import io
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from helpers.drawn_store import make_store
from insclr.feedback.feedback import read_feedback
from insclr.web.served import ServedStore

mcp = pytest.importorskip("mcp")

from insclr.web.mcp_server import StoreTools, make_server  # noqa: E402

Talk = Callable[[Any], Awaitable[None]]
READING = {
    *("search_photos", "list_things", "list_photos", "list_columns"),
    *("describe_photo", "view_photo", "contact_sheet"),
}


@pytest.fixture
def collection(tmp_path: Path) -> ServedStore:
    return make_store(tmp_path, things=3, views=6)


def converse(collection: ServedStore, talk: Talk, *, write: bool = False) -> None:
    async def run() -> None:
        server = make_server(StoreTools(collection.store, collection.describer), write=write)
        async with mcp.Client(server) as client:
            await talk(client)

    asyncio.run(run())


async def ask(client: Any, tool: str, **arguments: object) -> Any:
    answer = await client.call_tool(tool, arguments)
    assert not answer.is_error, answer.content
    return json.loads(answer.content[0].text)


async def refuse(client: Any, tool: str, **arguments: object) -> str:
    answer = await client.call_tool(tool, arguments)
    assert answer.is_error
    return answer.content[0].text


def row_of(collection: ServedStore, path: str) -> int:
    return collection.store.rows_by_path()[path].id


def test_only_reading_is_offered_unless_asked(collection: ServedStore) -> None:
    async def talk(client: Any) -> None:
        tools = (await client.list_tools()).tools
        assert {one.name for one in tools} == READING
        assert all(one.annotations.read_only_hint and one.description for one in tools)
        answer = await client.call_tool("name_photos", {"rows": [1], "name": "x"})
        assert answer.is_error

    async def talk_writing(client: Any) -> None:
        names = {one.name for one in (await client.list_tools()).tools}
        assert names - READING == {"name_photos", "take_out_photos", "undo_last"}

    converse(collection, talk_writing, write=True)
    try:
        converse(collection, talk)
    except* Exception as group:  # an unknown tool may be an error of the protocol
        assert "name_photos" in str(group.exceptions)  # noqa: PT017
    assert collection.store.journal() == []


def test_search_by_row_path_and_box_in_pages(collection: ServedStore) -> None:
    async def talk(client: Any) -> None:
        row = row_of(collection, "1/0.png")
        first = await ask(client, "search_photos", row=row, count=4)
        assert first["results"][0] | {"score": 1} == {
            "row": row,
            "path": "1/0.png",
            "score": 1,
            "band": "sure",
            "is_query": True,
        }
        assert {one["path"][0] for one in first["results"]} == {"1"}
        assert first["remaining"] > 0
        second = await ask(client, "search_photos", row=row, count=4, offset=4)
        assert not {one["row"] for one in first["results"]} & {one["row"] for one in second["results"]}
        file = str(collection.store.info.root / "2" / "1.png")
        by_path = await ask(client, "search_photos", path=file, where="year >= 2013", count=2)
        assert {one["path"][0] for one in by_path["results"]} == {"2"}
        boxed = await ask(client, "search_photos", row=row, box=[0, 20, 60, 60])
        assert boxed["results"]
        assert "either path or row" in await refuse(client, "search_photos")
        assert "no row 999" in await refuse(client, "search_photos", row=999)
        assert "no column" in await refuse(client, "search_photos", row=row, where="colour = red")
        assert "cannot be searched for" in await refuse(client, "search_photos", path="/nowhere.jpg")

    converse(collection, talk)


def test_columns_and_photos_come_in_pages(collection: ServedStore) -> None:
    async def talk(client: Any) -> None:
        assert (await ask(client, "list_columns"))["columns"] == ["path", "thing", "year"]
        found = await ask(client, "list_columns", column="thing", count=2)
        assert found["kind"] == "number"
        assert [one["photos"] for one in found["values"]] == [6, 6]
        assert found["remaining"] == 1
        photos = await ask(client, "list_photos", where="thing = 2", count=4)
        assert [one["path"] for one in photos["photos"]] == [f"2/{i}.png" for i in range(4)]
        assert photos["remaining"] == 2

    converse(collection, talk)


def test_a_contact_sheet_is_one_image(collection: ServedStore) -> None:
    async def talk(client: Any) -> None:
        rows = [row_of(collection, f"{thing}/0.png") for thing in (0, 1, 2)]
        answer = await client.call_tool("contact_sheet", {"rows": rows})
        import base64

        with Image.open(io.BytesIO(base64.b64decode(answer.content[0].data))) as sheet:
            assert sheet.width > 3 * 100
            parts = [sheet.getpixel((180 * place + 60, 120)) for place in range(3)]
        assert len(set(parts)) == 3
        assert "1 to 48 photos" in await refuse(client, "contact_sheet", rows=[])

    converse(collection, talk)


def test_names_are_written_and_undone(collection: ServedStore) -> None:
    async def talk(client: Any) -> None:
        rows = [row_of(collection, f"1/{view}.png") for view in range(6)]
        await client.call_tool("name_photos", {"rows": rows, "name": "Mug"})
        things = await ask(client, "list_things", contains="mu")
        assert [(one["name"], one["photos"]) for one in things["things"]] == [("Mug", 6)]
        assert (await ask(client, "describe_photo", row=rows[0]))["thing"] == "Mug"
        await client.call_tool("take_out_photos", {"rows": rows[:1]})
        assert (await ask(client, "list_photos", thing="Mug"))["remaining"] == 0
        assert len((await ask(client, "list_photos", thing="Mug"))["photos"]) == 5
        for _ in range(2):
            await client.call_tool("undo_last", {})
        assert (await ask(client, "list_things", named_only=True))["things"] == []
        assert "nothing to undo" in await refuse(client, "undo_last")

    converse(collection, talk, write=True)
    assert not read_feedback(collection.store).things


def test_the_command_writes_the_protocol_and_nothing_else(tmp_path: Path) -> None:
    from insclr.api import index

    (tmp_path / "photos").mkdir()
    for i, colour in enumerate(("red", "green", "blue")):
        Image.new("RGB", (64, 64), colour).save(tmp_path / "photos" / f"{i}.png")
    index("pretrained:efficientnet_lite0", tmp_path / "photos", tmp_path / "store")

    async def run() -> None:
        command = ["-m", "insclr", "mcp", str(tmp_path / "store")]
        server = mcp.StdioServerParameters(command=sys.executable, args=command)
        async with mcp.Client(server) as client:
            assert {one.name for one in (await client.list_tools()).tools} == READING
            found = await ask(client, "search_photos", path=str(tmp_path / "photos" / "1.png"))
            assert found["results"][0]["path"] == "1.png"

    asyncio.run(run())
