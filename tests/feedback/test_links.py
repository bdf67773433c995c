"""Answers about pairs, closed under transitivity, and what contradicts what."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from insclr.feedback.links import Link, Links


def test_the_same_as_the_same_is_the_same_and_inherits_what_is_different() -> None:
    links = Links([Link("a", "b", True), Link("c", "d", True), Link("b", "c", False), Link("d", "e", True)])
    assert links.same("a", "b")
    assert links.same("c", "e")
    assert links.different("a", "e")
    assert not links.same("a", "e")
    assert not links.different("a", "x")
    assert not links.contradictions
    assert sorted(sorted(one) for one in links.components() if len(one) > 1) == [["a", "b"], ["c", "d", "e"]]
    assert len(links.apart()) == 1


def test_what_is_different_is_not_passed_on_from_the_different() -> None:
    links = Links([Link("a", "b", False), Link("b", "c", False)])
    assert not links.different("a", "c")


def test_a_cannot_link_within_one_instance_names_the_chain_that_it_contradicts() -> None:
    first, second, aside = Link("a", "b", True, "1"), Link("b", "c", True, "2"), Link("b", "x", True, "3")
    links = Links([first, second, aside])
    last = Link("a", "c", False, "4")
    found = links.add(last)
    assert found is not None
    assert found.link == last
    assert found.chain == (first, second)
    assert links.same("a", "c")  # the earlier answers stand
    assert links.contradictions == [found]


def test_a_must_link_across_a_cannot_link_names_the_way_to_it_on_both_sides() -> None:
    left, between, right = Link("a", "b", True, "1"), Link("c", "b", False, "2"), Link("c", "d", True, "3")
    links = Links([left, between, right])
    found = links.add(Link("d", "a", True, "4"))
    assert found is not None
    assert found.chain == (right, between, left)
    assert links.different("a", "d")


def test_a_cannot_link_follows_its_images_into_a_joined_component() -> None:
    links = Links([Link("a", "z", False), Link("a", "b", True), Link("b", "c", True), Link("z", "y", True)])
    found = links.add(Link("c", "y", True))
    assert found is not None
    assert [(link.one, link.other) for link in found.chain] == [
        ("b", "c"),
        ("a", "b"),
        ("a", "z"),
        ("z", "y"),
    ]


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7), st.booleans()), max_size=25))
def test_closure_is_that_of_a_slow_search(spoken: list[tuple[int, int, bool]]) -> None:
    links, held = Links(), list[tuple[str, str, bool]]()
    for a, b, same in spoken:
        if a != b and links.add(Link(str(a), str(b), same)) is None:
            held.append((str(a), str(b), same))
    reach = {str(i): {str(i)} for i in range(8)}
    for _ in range(8):
        for a, b, same in held:  # type: ignore[assignment]
            if same:
                joint = reach[a] | reach[b]  # type: ignore[index]
                for one in joint:
                    reach[one] = reach[one] | joint
    for one in reach:
        for other in reach:
            assert links.same(one, other) == (other in reach[one])
            said = any(
                not same
                and ((a in reach[one] and b in reach[other]) or (b in reach[one] and a in reach[other]))
                for a, b, same in held
            )
            assert links.different(one, other) == said
            assert not (links.same(one, other) and links.different(one, other))


def test_the_less_expected_of_two_answers_is_more_likely_a_slip() -> None:
    # 2 % slips: a "same" that was expected with 0.2 is wrong in 0.8 * 0.02 of (0.8 * 0.02 + 0.2 * 0.98).
    assert Link("a", "b", True, expected=0.2).wrong == pytest.approx(0.016 / 0.212)
    assert Link("a", "b", False, expected=0.2).wrong == pytest.approx(0.004 / 0.788)
    assert Link("a", "b", True).wrong == 0.0  # said on purpose


def test_a_slip_is_set_aside_with_the_answer_that_contradicts_it_and_a_third_decides() -> None:
    slip, sure = Link("a", "b", True, "1", 0.1), Link("b", "c", True, "2", 0.9)
    links = Links([slip, sure])
    found = links.add(Link("a", "c", False, "3", 0.1))
    assert found is not None
    assert found.set_aside == slip
    assert links.same("b", "c")
    assert not links.same("a", "b")
    assert not links.different("a", "c")  # open again
    assert links.find_unresolved() == [found]
    assert links.find_refused() == []
    assert links.add(Link("a", "c", False, "4", 0.1)) is None
    assert links.different("a", "b")
    assert links.find_unresolved() == []


def test_an_expected_answer_holds_against_a_later_surprise() -> None:
    links = Links([Link("a", "b", True, "1", 0.9)])
    found = links.add(Link("a", "b", False, "2", 0.9))
    assert found is not None
    assert found.set_aside is None
    assert links.same("a", "b")
    assert links.find_refused() == [found.link]
