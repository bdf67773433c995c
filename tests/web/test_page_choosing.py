"""Choosing several photos and naming them, wherever photos are shown; and how each page looks to a reader's tools."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from helpers.browser import Page, served_page
from insclr.feedback.entries import remove_images
from insclr.feedback.feedback import KnownPairs, read_feedback
from insclr.web.served import ServedStore


@pytest.fixture
def shop(browser: webdriver.Chrome, collection: ServedStore) -> Iterator[Page]:
    """A page of its own store, which the test may change."""
    with served_page(collection) as address:
        yield Page(browser, address)


def tick(page: Page, *places: int, within: str = "") -> None:
    for place in places:
        page.script(f"document.querySelectorAll('{within} .tile .tick')[arguments[0]].click()", place)


def name_chosen(page: Page, text: str) -> None:
    page.until(lambda: page.one("#choose").is_displayed())
    page.one("#choose .name-field input").send_keys(text, Keys.ENTER)
    page.until(lambda: not page.one("#choose").is_displayed())


def heading(page: Page) -> str:
    return page.script("return document.querySelector('h1').textContent")


def test_photos_that_match_nothing_open_large_and_get_a_name(shop: Page, collection: ServedStore) -> None:
    thing = collection.feedback.gallery().things[0]
    lonely = thing.rows[0]
    collection.feedback.append(remove_images("thing-0000", []))
    shop.script("return 0")
    rows = collection.store.rows_by_path()
    shop.visit(f"things#0:{lonely.id}", "#photos .tile")
    tick(shop, 0, within="#photos")
    shop.one("#choose-remove").click()
    shop.until(lambda: len(shop.all("#photos .tile")) == len(thing.rows) - 1)
    shop.visit("things", "#new .tile")
    assert [one.get_attribute("title") for one in shop.all("#new .tile")] == [lonely.image.path]
    shop.script("document.querySelector('#new .go').click()")
    shop.until(lambda: shop.script("return document.querySelector('#large').naturalWidth > 0"))
    assert shop.one("#viewer-search").is_displayed()
    assert shop.one("#viewer-thing").text == "no name yet"
    shop.one("#viewer-rename").click()
    shop.one("#viewer-naming input").send_keys("Blue lamp", Keys.ENTER)
    shop.until(lambda: shop.one("#viewer-thing").text == "Blue lamp")
    assert read_feedback(collection.store).name_of(rows[lonely.image.path].image.hash) == "Blue lamp"


def test_photos_in_no_thing_are_not_taken_out_of_one(shop: Page, collection: ServedStore) -> None:
    thing = collection.feedback.gallery().things[0]
    shop.visit(f"things#0:{thing.rows[0].id}", "#photos .tile")
    tick(shop, 0, within="#photos")
    assert shop.one("#choose-remove").is_displayed()
    shop.one("#choose-remove").click()
    shop.until(lambda: len(shop.all("#photos .tile")) == len(thing.rows) - 1)
    shop.visit("photos?show=new", ".tile")
    tick(shop, 0)
    assert shop.one("#choose").is_displayed()
    assert not shop.one("#choose-remove").is_displayed()
    shop.one("#choose-clear").click()
    shop.open_viewer(0)
    assert not shop.one("#viewer-not").is_displayed()


def test_a_wrong_result_is_rejected_where_it_is_seen_large(shop: Page, collection: ServedStore) -> None:
    before = shop.open("?photo=0:1")
    shop.open_viewer(0)
    assert not shop.one("#viewer-not").is_displayed()  # the query itself
    shop.script("document.getElementById('next').click()")
    shop.until(lambda: shop.one("#facts-path").text == before[1])
    assert shop.one("#viewer-not").text == "Not this"
    shop.after(lambda: shop.script("document.getElementById('viewer-not').click()"))
    assert before[1] not in shop.paths()
    rows = collection.store.rows_by_path()
    one, other = (rows[path].image.hash for path in before[:2])
    assert KnownPairs(read_feedback(collection.store)).relation({one}, other) == -1


def test_results_are_chosen_by_tick_range_and_key_and_named_together(
    shop: Page, collection: ServedStore
) -> None:
    shop.open("?photo=0:1")
    tick(shop, 1)
    shift = "new MouseEvent('click', {bubbles: true, cancelable: true, shiftKey: true})"
    shop.script(f"document.querySelectorAll('.tile .go')[4].dispatchEvent({shift})")
    assert shop.one("#choose b").text == "4 photos chosen"
    assert not shop.one("#viewer").is_displayed()
    paths = [one.get_attribute("title") for one in shop.all(".tile.chosen")]
    shop.script("document.querySelectorAll('.tile .go')[2].focus()")
    shop.keys("x")
    assert shop.one("#choose b").text == "3 photos chosen"
    shop.keys("x")
    shop.after(lambda: name_chosen(shop, "Mug"))
    feedback, rows = read_feedback(collection.store), collection.store.rows_by_path()
    assert {path for path in rows if feedback.name_of(rows[path].image.hash) == "Mug"} == set(paths)
    shop.until(lambda: "Mug" in shop.one(".tile .badge.thing").text)
    shop.after(lambda: shop.one("#undo").click())
    assert not shop.all(".tile .badge.thing")


def test_not_this_leaves_the_results(shop: Page, collection: ServedStore) -> None:
    paths = shop.open("?photo=0:1")
    tick(shop, 2)
    left = shop.after(lambda: shop.one("#choose-remove").click())
    assert left == [path for path in paths if path != paths[2]]
    assert [link.same for link in read_feedback(collection.store).links] == [False]
    assert paths[2] in shop.after(lambda: shop.one("#undo").click())
    assert read_feedback(collection.store).links == []
    # A photo of this computer is not in the store: it is left out of this search alone.
    before = shop.upload(collection.store.info.root / "2" / "3.png")
    tick(shop, 1)
    assert before[1] not in shop.after(lambda: shop.one("#choose-remove").click())
    assert read_feedback(collection.store).links == []


def test_a_long_press_chooses_and_then_a_tap_does(shop: Page) -> None:
    with shop.phone():
        shop.visit("photos", ".tile .tick")
        places = shop.script(
            "return [0, 1].map((i) => document.querySelectorAll('.tile')[i].getBoundingClientRect())"
            ".map((one) => [one.x + one.width / 2, one.y + one.height / 2])"
        )
        shop.touch("touchStart", tuple(places[0]))
        shop.until(lambda: shop.one("#choose b").text == "1 photo chosen")
        shop.touch("touchEnd")
        shop.touch("touchStart", tuple(places[1]))
        shop.touch("touchEnd")
        shop.until(lambda: shop.one("#choose b").text == "2 photos chosen")
        assert not shop.one("#viewer").is_displayed()
        sizes = shop.script(
            "return [...document.querySelectorAll('input:not([type=file]), select')]"
            ".filter((one) => one.offsetParent).map((one) => parseFloat(getComputedStyle(one).fontSize))"
        )
        assert min(sizes) >= 16


def test_names_are_offered_the_likeliest_first(shop: Page, collection: ServedStore) -> None:
    for name, first in (("Ship", 0), ("Mug", 8), ("Lamp", 16)):
        shop.visit("photos", ".tile .tick")
        tick(shop, first, first + 1)
        name_chosen(shop, name)
        shop.until(lambda: shop.all(".tile .badge.thing"))
    tick(shop, 12)
    shop.one("#choose .name-field input").click()
    shop.until(lambda: len(shop.all("#choose [role=option]")) == 3)
    assert "Mug" in shop.one("#choose [role=option]").text
    shop.keys(Keys.ARROW_DOWN, Keys.ENTER)
    shop.until(lambda: not shop.one("#choose").is_displayed())
    feedback, rows = read_feedback(collection.store), collection.store.rows_by_path()
    assert feedback.name_of(rows["1/4.png"].image.hash) == "Mug"


def test_a_second_thing_of_a_name_is_asked_about(shop: Page, collection: ServedStore) -> None:
    first, second = collection.feedback.gallery().things[:2]
    for thing in (first, second):
        shop.visit(f"things#0:{thing.rows[0].id}", "#photos .tile")
        shop.one("#name").send_keys("Mug", Keys.ENTER)
        if thing is first:
            shop.until(lambda: heading(shop) == "Mug")
    shop.until(lambda: shop.all("dialog.choose [data-answer=join]"))
    shop.one("dialog.choose [data-answer=join]").click()
    joined = len(first.rows) + len(second.rows)
    shop.until(lambda: len(shop.all("#photos .tile")) == joined)
    assert [t.name for t in collection.feedback.gallery().things].count("Mug") == 1


def test_joining_two_named_things_asks_which_name_stays(shop: Page, collection: ServedStore) -> None:
    first, second = collection.feedback.gallery().things[:2]
    for thing, name in ((first, "Mug"), (second, "Cup")):
        shop.visit(f"things#0:{thing.rows[0].id}", "#photos .tile")
        shop.one("#name").send_keys(name, Keys.ENTER)
        shop.until(lambda name=name: heading(shop) == name)
    shop.one("#merge").click()
    shop.until(lambda: [one for one in shop.all("dialog.choose .thing") if "Mug" in one.text])[0].click()
    shop.until(lambda: shop.all("dialog.choose [data-answer]"))
    assert [one.text for one in shop.all("dialog.choose [data-answer]")] == ["Mug", "Cup"]
    shop.all("dialog.choose [data-answer]")[0].click()
    shop.until(lambda: heading(shop) == "Mug")
    assert [t.name for t in collection.feedback.gallery().things if t.name] == ["Mug"]


def test_naming_goes_on_to_the_next_thing_without_a_name(shop: Page, collection: ServedStore) -> None:
    first = collection.feedback.gallery().things[0]
    shop.visit(f"things#0:{first.rows[0].id}", "#photos .tile")
    shop.one("#name").send_keys("Mug")
    shop.one("#save-next").click()
    shop.until(lambda: collection.feedback.gallery().find_named("mug") is not None)
    shop.until(lambda: shop.script("return document.activeElement.id") == "name")
    assert heading(shop) == "A thing without a name"


def test_the_history_goes_back_to_any_step_and_forth(shop: Page, collection: ServedStore) -> None:
    for name, first in (("Ship", 0), ("Mug", 8), ("Lamp", 16)):
        shop.visit("photos", ".tile .tick")
        tick(shop, first)
        name_chosen(shop, name)
        shop.until(lambda: shop.all(".tile .badge.thing"))
    shop.visit("history", ".step")
    assert [one.text.split(" called ")[1].splitlines()[0] for one in shop.all(".step")] == [
        "Lamp",
        "Mug",
        "Ship",
    ]
    shop.all(".step button")[2].click()
    shop.until(lambda: len(shop.all(".step.undone")) == 2)
    feedback = read_feedback(collection.store)
    assert [thing.name for thing in feedback.things.values()] == ["Ship"]
    shop.all(".step.undone button")[1].click()  # Mug again
    shop.until(lambda: len(shop.all(".step")) == 4)
    assert {thing.name for thing in read_feedback(collection.store).things.values()} == {"Ship", "Mug"}


@pytest.mark.parametrize("path", ["", "?photo=0:1", "photos", "things", "teach", "history", "docs"])
def test_every_page_has_one_heading_help_and_a_theme(shop: Page, path: str) -> None:
    shop.browser.get(shop.address + path)
    shop.until(lambda: shop.script("return document.readyState") == "complete")
    shown = "return [...document.querySelectorAll('h1')].filter((one) => one.getClientRects().length).length"
    shop.until(lambda: shop.script(shown) == 1)
    shop.one("#help-open").click()
    assert shop.one("#help").is_displayed()
    shop.keys(Keys.ESCAPE)
    before = shop.script("return getComputedStyle(document.body).backgroundColor")
    shop.one("#theme").click()
    assert shop.script("return getComputedStyle(document.body).backgroundColor") != before
    shop.script("localStorage.clear()")


PAGES = {
    "": "#things .thing",
    "?photo=0:1": "#grid .tile",
    "?photo=0:1&view=0:2": "#viewer[open]",
    "photos": ".tile .tick",
    "things": ".thing",
    "things#0:1": "#photos .tile",
    "teach": "#candidates .pick",
    "history": "#steps .none",
    "docs": "#main details",
}


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1300])
def test_pages_are_accessible_and_fit(page: Page, width: int, dark: bool) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    colours = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    try:
        page.cdp("Emulation.setDeviceMetricsOverride", **size)
        page.cdp("Emulation.setEmulatedMedia", features=colours)
        for path, selector in PAGES.items():
            page.browser.get("about:blank")
            page.visit(path, selector)
            if path == "photos":
                tick(page, 0)
            assert page.barriers() == [], path
            assert page.script("return document.documentElement.scrollWidth") <= width, path
    finally:
        page.cdp("Emulation.clearDeviceMetricsOverride")
        page.cdp("Emulation.setEmulatedMedia", features=[])


def test_a_list_of_chosen_photos_is_a_table(shop: Page, tmp_path: Path) -> None:
    folder = tmp_path / "downloads"
    shop.cdp("Page.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
    shop.visit("photos", ".tile .tick")
    tick(shop, 0, 9)
    shop.one("#choose-list").click()
    shop.until(lambda: (folder / "photos.csv").exists())
    lines = (folder / "photos.csv").read_text("utf-8-sig").splitlines()
    assert lines == ["path,name", "0/0.png,", "1/1.png,"]
