"""Parts that hold one instance, and joins that are asked about once more."""

from collections import Counter

import numpy as np

from insclr.feedback.links import KnownImages, Link, Links, locate_links
from insclr.feedback.questions import Questions, unconfirmed_joins

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
    questions = Questions(rows, near, KnownImages(np.arange(80)))
    truth = np.arange(80) // 2
    for part in range(questions.part.max() + 1):
        assert len(set(truth[questions.part == part])) == 1
    assert questions.part.max() + 1 == 40


def test_a_join_that_nothing_else_bears_out_is_doubtful() -> None:
    joins = [(0, 1, 0.1), (1, 2, NO_SLIP), (3, 4, 0.2), (4, 5, NO_SLIP), (5, 3, NO_SLIP)]
    assert unconfirmed_joins(joins) == [({0}, 0.1)]


def test_an_unexpected_join_is_asked_about_again_with_another_image_until_it_is_borne_out() -> None:
    rows, near = instances(6, 5, 0.15)
    nobody = KnownImages(np.arange(30))
    questions = Questions(rows, near, nobody)
    assert questions.part.max() + 1 == 6  # every instance is a part
    one, other = questions.image_of(int(questions.group[0])), questions.image_of(int(questions.group[5]))
    same = np.arange(30)
    same[other] = same[one]
    # All others were told apart, so that nothing else is left to ask.
    firsts = [questions.image_of(group) for group in range(6) if group != questions.group[other]]
    apart = [(int(same[a]), int(same[b])) for at, a in enumerate(firsts) for b in firsts[at + 1 :]]
    questions.update(KnownImages(same, apart, [(one, other, 0.3)]))
    screen = questions.screen()
    assert screen is not None
    shown = {screen.query, *screen.candidates}
    assert {image // 5 for image in shown} == {0, 1}
    assert shown != {one, other}
    questions.update(KnownImages(same, apart, [(one, other, 0.3), (screen.query, screen.candidates[0], 0.3)]))
    assert questions.screen() is None


def test_an_unassigned_image_represents_no_group_and_moves_none() -> None:
    rows, near = instances(2, 8, 0.15)
    rows[15] = rows[0]  # shows the second instance and looks like the first
    near[15], near[0] = np.roll(near[0], 1), near[0]
    near[15, 0] = 0
    nobody = KnownImages(np.arange(16))
    questions = Questions(rows, near, nobody)
    assert questions.part[15] == questions.part[0] != questions.part[8]
    same = np.arange(16)
    same[1], same[2], same[9], same[15] = 0, 0, 8, 8
    questions.update(
        KnownImages(same, joins=[(0, 1, NO_SLIP), (0, 2, NO_SLIP), (8, 9, NO_SLIP), (8, 15, 0.3)])
    )
    assert questions.group[15] == questions.group[8] != questions.group[0]
    assert (questions.group[:5] == questions.group[0]).all()
    assert questions.image_of(int(questions.group[0])) < 8
    assert 8 <= questions.image_of(int(questions.group[8])) < 15


def test_unassigned_images_of_one_thing_are_compared_with_their_neighbours() -> None:
    rows, near = instances(2, 6, 0.15)
    questions = Questions(rows, near, KnownImages(np.arange(12)))
    assert len(set(questions.part[:6].tolist())) == len(set(questions.part[6:].tolist())) == 1
    same = np.array([0, 0, 0, 0, 0, 5, 6, 6, 6, 6, 6, 5])
    questions.update(KnownImages(same, [(0, 6)]))
    assert questions.group[5] == questions.group[11]
    screen = questions.screen()
    assert screen is not None
    assert screen.query in (5, 11) or set(screen.candidates) & {5, 11}


def test_answers_to_the_end_give_the_instances_and_no_question_comes_for_ever() -> None:
    """On instances whose parts are often mixed. Twice at most a question comes, where a join might be a slip."""
    rows, near = instances(8, 15, 1.5)
    truth, names = np.arange(120) // 15, [f"{image:03}" for image in range(120)]
    questions = Questions(rows, near, KnownImages(np.arange(120)))
    links, asked = Links(), Counter[frozenset[int]]()
    while (screen := questions.screen(count=3)) is not None:
        asked.update(frozenset((screen.query, image)) for image in screen.candidates)
        assert max(asked.values()) <= 2
        said = [
            (screen.query, image, bool(truth[screen.query] == truth[image])) for image in screen.candidates
        ]
        expected = [questions.predict(one, other) for one, other, _ in said]
        questions.fit_curve(said)
        for (one, other, is_same), likely in zip(said, expected, strict=True):
            links.add(Link(names[one], names[other], is_same, expected=likely))
        questions.update(locate_links(links, names))
    assert len(set(questions.group.tolist())) == 8
    together = Counter(zip(questions.group.tolist(), truth.tolist(), strict=True)).most_common(8)
    assert len({group for (group, _), _ in together}) == len({instance for (_, instance), _ in together}) == 8
    assert sum(count for _, count in together) >= 115  # of 120; nobody was asked about a stray or two


def test_what_was_refused_is_not_asked_again() -> None:
    rows, near = instances(2, 5, 0.15)
    questions = Questions(rows, near, KnownImages(np.arange(10)))
    first = questions.screen()
    assert first is not None
    questions.update(KnownImages(np.arange(10), refused=[(first.query, first.candidates[0])]))
    assert questions.screen() is None
