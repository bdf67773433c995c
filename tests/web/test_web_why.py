"""The proof of a result: matched points over the API, for uploads, rows and boxes."""

import io
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from helpers.blots import textured
from helpers.textured_store import make_textured_store
from insclr.retrieval.local_database import LocalFeatureDatabase
from insclr.web.served import ServedStore


@pytest.fixture
def collection(tmp_path: Path) -> ServedStore:
    return make_textured_store(tmp_path)


def ref(collection: ServedStore, path: str) -> str:
    return f"0:{collection.store.rows_by_path()[path].id}"


def png(image: Image.Image) -> dict[str, tuple[str, bytes, str]]:
    written = io.BytesIO()
    image.save(written, "PNG")
    return {"pictures": ("query.png", written.getvalue(), "image/png")}


def test_an_upload_is_shown_where_it_is_found_again(client: TestClient, collection: ServedStore) -> None:
    answer = client.post(
        "/api/why", files=png(textured(1)), data={"found": ref(collection, "with.png")}
    ).json()
    assert answer["verified"]
    assert len(answer["query_points"]) == len(answer["found_points"]) == answer["inliers"] >= 20
    # The thing's 240 px became 180 of the photo's 480, from (200, 100) on.
    expected = np.array(answer["query_points"]) * 180 / 480 + np.array([200, 100]) / 480
    np.testing.assert_allclose(answer["found_points"], expected, atol=0.015)
    np.testing.assert_allclose(np.array(answer["transform"])[:, :2], np.eye(2) * 0.375, atol=0.02)
    left, top, right, bottom = answer["box"]
    assert 0.38 < left < right < 0.82
    assert 0.18 < top < bottom < 0.61


def test_rows_and_boxes_are_compared_too(client: TestClient, collection: ServedStore) -> None:
    data = {"rows": ref(collection, "thing.png"), "found": ref(collection, "with.png")}
    assert client.post("/api/why", data=data).json()["verified"]
    data |= {"row_boxes": "0,0,0.5,1", "box_unit": "fraction"}
    left, _, right, _ = client.post("/api/why", data=data).json()["box"]
    assert (left, right) == pytest.approx((200 / 480, 290 / 480), abs=0.03)


@pytest.mark.parametrize(
    ("query", "found", "sentence"),
    [
        (textured(1), "without.png", "found by its overall look alone"),
        (textured(1), "grey.png", "This photo has no points to match"),
        (Image.new("RGB", (100, 100)), "with.png", "The query has no points to match"),
        (textured(1).transpose(Image.Transpose.FLIP_LEFT_RIGHT), "with.png", "overall look alone"),
    ],
)
def test_geometry_that_is_not_there_is_not_reported(
    client: TestClient, collection: ServedStore, query: Image.Image, found: str, sentence: str
) -> None:
    answer = client.post("/api/why", files=png(query), data={"found": ref(collection, found)}).json()
    assert not answer["verified"]
    assert sentence in answer["sentence"]
    assert answer["query_points"] == answer["found_points"] == []
    assert answer["box"] is None


def test_a_photo_without_kept_features_is_compared_by_its_file(
    client: TestClient, collection: ServedStore
) -> None:
    kept = LocalFeatureDatabase(collection.store.parts)
    kept.drop(kept.hashes())
    kept.close()
    data = {"rows": ref(collection, "thing.png"), "found": ref(collection, "with.png")}
    assert client.post("/api/why", data=data).json()["verified"]


def test_what_cannot_be_compared_is_refused(client: TestClient, collection: ServedStore) -> None:
    with_ = ref(collection, "with.png")
    assert client.post("/api/why", data={"found": with_}).status_code == 422
    assert client.post("/api/why", files=png(textured(1)), data={"found": "0:999999"}).status_code == 404
    assert client.post("/api/why", files=png(textured(1)), data={"found": "../x"}).status_code == 422
    broken = {"pictures": ("a.png", b"no picture", "image/png")}
    assert client.post("/api/why", files=broken, data={"found": with_}).status_code == 415


def test_a_verified_search_gives_points_and_boxes(client: TestClient) -> None:
    answer = client.post("/api/search", files=png(textured(1)), data={"local": "on"})
    matches = {one["path"]: one for one in answer.json()["matches"]}
    assert matches["with.png"]["inliers"] >= 20
    assert matches["with.png"]["box"] is not None
    assert matches["without.png"]["inliers"] == matches["grey.png"]["inliers"] == 0
    assert next(iter(matches)) in ("with.png", "thing.png")


def test_a_store_without_local_features_reports_what_to_do(
    client: TestClient, collection: ServedStore
) -> None:
    kept = LocalFeatureDatabase(collection.store.parts)
    kept.drop(kept.hashes())
    kept.close()
    answer = client.post("/api/search", files=png(textured(1)), data={"local": "on"})
    assert answer.status_code == 400
    assert "insclr index" in answer.json()["detail"]


def test_a_search_by_regions_gives_boxes(client: TestClient) -> None:
    answer = client.post("/api/search", files=png(textured(1)), data={"ranking": "regions"}).json()
    assert len({one["path"] for one in answer["matches"]}) == len(answer["matches"]) == 4
    assert all(len(one["box"]) == 4 for one in answer["matches"])
