"""Groups that matched points prove: things in them, no chains, and nothing where few photos match."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from helpers.blots import placed, textured
from helpers.histogram_describer import HistogramDescriber
from insclr.data.images import list_images
from insclr.data.tuples import FeedbackGroups
from insclr.retrieval.index import index_images
from insclr.retrieval.verified_groups import find_verified_groups, group_pairs, proven_groups


def pairs_of(*pairs: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(pairs, np.int64).reshape(-1, 2), np.linspace(9, 5, len(pairs))


def test_photos_of_one_print_are_a_group_and_others_are_in_none(tmp_path: Path) -> None:
    for i in range(9):  # three photos of each of three things
        photo = placed(textured(i // 3), 30 * (i % 3), 0.9, (60, 50), seed=100 + i)
        photo.save(tmp_path / f"{i}.png")
    textured(50, 480).save(tmp_path / "x.png")
    Image.new("RGB", (200, 200), "grey").save(tmp_path / "y.png")
    (tmp_path / "z.png").write_bytes(b"no image")
    found = find_verified_groups(list_images(tmp_path), least=1)
    assert found is not None
    assert find_verified_groups(list_images(tmp_path)) is None  # too few photos to train on
    groups = found.groups.tolist()
    assert [groups[i] == groups[j] for i in range(9) for j in range(9)] == [
        i // 3 == j // 3 for i in range(9) for j in range(9)
    ]
    assert found.proven.tolist() == [True] * 9 + [False] * 3
    assert not found.decided.any()  # nobody has said so


def test_smooth_photos_are_in_no_group(tmp_path: Path) -> None:
    for i in range(6):
        Image.new("RGB", (120, 120), (40 * i, 90, 90)).save(tmp_path / f"{i}.png")
    assert find_verified_groups(list_images(tmp_path), least=1) is None


def test_one_wrong_pair_joins_no_groups() -> None:
    three = [(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5)]
    groups = group_pairs(*pairs_of(*three, (2, 3)), 7)
    assert len(set(groups[:3])) == len(set(groups[3:6])) == 1
    assert len(set(groups)) == 3
    whole = group_pairs(*pairs_of(*three, (2, 3), (1, 3), (0, 4), (1, 5), (0, 3)), 7)  # five of nine pairs
    assert len(set(whole)) == 2


def test_overlapping_parts_of_a_table_are_not_learned_from() -> None:
    # 64 photos of a table in eight rows of eight; each overlaps its four neighbours.
    table = [(i, i + 1) for i in range(64) if i % 8 < 7] + [(i, i + 8) for i in range(56)]
    shuffled = np.random.default_rng(0).permutation(table).tolist()
    assert proven_groups(*pairs_of(*shuffled), 64) is None
    cliques = [(i + a, i + b) for i in range(0, 30, 3) for a, b in ((0, 1), (0, 2), (1, 2))]
    assert proven_groups(*pairs_of(*cliques), 30) is not None
    assert proven_groups(*pairs_of(*cliques), 300) is None  # a tenth of the photos


def test_members_of_a_proven_group_are_the_same_and_no_others() -> None:
    groups = FeedbackGroups(
        torch.tensor([0, 0, 1, 2, 2]),
        torch.tensor([False, False, False, True, True]),
        torch.zeros(0, 2).long(),
    )
    images = torch.tensor([0, 2, 3])
    candidates = torch.tensor([[1, 2], [0, 1], [4, 0]])
    assert groups.proven_same(images, candidates).tolist() == [[True, False], [False, False], [False, False]]


def test_people_decide_and_points_are_added_for_the_other_photos() -> None:
    people = FeedbackGroups(
        torch.tensor([0, 0, 1, 2, 3]),
        torch.tensor([True, True, False, False, False]),
        torch.zeros(0, 2).long(),
    )
    nobody = torch.zeros(5, dtype=torch.bool)
    both = people.add_proven(FeedbackGroups(torch.tensor([0, 1, 0, 2, 2]), nobody, torch.zeros(0, 2).long()))
    assert both.decided.tolist() == [True, True, False, False, False]
    assert both.proven.tolist() == [
        False,
        False,
        False,
        True,
        True,
    ]  # 2 shared points with a photo that is decided
    assert both.same(torch.tensor([0, 3]), torch.tensor([[1, 2], [4, 2]])).tolist() == [[True, False]] * 2


def test_the_points_of_a_store_are_taken_where_there_is_one(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for i in range(9):
        textured(i // 3).rotate(30 * (i % 3)).save(photos / f"{i}.png")
    images = list_images(photos)
    index_images(HistogramDescriber(), images, tmp_path / "off", local="off")
    index_images(HistogramDescriber(), images, tmp_path / "on", local="on")
    assert find_verified_groups(images, str(tmp_path / "off"), least=1) is None
    found = find_verified_groups(images, str(tmp_path / "on"), least=1)
    assert found is not None
    assert found.proven.all()
