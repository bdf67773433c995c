"""Proposals on the page: photos that look like a thing are confirmed or rejected, mixed groups are split."""

from collections.abc import Iterator

import pytest
from selenium import webdriver

from helpers.browser import Page, served_page
from insclr.feedback.entries import name_thing
from insclr.feedback.feedback import build_links, read_feedback
from insclr.web.served import ServedStore


@pytest.fixture
def shop(browser: webdriver.Chrome, collection: ServedStore) -> Iterator[Page]:
    """A page of its own store, which the test may change."""
    with served_page(collection) as address:
        yield Page(browser, address)


def titles(page: Page, selector: str) -> list[str]:
    return page.script(
        "return [...document.querySelectorAll(arguments[0])].map((one) => one.title)", selector
    )


def hashes_of(collection: ServedStore, folder: str) -> list[str]:
    rows = collection.store.rows_by_path()
    return [rows[path].image.hash for path in sorted(rows) if path.startswith(f"{folder}/")]


@pytest.mark.parametrize("rejects", ["reject", "choose-remove"])  # the button above them, that of the bar
def test_proposed_photos_are_confirmed_or_rejected_one_by_one_or_together(
    shop: Page, collection: ServedStore, rejects: str
) -> None:
    images = hashes_of(collection, "2")
    collection.feedback.append(name_thing("thing-0001", "Mug", images[:-3]))
    shop.visit("things", ".thing")
    card = next(one for one in shop.all(".thing") if "Mug" in one.text)
    assert "3 to check" in card.text
    shop.script("arguments[0].click()", card)
    shop.until(lambda: shop.all("#proposals .tile"))
    waiting = titles(shop, "#proposals .tile")
    assert len(waiting) == 3
    assert "3 photos look like Mug: check" in shop.one("#proposals-title").text
    sure = [int(one.text.split()[0]) for one in shop.all("#proposals .tile .score")]
    assert sure == sorted(sure, reverse=True)
    assert not set(waiting) & set(titles(shop, "#photos .tile"))  # nothing joined by itself
    shop.script("document.querySelector('#proposals .tile .tick').click()")
    shop.script(f"document.getElementById('{rejects}').click()")
    shop.until(lambda: len(shop.all("#proposals .tile")) == 2)
    shop.script("document.getElementById('confirm').click()")
    shop.until(lambda: not shop.all("#proposals"))
    shop.until(lambda: set(waiting[1:]) <= set(titles(shop, "#photos .tile")))
    feedback, rows = read_feedback(collection.store), collection.store.rows_by_path()
    assert [feedback.name_of(rows[path].image.hash) for path in waiting] == ["", "Mug", "Mug"]
    shop.one("#undo").click()
    shop.until(lambda: titles(shop, "#proposals .tile") == waiting[1:])


def test_a_mixed_group_shows_the_photos_that_differ_and_is_split(shop: Page, collection: ServedStore) -> None:
    mixed = [*hashes_of(collection, "1"), *hashes_of(collection, "4")]
    collection.feedback.append(name_thing("thing-0001", "", mixed, grouped=True))
    shop.visit("things", ".thing")
    card = next(one for one in shop.all(".thing") if f"{len(mixed)} photos" in one.text)
    assert "several things?" in card.text
    shop.script("arguments[0].click()", card)
    shop.until(lambda: shop.all("#choose-part"))
    shop.script("document.getElementById('choose-part').click()")
    part = titles(shop, ".tile.chosen")
    assert len({path.split("/")[0] for path in part}) == 1
    shop.script("document.getElementById('choose-split').click()")
    shop.until(lambda: sorted(titles(shop, "#photos .tile")) == sorted(part))
    assert not shop.all("#proposals, #choose-part")
    rest = next(path for path in ("1/0.png", "4/0.png") if path not in part)
    row = collection.store.rows_by_path()
    assert build_links(read_feedback(collection.store)).different(
        row[rest].image.hash, row[part[0]].image.hash
    )
    shop.visit(f"things#0:{row[rest].id}", "#photos .tile")
    assert not set(part) & set(titles(shop, ".tile"))
    shop.one("#undo").click()
    shop.until(lambda: len(shop.all("#photos .tile")) == len(mixed))


def test_photos_are_listed_by_how_sure_it_is_that_they_show_their_thing(
    shop: Page, collection: ServedStore
) -> None:
    mixed = [*hashes_of(collection, "1"), *hashes_of(collection, "4")[:1]]
    collection.feedback.append(name_thing("thing-0001", "Ship", mixed, grouped=True))
    collection.feedback.append(name_thing("thing-0002", "Mug", hashes_of(collection, "2")))
    shop.visit("photos", ".tile")
    shop.script(
        "const one = document.getElementById('order'); one.value = 'fit'; one.dispatchEvent(new Event('change'))"
    )
    shop.until(lambda: titles(shop, ".tile")[:1] == ["4/0.png"])
    numbers = [int(one.text.split()[0]) for one in shop.all(".tile .score")]
    assert numbers == sorted(numbers)
    by_person = [path for path in titles(shop, ".tile") if path.startswith("2/")]
    assert titles(shop, ".tile")[-len(by_person) :] == by_person  # who was put there by a person is sure
    headings = [one.text for one in shop.all(".month")]
    assert headings[0] != headings[-1] == "Sure"
    band = {"Unlikely": "0-0.25", "Possible": "0.25-0.5", "Likely": "0.5-0.8"}[headings[0]]
    low, high = (100 * float(one) for one in band.split("-"))
    shop.visit(f"photos?fit={band}", ".tile")
    assert "4/0.png" in titles(shop, ".tile")
    assert all(low <= int(one.text.split()[0]) <= high for one in shop.all(".tile .score"))


def test_on_a_phone_the_reason_of_a_match_stands_beside_the_button_that_closes(shop: Page) -> None:
    with shop.phone():
        shop.open("?photo=0:1")
        shop.open_viewer(1)
        shop.script("document.getElementById('viewer-why').click()")
        shop.until(lambda: shop.all(".why-sentence") and shop.one(".why-sentence").text)
        overlap = (
            "const [a, b] = [...arguments].map((one) => one.getBoundingClientRect());"
            "return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom"
        )
        assert not shop.script(overlap, shop.one(".why-sentence"), shop.one(".why .close"))
