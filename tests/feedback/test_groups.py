"""Constrained agglomeration of images."""

import numpy as np

from insclr.feedback.groups import Grouping, join_known, neighbour_pairs


def _unit(degrees: list[float]) -> np.ndarray:
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def group_images(
    images: np.ndarray, near: np.ndarray, apart: list[tuple[int, int]], *, least: float, fewest: int = 1
) -> np.ndarray:
    count = len(images)
    grouping = Grouping(images, np.ones(count, dtype=np.int64), np.arange(count), apart)
    grouping.join_while(neighbour_pairs(near), least, fewest)
    return grouping.groups()


def _everyone(count: int) -> np.ndarray:
    return np.tile(np.arange(count), (count, 1))


def test_similar_images_are_joined_and_the_largest_group_is_the_first() -> None:
    images = _unit([0, 90, 5, 95, 10])
    groups = group_images(images, _everyone(5), [], least=0.9)
    assert groups.tolist() == [0, 1, 0, 1, 0]


def test_what_is_apart_is_never_joined_and_takes_its_likes_along() -> None:
    # 0 and 12 degrees are different: 4 is nearer to 0, 9 to 12.
    images = _unit([0, 4, 9, 12])
    groups = group_images(images, _everyone(4), [(0, 3)], least=0.5)
    assert groups.tolist() == [0, 0, 1, 1]


def test_what_is_the_same_brings_its_likes_together() -> None:
    groups = np.array([0, 0, 1, 1, 2])
    known = join_known(groups, np.array([0, 1, 0, 3, 4]), [])  # images 0 and 2 show one instance
    assert known.tolist() == [0, 0, 0, 0, 1]


def test_what_is_the_same_leaves_likes_behind_that_are_known_to_be_different() -> None:
    groups = np.array([0, 0, 0, 1, 1])
    # 0 and 3 are the same; 4, of the group of 3, is apart from 1, of the group of 0.
    known = join_known(groups, np.array([0, 1, 2, 0, 4]), [(1, 4)])
    assert known.tolist() == [0, 0, 0, 0, 1]


def test_an_unassigned_image_does_not_join_two_things() -> None:
    groups = np.array([0, 0, 0, 0, 1, 1, 1])
    # 0 and 1 are one thing; 3 lies among them, but is known to be what 4 and 5 are. Nobody compared the two things.
    known = join_known(groups, np.array([0, 0, 2, 3, 3, 3, 6]), [])
    assert known.tolist() == [0, 0, 0, 1, 1, 1, 1]


def test_images_that_lie_among_other_things_alone_become_a_thing_of_their_own() -> None:
    groups = np.array([0, 0, 0, 1, 1, 1])
    # 2 and 5 are one thing; most of what people spoke about around them is another.
    known = join_known(groups, np.array([0, 0, 2, 3, 3, 2]), [])
    assert known.tolist() == [1, 1, 0, 2, 2, 0]


def test_joining_ends_at_the_fewest_groups() -> None:
    images = _unit([0, 1, 20, 22, 60])
    groups = group_images(images, _everyone(5), [], least=-1, fewest=3)
    assert groups.tolist() == [0, 0, 1, 1, 2]


def test_only_neighbours_are_joined() -> None:
    images = _unit([0, 1, 2])
    near = np.array([[1], [0], [2]])
    assert group_images(images, near, [], least=0.5).tolist() == [0, 0, 1]
    assert neighbour_pairs(near).tolist() == [[0, 1]]


def test_average_linkage_is_that_of_scipy() -> None:
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import pdist

    generator = np.random.default_rng(0)
    images = generator.standard_normal((40, 6)).astype(np.float32)
    images /= np.linalg.norm(images, axis=1, keepdims=True)
    ours = group_images(images, _everyone(40), [], least=0.3)
    theirs = fcluster(linkage(pdist(images, "cosine"), "average"), 0.7, "distance")
    assert ((ours[:, None] == ours) == (theirs[:, None] == theirs)).all()
