"""The API of things and of teaching: what people say is kept, shown, undone, and never believed blindly."""

from collections.abc import Sequence
from contextlib import closing

import pytest
from fastapi.testclient import TestClient

from helpers.clients import client_of
from helpers.histogram_describer import HistogramDescriber
from insclr.feedback.feedback import read_feedback
from insclr.store import open_store
from insclr.store.local import LocalStore
from insclr.web.served import ServedStore

BASE = "/api/stores/0"
MODEL = HistogramDescriber.fingerprint


def things(client: TestClient, **query: object) -> list[dict]:
    answer = client.get(f"{BASE}/things", params=query)  # type: ignore[arg-type]
    assert answer.status_code == 200, answer.text
    return answer.json()["things"]


def thing_of(client: TestClient, folder: str) -> dict:
    """The thing that most photos of a folder are in: the drawn things have one each."""
    pages = [client.get(f"{BASE}/things/{one['id']}").json() for one in things(client)]
    return max(pages, key=lambda page: sum(one["path"].startswith(f"{folder}/") for one in page["pictures"]))


def say(client: TestClient, path: str, **body: object) -> dict:
    answer = client.post(f"{BASE}/{path}", json={"fingerprint": MODEL, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_gallery_holds_every_photo_of_a_group_once_largest_first(client: TestClient) -> None:
    found = things(client)
    sizes = [one["photos"] for one in found]
    assert sizes == sorted(sizes, reverse=True)
    alone = client.get(f"{BASE}/things").json()["alone"]
    assert sum(sizes) + alone == 48
    assert all(len(one["covers"]) == min(4, one["photos"]) for one in found)


def test_a_named_thing_keeps_its_link_and_its_name_is_in_search_results(client: TestClient) -> None:
    page = thing_of(client, "2")
    done = say(client, f"things/{page['id']}/name", name=" Ann's <b>mug</b> ")
    assert done["id"].startswith("thing-")
    again = client.get(f"{BASE}/things/{done['id']}").json()
    assert again["name"] == "Ann's <b>mug</b>"
    assert again["photos"] == page["photos"]
    assert again["confirmed"] == 0  # it was named as a group: nobody said it of each photo
    # The link of the group leads to the thing that it became.
    assert client.get(f"{BASE}/things/{page['id']}").json()["id"] == done["id"]
    photo = page["pictures"][0]["ref"]
    found = client.post("/api/search", data={"rows": photo, "top": 3}).json()["matches"]
    inside = {one["ref"] for one in page["pictures"]}
    assert [one["thing"] for one in found] == [
        "Ann's <b>mug</b>" if one["ref"] in inside else "" for one in found
    ]
    assert found[0]["thing"]


@pytest.mark.parametrize("same", [True, False])
def test_a_photo_that_looks_like_a_thing_waits_for_a_person(client: TestClient, same: bool) -> None:
    page = thing_of(client, "2")
    *chosen, left = [one["ref"] for one in page["pictures"]]
    id_ = say(client, "photos/name", refs=chosen, name="mug")["id"]
    waiting = client.get(f"{BASE}/things/{id_}").json()
    assert [one["ref"] for one in waiting["proposals"]] == [left]
    assert (waiting["photos"], waiting["proposed"], waiting["confirmed"]) == (len(chosen), 1, len(chosen))
    say(client, f"things/{id_}/proposals", refs=[left], same=same)
    then = client.get(f"{BASE}/things/{id_}").json()
    assert (then["photos"], then["proposed"]) == (len(chosen) + same, 0)
    again = client.post(
        f"{BASE}/things/{id_}/proposals", json={"fingerprint": MODEL, "refs": [left], "same": same}
    )
    assert again.status_code == 409


def test_not_this_one_takes_a_photo_out_and_undo_brings_it_back(client: TestClient) -> None:
    page = thing_of(client, "1")
    taken = page["pictures"][-1]["ref"]
    done = say(client, "photos/remove", refs=[taken])
    after = client.get(f"{BASE}/things/{done['id']}").json()
    assert taken not in {one["ref"] for one in after["pictures"]}
    assert after["photos"] == page["photos"] - 1
    assert "taken out" in say(client, "undo")["message"]
    again = client.get(f"{BASE}/photos/{taken[2:]}/thing").json()
    assert {one["ref"] for one in again["pictures"]} == {one["ref"] for one in page["pictures"]}


def test_split_merge_and_hide(client: TestClient) -> None:
    page = thing_of(client, "3")
    some = [one["ref"] for one in page["pictures"][:2]]
    own = say(client, "photos/name", refs=some)
    half = client.get(f"{BASE}/things/{own['id']}").json()
    assert {one["ref"] for one in half["pictures"]} == set(some)
    rest = thing_of(client, "3")
    assert not set(some) & {one["ref"] for one in rest["pictures"]}
    assert (half["proposals"], rest["proposals"]) == ([], [])  # they are not the same thing
    say(client, f"things/{own['id']}/name", name="half")
    joined = say(client, f"things/{own['id']}/merge", into=rest["id"])
    whole = client.get(f"{BASE}/things/{joined['id']}").json()
    assert whole["photos"] == page["photos"]
    assert whole["name"] == "half"
    say(client, f"things/{joined['id']}/hide", hidden=True)
    assert joined["id"] not in {one["id"] for one in things(client)}
    assert joined["id"] in {one["id"] for one in things(client, hidden=True)}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("things/thing-0000/name", {"name": "x"}, 400),
        ("things/..%2f..%2fetc/name", {"name": "x"}, 404),
        ("things/{id}/name", {"name": "x" * 121}, 400),
        ("things/{id}/name", {"name": "x" * 100_000}, 422),
        ("things/{id}/name", {"name": "a\x1b[2J"}, 400),
        ("photos/remove", {"refs": []}, 422),
        ("photos/remove", {"refs": ["0:999999"]}, 404),
        ("photos/remove", {"refs": ["x"]}, 422),
        ("things/{id}/merge", {"into": "{id}"}, 422),
        ("undo", {}, 400),
        ("teach/answer", {"query": "0:1", "same": [], "different": []}, 422),
        ("teach/answer", {"query": "0:1", "same": ["0:1"]}, 422),
        ("teach/answer", {"query": "0:1", "same": ["0:2"], "different": ["0:2"]}, 422),
        ("teach/learn", {}, 409),
        ("teach/judge", {"query": "0:1", "result": "0:2", "rank": 1, "model": "gone", "same": True}, 409),
        # Of a page that was loaded before a new model was served, and of a program that does not say which it saw.
        ("teach/answer", {"fingerprint": "old", "query": "0:1", "same": ["0:2"]}, 409),
        ("teach/answer", {"fingerprint": None, "query": "0:1", "same": ["0:2"]}, 422),
        ("teach/skip", {"fingerprint": "old", "query": "0:1"}, 409),
        (
            "teach/judge",
            {"fingerprint": "old", "query": "0:1", "result": "0:2", "rank": 1, "model": MODEL, "same": True},
            409,
        ),
        ("photos/remove", {"fingerprint": "old", "refs": ["0:1"]}, 409),
    ],
)
def test_nonsense_is_refused_and_leaves_nothing(
    client: TestClient, collection: ServedStore, path: str, body: dict, status: int
) -> None:
    address = f"{BASE}/{path.format(id=things(client)[0]['id'])}"
    answer = client.post(address, json={"fingerprint": MODEL, **body})
    assert answer.status_code == status, answer.text
    assert collection.store.journal() == []


@pytest.mark.parametrize("body", ['{"name": NaN}', '{"name": 1e999}', '{"name": "\\ud800"}'])
def test_a_name_that_is_no_text_is_refused(client: TestClient, collection: ServedStore, body: str) -> None:
    address = f"{BASE}/things/{things(client)[0]['id']}/name"
    answer = client.post(address, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422, answer.text
    assert collection.store.journal() == []


def test_things_are_shown_while_another_process_drops_rows(
    client: TestClient, collection: ServedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows go after the server has listed them and before it reads their descriptors."""
    monkeypatch.setattr("insclr.store.local.RELOAD_SHARE", 1e9)  # reload at once
    real = LocalStore.descriptors

    def drop_first(store: LocalStore, ids: Sequence[int]) -> object:
        monkeypatch.setattr(LocalStore, "descriptors", real)
        with closing(open_store(collection.store.uri)) as other:
            other.delete([row.image.path for row in other.rows(list(ids)[:3])])
        return real(store, ids)

    monkeypatch.setattr(LocalStore, "descriptors", drop_first)
    answer = client.get(f"{BASE}/things").json()
    assert sum(one["photos"] for one in answer["things"]) + answer["alone"] == 45


def test_another_site_or_a_client_without_the_token_cannot_write(collection: ServedStore) -> None:
    with client_of(collection, token="secret-token") as client:
        assert client.get(f"{BASE}/things").status_code == 401
        assert client.post(f"{BASE}/teach/learn").status_code == 401
        headers = {"authorization": "Bearer secret-token", "origin": "http://evil.example"}
        assert client.post(f"{BASE}/undo", json={}, headers=headers).status_code == 403
        assert client.get(f"{BASE}/teach/screen", headers=headers).status_code == 200


def test_a_line_end_in_a_name_cannot_forge_another_line(client: TestClient) -> None:
    page = thing_of(client, "0")
    done = say(client, f"things/{page['id']}/name", name="mug\n1  forged")
    assert client.get(f"{BASE}/things/{done['id']}").json()["name"] == "mug 1 forged"


def test_what_is_shown_tells_its_model(client: TestClient) -> None:
    group = things(client)[0]["id"]
    for path in ("teach/screen", "teach/sample", f"things/{group}"):
        assert client.get(f"{BASE}/{path}").json()["fingerprint"] == MODEL


def test_answers_are_kept_and_lead_to_other_screens(client: TestClient, collection: ServedStore) -> None:
    first = client.get(f"{BASE}/teach/screen").json()
    query, candidates = first["query"], [one["ref"] for one in first["candidates"]]
    assert 1 <= len(candidates) <= 12
    assert query["ref"] not in candidates
    assert len(set(candidates)) == len(candidates)
    second = say(client, "teach/answer", query=query["ref"], same=candidates[:1], different=candidates[1:])
    assert second["screens"] == 1
    said = read_feedback(collection.store)
    assert sum(link.same for link in said.links) == 1
    assert len(said.links) == len(candidates)
    assert said.asked_by[said.entries[0].id] == collection.store.info.fingerprint
    asked = {query["ref"], *candidates}
    assert (
        second["query"] is None
        or {second["query"]["ref"], *(one["ref"] for one in second["candidates"])} != asked
    )
    if second["query"]:
        third = say(client, "teach/skip", query=second["query"]["ref"])
        assert third["query"] is None or third["query"]["ref"] != second["query"]["ref"]


def test_a_contradiction_is_shown_with_its_chain_and_can_be_taken_back(client: TestClient) -> None:
    a, b, c = (one["ref"] for one in thing_of(client, "4")["pictures"][:3])
    say(client, "teach/answer", query=a, same=[b])
    say(client, "teach/answer", query=b, same=[c])
    told = say(client, "teach/answer", query=c, different=[a])
    assert len(told["contradictions"]) == 1
    chain = told["contradictions"][0]["chain"]
    assert {chain[0]["one"]["ref"], chain[0]["other"]["ref"]} == {b, c}
    assert {chain[1]["one"]["ref"], chain[1]["other"]["ref"]} == {a, b}
    say(client, "undo", entry=chain[0]["entry"])
    assert client.get(f"{BASE}/teach/screen").json()["contradictions"] == []


def test_the_proof_appears_after_thirty_judged_results(client: TestClient) -> None:
    answer = client.get(f"{BASE}/teach/sample").json()
    assert answer["judged"] == 0
    for number in range(30):
        assert answer["query"]["ref"] != answer["result"]["ref"]
        right = answer["query"]["path"].split("/")[0] == answer["result"]["path"].split("/")[0]
        answer = say(
            client,
            "teach/judge",
            query=answer["query"]["ref"],
            result=answer["result"]["ref"],
            rank=answer["rank"],
            model=answer["model"],
            same=right,
        )
        assert answer["judged"] == number + 1
    assert "between" in answer["sentences"][0]
    assert "from 30 judged results" in answer["sentences"][0]
