"""The API of single photos: photos that match nothing are named like others, and every change is one undo."""

import io
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from PIL import Image

from helpers.clients import client_of
from helpers.histogram_describer import HistogramDescriber
from insclr.data.boxes import list_boxes
from insclr.data.images import list_images
from insclr.retrieval.index import index_images
from insclr.store import open_store
from insclr.web.served import ServedStore

BASE = "/api/stores/0"
MODEL = HistogramDescriber.fingerprint


def listed(client: TestClient, **query: str) -> list[dict]:
    answer = client.get(f"{BASE}/photos", params={"count": "500", **query})
    assert answer.status_code == 200, answer.text
    return answer.json()["photos"]


def refs_of(client: TestClient, folder: str) -> list[str]:
    return [one["ref"] for one in listed(client, where=f"path contains '{folder}/'")]


def ask(client: TestClient, path: str, status: int = 200, **body: object) -> dict:
    answer = client.post(f"{BASE}/{path}", json={"fingerprint": MODEL, **body})
    assert answer.status_code == status, answer.text
    return answer.json()


def take_out(client: TestClient) -> str:
    """A photo that matches nothing: it was taken out of its thing."""
    ref = refs_of(client, "2")[0]
    ask(client, "photos/remove", refs=[ref])
    assert ref in [one["ref"] for one in listed(client, show="new")]
    return ref


def test_a_photo_that_matches_nothing_gets_a_name_and_leaves_the_list(client: TestClient) -> None:
    ref = take_out(client)
    done = ask(client, "photos/name", refs=[ref], name="Lamp")
    assert ref not in [one["ref"] for one in listed(client, show="new")]
    found = {one["ref"]: one for one in listed(client, show="named")}
    assert found[ref]["thing"] == "Lamp"
    assert found[ref]["by"] == "person"
    assert client.get(f"{BASE}/things/{done['id']}").json()["name"] == "Lamp"


def test_photos_are_added_to_a_thing_of_the_same_name(client: TestClient) -> None:
    first, second = refs_of(client, "1")[:1], refs_of(client, "3")[:1]
    one = ask(client, "photos/name", refs=first, name="Mug")
    two = ask(client, "photos/name", refs=second, name="mug")
    assert two["id"] == one["id"]
    assert two["message"] == "1 added to Mug"
    shown = {photo["ref"] for photo in client.get(f"{BASE}/things/{one['id']}").json()["pictures"]}
    assert {*first, *second} <= shown


def test_adding_to_a_group_without_a_name_is_one_undo(client: TestClient) -> None:
    ref = take_out(client)
    group = client.get(f"{BASE}/photos/{refs_of(client, '4')[0][2:]}/thing").json()
    done = ask(client, "photos/name", refs=[ref], thing=group["id"])
    assert client.get(f"{BASE}/things/{done['id']}").json()["photos"] == group["photos"] + 1
    ask(client, "undo")
    assert client.get(f"{BASE}/photos/{ref[2:]}/thing").status_code == 404
    assert client.get(f"{BASE}/things/{group['id']}").json()["photos"] == group["photos"]


def test_names_are_offered_by_likeness(client: TestClient) -> None:
    for folder in ("0", "1", "2", "3"):
        ask(client, "photos/name", refs=refs_of(client, folder)[:4], name=f"thing {folder}")
    for folder in ("0", "1", "2", "3"):
        offered = ask(client, "photos/things", refs=refs_of(client, folder)[6:7])
        assert offered[0]["name"] == f"thing {folder}"
        scores = [one["score"] for one in offered]
        assert scores == sorted(scores, reverse=True)
    everything = client.post(
        f"{BASE}/photos/things?unnamed=true", json={"fingerprint": MODEL, "refs": refs_of(client, "0")[:1]}
    ).json()
    assert any(not one["name"] for one in everything)


def test_two_things_never_share_a_name_unasked(client: TestClient) -> None:
    one = ask(client, "photos/name", refs=refs_of(client, "1"), name="Mug")
    two = ask(client, "photos/name", refs=refs_of(client, "3"), name="Cup")
    refused = ask(client, f"things/{two['id']}/name", 409, name="mug")
    assert refused["detail"] == "another thing of 8 photos is called Mug"
    ask(client, f"things/{two['id']}/name", name="Mug", again=True)
    assert [t["name"] for t in client.get(f"{BASE}/things").json()["things"]].count("Mug") == 2
    assert one["id"] != two["id"]


def test_joining_two_named_things_asks_which_name_stays(client: TestClient) -> None:
    one = ask(client, "photos/name", refs=refs_of(client, "1"), name="Mug")["id"]
    two = ask(client, "photos/name", refs=refs_of(client, "3"), name="Cup")["id"]
    assert "choose one name" in ask(client, f"things/{one}/merge", 409, into=two)["detail"]
    joined = ask(client, f"things/{one}/merge", into=two, name="Mug")["id"]
    page = client.get(f"{BASE}/things/{joined}").json()
    assert (page["name"], page["photos"]) == ("Mug", 16)
    ask(client, "undo")
    names = {t["name"] for t in client.get(f"{BASE}/things").json()["things"]}
    assert {"Mug", "Cup"} <= names


@pytest.mark.parametrize(("show", "expected"), [("named", 8), ("unnamed", 40), ("all", 48)])
def test_photos_are_filtered_by_names(client: TestClient, show: str, expected: int) -> None:
    ask(client, "photos/name", refs=refs_of(client, "5"), name="Ship")
    assert len(listed(client, show=show)) == expected


def test_photos_are_filtered_by_columns_and_come_in_pages_with_headings(client: TestClient) -> None:
    found = client.get(
        f"{BASE}/photos", params={"where": "year >= 2010 and not thing = '2'", "count": 5, "offset": 3}
    ).json()
    years = [int(one["columns"]["year"]) for one in listed(client, where="year >= 2010 and not thing = '2'")]
    assert found["total"] == len(years) == 48 - 10 - 8
    assert len(found["photos"]) == 5
    assert min(years) == 2010
    assert [one["title"] for one in found["headings"]] == ["1", "3", "4", "5"]
    assert client.get(f"{BASE}/photos", params={"where": "colour = red"}).status_code == 400


def test_chosen_photos_are_downloaded_as_they_are(client: TestClient, collection: ServedStore) -> None:
    refs = refs_of(client, "1")[:2]
    rows = [collection.row(int(ref[2:])) for ref in refs]
    gone = collection.row(int(refs_of(client, "4")[0][2:]))
    collection.file(gone).unlink()
    answer = client.post(f"{BASE}/photos/zip", json={"fingerprint": MODEL, "refs": [*refs, f"0:{gone.id}"]})
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert archive.testzip() is None
        for row in rows:
            assert archive.read(row.image.path) == collection.file(row).read_bytes()
        assert gone.image.path in archive.read("missing.txt").decode()
    with client_of(collection, originals=False) as closed:
        refused = closed.post(f"{BASE}/photos/zip", json={"fingerprint": MODEL, "refs": refs})
        assert refused.status_code == 403


def test_photos_of_another_model_are_refused(client: TestClient) -> None:
    answer = client.post(f"{BASE}/photos/name", json={"fingerprint": "other", "refs": ["0:1"], "name": "x"})
    assert answer.status_code == 409
    assert not listed(client, show="named")


def test_camera_data_stay_here_where_originals_do(collection: ServedStore) -> None:
    rows = [row.image for row in collection.store.rows_by_path().values()]
    taken = {"taken": "2024-05-01 12:00:00", "latitude": "48.1", "year": "2024"}
    collection.store.update([replace(one, columns=taken) for one in rows])
    with client_of(collection) as client:
        assert listed(client, where="taken > '2024'", order="newest")[0]["columns"] == taken
        headings = client.get(f"{BASE}/photos", params={"order": "newest"}).json()["headings"]
        assert headings == [{"title": "2024-05", "offset": 0}]
    with client_of(collection, originals=False) as closed:
        assert listed(closed)[0]["columns"] == {"year": "2024"}
        assert "taken" not in closed.get("/api/about").text
        assert closed.get(f"{BASE}/photos", params={"where": "latitude > 40"}).status_code == 400
        found = closed.post("/api/search", data={"rows": "0:1"}).json()["matches"]
        assert found[0]["columns"] == {"year": "2024"}


def test_a_box_is_a_row_with_its_part_and_its_whole_photo(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    image = Image.new("RGB", (200, 80), "red")
    image.paste(Image.new("RGB", (100, 80), "blue"), (100, 0))
    image.save(tmp_path / "photos" / "a.png")
    (tmp_path / "boxes.csv").write_text("path,x1,y1,x2,y2\na.png,0,0,100,80\na.png,100,0,200,80\n")
    describer = HistogramDescriber()
    boxes = list_boxes(tmp_path / "boxes.csv", list_images(tmp_path / "photos"))
    index_images(describer, boxes, tmp_path / "store")
    with client_of(ServedStore("Search", open_store(tmp_path / "store"), describer)) as client:
        found = listed(client)
        assert [one["part"] for one in found] == [[0, 0, 0.5, 1], [0.5, 0, 1, 1]]
        assert found[0]["original"] == ""
        for address, size in (
            (found[1]["picture"], (100, 80)),
            (found[1]["picture"] + "?whole=true", (200, 80)),
        ):
            with Image.open(io.BytesIO(client.get(address).content)) as shown:
                assert shown.size == size
        assert client.get(found[0]["thumbnail"]).status_code == 200
        assert client.get(found[0]["picture"].replace("picture", "original")).status_code == 404
        matches = client.post("/api/search", data={"rows": found[1]["ref"]}).json()["matches"]
        assert [one["part"] for one in matches] == [[0.5, 0, 1, 1], [0, 0, 0.5, 1]]


def test_names_go_out_as_a_table_and_come_back_in_one_step(client: TestClient) -> None:
    ask(client, "photos/name", refs=refs_of(client, "1"), name="=Mug")
    table = client.get(f"{BASE}/names.csv").content.decode("utf-8-sig")
    assert table.splitlines()[:2] == ["path,name,by", "1/0.png,'=Mug,person"]
    edited = table.replace("1/0.png,'=Mug", "1/0.png,Cup") + "3/0.png,Cup,\nnowhere.png,Cup,\n4/0.png,,\n"
    answer = client.post(f"{BASE}/names.csv", content=edited, headers={"content-type": "text/csv"})
    assert answer.json() == {"named": 2, "unchanged": 7, "unknown": ["nowhere.png"]}
    named = {one["path"]: one["thing"] for one in listed(client, show="named") if one["by"] == "person"}
    assert (named["1/0.png"], named["3/0.png"], named["1/1.png"]) == ("Cup", "Cup", "=Mug")
    assert len(client.get(f"{BASE}/history").json()["steps"]) == 2
    ask(client, "undo")
    assert {one["thing"] for one in listed(client, show="named")} == {"=Mug"}
    refused = client.post(f"{BASE}/names.csv", content="a,b\n", headers={"content-type": "text/csv"})
    assert refused.status_code == 400
    assert refused.json()["detail"].startswith('the table: no column "path"')


def test_a_part_of_a_photo_of_the_store_finds_that_photo_first(client: TestClient) -> None:
    refs = [one["ref"] for one in listed(client)]
    for ref in refs[::7]:
        # The narrow upper part has one colour: photos of other things may be more similar to it.
        form = {"rows": ref, "row_boxes": "0,0,1,0.1", "box_unit": "fraction", "top": "5"}
        matches = client.post("/api/search", data=form).json()["matches"]
        assert (matches[0]["ref"], matches[0]["is_query"]) == (ref, True)
        assert not any(one["is_query"] for one in matches[1:])
        assert len(matches) == 6


def test_a_photo_that_is_something_else_leaves_the_results_of_a_search(client: TestClient) -> None:
    query, other, *_ = refs_of(client, "1")

    def found(ref: str) -> list[str]:
        return [one["ref"] for one in client.post("/api/search", data={"rows": ref}).json()["matches"]]

    assert other in found(query)
    ask(client, "photos/different", query=query, refs=[other])
    assert other not in found(query)
    assert query not in found(other)[1:]
    third = refs_of(client, "1")[2]
    assert other in found(third)
    ask(client, "undo")
    assert other in found(query)
    ask(client, "photos/different", 422, query=query, refs=[query])
