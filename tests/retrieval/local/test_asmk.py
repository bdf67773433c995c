"""ASMK against a slow implementation of its formula; what a store keeps of it; what it says when it cannot."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from helpers.blots import placed, textured
from insclr.data.images import list_images
from insclr.describe.cells import MAX_CELLS, Cells, image_cells
from insclr.describe.describer import ModelDescriber
from insclr.engine.opened import open_in_memory
from insclr.errors import UserError
from insclr.files import content_hash
from insclr.model.model_file import Model, resolve_model
from insclr.options import SearchOptions
from insclr.retrieval.index import index_images
from insclr.retrieval.local.asmk import BITS, QUERY_WORDS, Aggregated, Codebook, InvertedFile, learn_codebook
from insclr.retrieval.local.keep_asmk import AsmkSearch, CellsOf, keep_asmk
from insclr.retrieval.local.local_feature_database import LocalFeatureDatabase
from insclr.retrieval.query import image_query
from insclr.retrieval.search import search
from insclr.store import IndexedImage, Store, StoreInfo, create_store, open_store


def unit(*shape: int, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


@pytest.fixture(scope="module")
def codebook() -> Codebook:
    return learn_codebook(unit(900, 160), images=9)


def slow_similarity(codebook: Codebook, query: np.ndarray, other: np.ndarray) -> float:
    """The formula of the paper, word by word, bit by bit."""

    def words(descriptors: np.ndarray, assigned: int) -> dict[int, np.ndarray]:
        sums: dict[int, np.ndarray] = {}
        for descriptor in descriptors:
            white = (descriptor - codebook.mean) @ codebook.projection
            white = white / np.linalg.norm(white)
            distances = ((codebook.centres - white) ** 2).sum(1)
            for word in np.argsort(distances)[:assigned].tolist():
                sums[word] = sums.get(word, np.zeros(BITS)) + white - codebook.centres[word]
        return sums

    mine, theirs = words(query, QUERY_WORDS), words(other, 1)
    total = 0.0
    for word in set(mine) & set(theirs):
        agreement = float(np.mean(np.sign(mine[word]) * np.sign(theirs[word])))
        total += agreement**3 if agreement > 0 else 0.0
    return total / np.sqrt(len(mine) * len(theirs))


def test_scores_are_those_of_the_formula(codebook: Codebook) -> None:
    images = [unit(12, 160, seed=seed) for seed in range(6)]
    query = np.concatenate([images[2][:6], unit(5, 160, seed=50)])
    file = InvertedFile(codebook, [codebook.aggregate(one) for one in images])
    found = file.scores(codebook.aggregate(query, QUERY_WORDS))
    expected = [slow_similarity(codebook, query, one) for one in images]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert found.argmax() == 2


def test_an_image_without_cells_is_like_nothing(codebook: Codebook) -> None:
    nothing = codebook.aggregate(np.zeros((0, 160), np.float32))
    file = InvertedFile(codebook, [nothing, codebook.aggregate(unit(5, 160))])
    assert file.scores(codebook.aggregate(unit(5, 160), QUERY_WORDS))[0] == 0
    assert file.scores(nothing).tolist() == [0, 0]
    assert InvertedFile(codebook, []).scores(codebook.aggregate(unit(5, 160))).shape == (0,)


def test_what_is_kept_comes_back_and_is_small(codebook: Codebook) -> None:
    one = codebook.aggregate(unit(MAX_CELLS, 160))
    kept = one.to_bytes()
    assert len(kept) == 18 * len(one.words) <= 18 * MAX_CELLS
    again = Aggregated.from_bytes(kept)
    assert (again.words == one.words).all()
    assert (again.codes == one.codes).all()
    other = Codebook.from_bytes(codebook.to_bytes())
    assert other.images == 9
    assert (other.aggregate(unit(9, 160)).codes == codebook.aggregate(unit(9, 160)).codes).all()


def test_too_little_to_learn_from_is_said() -> None:
    with pytest.raises(UserError, match="cannot be learned from 40 local descriptors"):
        learn_codebook(unit(40, 160), images=1)


@pytest.fixture(scope="module")
def model() -> Model:
    found = resolve_model("pretrained:efficientnet_lite0")
    return Model(
        found.network, found.recipe.with_(descriptor=found.recipe.descriptor.with_(size=64)), "f" * 16
    )


def test_cells_are_the_strongest_of_the_maps_of_both_scales(model: Model) -> None:
    opened = open_in_memory(model)
    (found,) = image_cells(opened, [textured(1)])
    assert len(found) == 4 + 16  # 64 and 128 px: maps of 2 x 2 and 4 x 4
    np.testing.assert_allclose(np.linalg.norm(found.descriptors, axis=1), 1, atol=1e-4)
    (fewer,) = image_cells(opened, [textured(1)], most=3)
    np.testing.assert_allclose(fewer.descriptors, found.descriptors[:3], atol=1e-5)


def test_cells_of_images_of_several_shapes_are_those_of_each_alone(model: Model) -> None:
    pictures = [textured(1), textured(2).crop((0, 0, 240, 120))]
    opened = open_in_memory(model, settings=lambda remembered: remembered.with_(fit="longest"))
    together = image_cells(opened, pictures)
    for picture, found in zip(pictures, together, strict=True):
        (alone,) = image_cells(opened, [picture])
        np.testing.assert_allclose(found.descriptors, alone.descriptors, atol=1e-4)


def test_a_store_is_searched_by_local_descriptors(model: Model, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for seed in range(20):
        textured(seed, 160).save(photos / f"{seed}.png")
    describer = ModelDescriber("pretrained:efficientnet_lite0", model, workers=0)
    store_at = tmp_path / "s"
    index_images(describer, list_images(photos), store_at)
    store = open_store(store_at)
    with pytest.raises(UserError, match=r"has no local descriptors: make them with .* --asmk"):
        search(store, describer, [image_query(textured(3))], SearchOptions(ranking="asmk"))
    store.close()
    index_images(describer, list_images(photos), store_at, asmk=True)
    placed(textured(3, 160), 0, 1.0, (10, 10)).save(photos / "again.png")
    (photos / "0.png").unlink()
    index_images(
        describer, list_images(photos), store_at, prune=True
    )  # a store that has them goes on having them
    store = open_store(store_at)
    kept = LocalFeatureDatabase(store.parts)
    assert kept.hashes("asmk") == {row.image.hash for row in store.rows_by_path().values()}
    kept.close()
    options = SearchOptions(ranking="asmk", top=5, where="path contains 3")
    matches = search(store, describer, [image_query(textured(3, 160))], options)
    assert matches[0].path == "3.png"
    assert {one.path for one in matches} == {"3.png", "13.png"}
    store.close()


def described_store(at: Path, count: int) -> tuple[Store, LocalFeatureDatabase, CellsOf]:
    """A store of so many photos, the file of its parts, and what describes their cells."""
    photos = at / "photos"
    photos.mkdir(parents=True)
    for seed in range(count):
        textured(seed, 64).save(photos / f"{seed}.png")
    store = create_store(at / "s", StoreInfo("m", "f", 4, photos))
    images = [
        IndexedImage(f"{seed}.png", content_hash((photos / f"{seed}.png").read_bytes()), 1, 1)
        for seed in range(count)
    ]
    store.upsert(images, np.eye(4, dtype=np.float32)[np.arange(count) % 4])

    def cells_of(pictures: Sequence[Image.Image]) -> list[Cells]:
        seeds = [int(np.asarray(one).sum()) for one in pictures]
        return [Cells(unit(300, 160, seed=seed), np.zeros((300, 4), np.float32)) for seed in seeds]

    return store, LocalFeatureDatabase(store.parts), cells_of


def test_a_search_while_they_are_made_does_not_hide_the_rest(tmp_path: Path) -> None:
    store, kept, cells_of = described_store(tmp_path, 3)
    keep_asmk(store, kept, cells_of, 64)
    whole = dict(kept.every("asmk"))
    kept.drop([sorted(whole)[0]])  # as if this one were still to come
    searcher, query = AsmkSearch(), cells_of([textured(0, 64)])
    assert len(searcher.scores(store, query)[0]) == 2
    keep_asmk(store, kept, cells_of, 64)
    assert dict(kept.every("asmk")) == whole
    assert len(searcher.scores(store, query)[0]) == 3


def test_two_stores_are_read_once_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stores, reads = [], []
    for number in range(2):
        store, kept, cells_of = described_store(tmp_path / str(number), 3 + number)
        keep_asmk(store, kept, cells_of, 64)
        stores.append(store)
    real = LocalFeatureDatabase.every

    def counted(self: LocalFeatureDatabase, table: str) -> Iterator[tuple[str, bytes]]:
        reads.append(table)
        return real(self, table)

    monkeypatch.setattr(LocalFeatureDatabase, "every", counted)
    searcher, query = AsmkSearch(), cells_of([textured(0, 64)])
    found = [len(searcher.scores(store, query)[0]) for store in stores * 2]
    assert (found, len(reads)) == ([3, 4, 3, 4], 2)


def test_an_unknown_ranking_is_refused() -> None:
    with pytest.raises(UserError, match="choose one of global, regions, asmk"):
        SearchOptions(ranking="best")
