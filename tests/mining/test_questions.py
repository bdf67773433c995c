"""Parts that hold one instance, and joins that are asked about once more."""

import numpy as np

from insclr.mining.doubts import doubtful_joins
from insclr.mining.questions import KnownImages, Questions

NO_SLIP = 0.0


def instances(count: int, images: int, spread: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Unit rows around as many centres, and the ten nearest of each."""
    generator = np.random.default_rng(seed)
    centres = generator.standard_normal((count, 32))
    rows = np.repeat(centres, images, axis=0) + spread * generator.standard_normal((count * images, 32))
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    similar = rows @ rows.T
    np.fill_diagonal(similar, -1)
    return rows, np.argsort(-similar, axis=1)[:, :10]


def test_images_that_are_hardly_alike_are_no_part() -> None:
    """Two images an instance, and all instances far apart: five images a part would mix three instances."""
    rows, near = instances(40, 2, 0.2)
    questions = Questions(rows, near, KnownImages.nothing(80))
    truth = np.arange(80) // 2
    for part in range(questions.part.max() + 1):
        assert len(set(truth[questions.part == part])) == 1
    assert questions.part.max() + 1 == 40


def test_a_join_that_nothing_else_bears_out_is_doubtful() -> None:
    joins = [(0, 1, 0.1), (1, 2, NO_SLIP), (3, 4, 0.2), (4, 5, NO_SLIP), (5, 3, NO_SLIP)]
    found = doubtful_joins(joins)
    assert [(sorted(doubt.side), doubt.wrong) for doubt in found] == [([0], 0.1)]


def test_an_unexpected_join_is_asked_about_again_with_another_image_until_it_is_borne_out() -> None:
    rows, near = instances(6, 5, 0.15)
    nobody = KnownImages.nothing(30)
    questions = Questions(rows, near, nobody)
    assert questions.part.max() + 1 == 6  # every instance is a part
    one, other = questions.image_of(int(questions.group[0])), questions.image_of(int(questions.group[5]))
    same = np.arange(30)
    same[other] = same[one]
    # All others were told apart, so that nothing else is left to ask.
    firsts = [questions.image_of(group) for group in range(6) if group != questions.group[other]]
    apart = [(int(same[a]), int(same[b])) for at, a in enumerate(firsts) for b in firsts[at + 1 :]]
    questions.know(KnownImages(same, apart, [(one, other, 0.3)]))
    screen = questions.screen()
    assert screen is not None
    shown = {screen.query, *screen.candidates}
    assert {image // 5 for image in shown} == {0, 1}
    assert shown != {one, other}
    questions.know(KnownImages(same, apart, [(one, other, 0.3), (screen.query, screen.candidates[0], 0.3)]))
    assert questions.screen() is None


def test_what_was_refused_is_not_asked_again() -> None:
    rows, near = instances(2, 5, 0.15)
    questions = Questions(rows, near, KnownImages.nothing(10))
    first = questions.screen()
    assert first is not None
    questions.know(KnownImages(np.arange(10), refused=[(first.query, first.candidates[0])]))
    assert questions.screen() is None
