"""What the results look like: four bands, folded copies, the query's own photo, errors, counts, and on a phone.

The fields `band`, `is_query`, `copies` and `thing` of an answer are given by a stub where a test says so.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.keys import Keys

from helpers.browser import Page, served_page
from helpers.drawn_store import make_store
from helpers.histogram_describer import draw
from insclr.data.images import list_images
from insclr.retrieval.index import index_images

# 48 matches: 4 sure (first the query itself, then one with 3 copies), 4 likely, 2 possible, the rest unlikely.
STUB = """
const real = window.fetch;
window.fetch = async (...asked) => {
  const response = await real(...asked);
  if (!String(asked[0]).includes("api/search") || !response.ok) return response;
  const body = await response.json();
  const copies = body.matches.splice(-3);
  body.matches.forEach((match, i) => Object.assign(match, {
    band: i < 4 ? "sure" : i < 10 ? "maybe" : "other", score: i < 4 ? 0.9 : 0.3, likely: i < 8,
    is_query: i === 0, copies: i === 1 ? copies : i === 2 ? ["elsewhere/copy.png"] : [],
    thing: i === 2 ? "Blue vase" : null,
  }));
  return new Response(JSON.stringify(body), {status: 200, headers: {"content-type": "application/json"}});
};
"""


@pytest.fixture
def banded(page: Page) -> Iterator[Page]:
    """The page whose search answers say the bands by themselves."""
    made = page.cdp("Page.addScriptToEvaluateOnNewDocument", source=STUB)
    try:
        page.open("?photo=0:1")
        yield page
    finally:
        page.cdp("Page.removeScriptToEvaluateOnNewDocument", identifier=made["identifier"])


def heads(page: Page) -> list[str]:
    return [" ".join(one.text.split()) for one in page.all(".band h2")]


def test_results_stand_in_four_bands_and_the_unlikely_are_folded(banded: Page) -> None:
    others = len(banded.all(".band.unlikely .tile"))
    assert heads(banded) == ["Sure 3 + 4 copies", "Likely 4", "Possible 2", f"Unlikely {others}"]
    assert banded.one("#status").text.startswith("3 sure, 4 likely, 2 possible")
    assert len(banded.all(".band.likely .tile")) == 4
    other = banded.one(".band.unlikely")
    assert not other.find_element("css selector", ".tile").is_displayed()
    banded.one(".band.unlikely summary").click()
    assert other.find_element("css selector", ".tile").is_displayed()


def test_no_tile_is_greyed_out(banded: Page) -> None:
    banded.open_other()
    banded.until(
        lambda: banded.script(
            "return [...document.querySelectorAll('.tile')].every((one) => getComputedStyle(one).opacity === '1'"
            " && getComputedStyle(one.querySelector('img')).opacity === '1'"
            " && getComputedStyle(one.querySelector('img')).filter === 'none')"
        )
    )


def test_the_query_itself_is_marked_and_not_counted(banded: Page) -> None:
    own = banded.all(".tile")[0]
    assert "your photo" in own.text
    assert "%" not in own.text
    assert [one for one in banded.all(".tile") if "your photo" in one.text] == [own]


def test_copies_are_one_tile_and_can_be_opened(banded: Page) -> None:
    assert banded.all(".tile")[1].find_element("css selector", ".badge.copies").text == "+3"
    banded.open_viewer(1)
    assert banded.one("#copies-title").text == "3 near-identical copies"
    before = banded.one("#facts-path").text
    banded.all("#copies-list button")[0].click()
    assert banded.one("#facts-path").text != before
    banded.keys(Keys.ARROW_RIGHT)  # a copy of which only the path is known
    assert banded.one("#copies").text == "1 near-identical copy\nelsewhere/copy.png"


def test_names_of_things_stand_on_their_photos(banded: Page) -> None:
    assert banded.all(".tile")[2].find_element("css selector", ".badge.thing").text == "Blue vase"
    assert "Blue vase" in (banded.all(".tile .go")[2].get_attribute("aria-label") or "")
    banded.open_viewer(2)
    assert banded.one("#viewer-thing a").text == "Blue vase"


def test_the_answer_contains_the_bands(page: Page, root: Path) -> None:
    page.upload(root / "2" / "3.png")
    names = page.script("return [...document.querySelectorAll('.band')].map((one) => one.dataset.band)")
    assert names[0] == "sure"
    assert set(names) <= {"sure", "likely", "possible", "unlikely"}
    scores = page.script(
        "return [...document.querySelectorAll('.band.sure .score')].map((one) => parseInt(one.textContent))"
    )
    assert min(scores) >= 80


def test_when_nothing_else_is_there_the_others_are_open(banded: Page) -> None:
    # One of the photos that the stub calls unlikely, alone.
    ref = banded.all(".band.unlikely .tile")[0].get_attribute("data-ref")
    only = (
        "const real = window.fetch; window.fetch = async (...asked) => { const answer = await real(...asked);"
    )
    keep = (
        " if (!String(asked[0]).includes('api/search')) return answer; const body = await answer.json();"
        f" body.matches = body.matches.filter((one) => one.ref === '{ref}');"
        " return new Response(JSON.stringify(body), {status: 200}); };"
    )
    banded.script(only + keep)
    banded.script("document.querySelector('#more').open = true")
    assert len(banded.after(lambda: banded.one("#where").send_keys("year > 0\n"))) == 1
    assert heads(banded) == ["Unlikely 1"]
    assert banded.one(".tile").is_displayed()
    assert banded.one("#status").text.startswith("Nothing sure")


def test_a_server_that_is_gone_replaces_the_results(page: Page, root: Path) -> None:
    page.upload(root / "2" / "3.png")
    page.cdp("Network.enable")
    try:
        page.cdp("Network.setBlockedURLs", urls=["*/api/*"])
        page.after(lambda: page.script("document.querySelectorAll('[data-do=search]')[1].click()"))
        assert "The server does not answer" in page.one(".problem").text
        assert not page.all(".tile")
        page.after(lambda: page.script("document.querySelector('#home').click()"))
        assert "The server does not answer" in page.one(".problem").text
        page.cdp("Network.setBlockedURLs", urls=[])
        assert page.after(lambda: page.one(".problem button").click())
    finally:
        page.cdp("Network.setBlockedURLs", urls=[])
        page.cdp("Network.disable")
        page.browser.get_log("browser")  # what the browser says of blocked requests is no fault


def test_counts_follow_re_indexing(tmp_path: Path, browser: webdriver.Chrome) -> None:
    collection = make_store(tmp_path, things=2, views=4)
    with served_page(collection) as address:
        page = Page(browser, address)
        assert page.one("#about").text.startswith("8 photos")
        draw(tmp_path / "images" / "7" / "0.png", 7, 0)
        index_images(collection.describer, list_images(tmp_path / "images"), tmp_path / "store")
        page.script("dispatchEvent(new Event('focus'))")  # the person comes back to the page
        page.until(lambda: page.one("#about").text.startswith("9 photos"))
        page.until(lambda: "9 photos" in page.one("#status").text)
        page.upload(tmp_path / "images" / "0" / "0.png")
        draw(tmp_path / "images" / "7" / "1.png", 7, 1)
        index_images(collection.describer, list_images(tmp_path / "images"), tmp_path / "store")
        page.script("dispatchEvent(new Event('focus'))")
        page.until(lambda: page.all("#search-again"))
        assert page.one("#about").text.startswith("10 photos")
        page.after(lambda: page.one("#search-again").click())
        assert "7/1.png" in page.paths()


def test_the_query_photo_does_not_eat_scrolling_on_a_phone(page: Page, root: Path) -> None:
    with page.phone():
        page.upload(root / "0" / "0.png")
        page.script("window.scrollTo(0, 0)")
        x, y = page.script(
            "const one = document.querySelector('#canvas').getBoundingClientRect();"
            "return [one.x + one.width / 2, one.y + one.height / 2]"
        )
        page.touch("touchStart", (x, y))
        for up in (20, 50, 80):
            page.touch("touchMove", (x, y - up))
        page.touch("touchEnd")
        page.until(lambda: page.script("return window.scrollY > 20"))
        assert not page.one("#box").is_displayed()


def test_a_finger_draws_a_box_after_saying_so(page: Page, root: Path) -> None:
    with page.phone():
        page.upload(root / "0" / "0.png")
        page.script("window.scrollTo(0, 0)")
        page.one("#mark").click()
        page.until(lambda: page.one("#canvas").size["width"] > 300)
        x, y, width, height = page.script(
            "const one = document.querySelector('#canvas').getBoundingClientRect();"
            "return [one.x, one.y, one.width, one.height]"
        )

        def draw_box() -> None:
            page.touch("touchStart", (x + 0.4 * width, y + 0.3 * height))
            page.touch("touchMove", (x + 0.5 * width, y + 0.5 * height))
            page.touch("touchMove", (x + 0.6 * width, y + 0.7 * height))
            page.touch("touchEnd")

        page.after(draw_box)
        assert page.one("#box").is_displayed()
        assert page.one("#mark").get_attribute("aria-pressed") == "false"


def test_the_page_labels_its_buttons(page: Page, root: Path) -> None:
    page.upload(root / "0" / "0.png")
    for button in page.all("header.bar button, header.bar a, .band.sure .tile button"):
        assert button.accessible_name, button.get_attribute("outerHTML")
    assert page.one(".nav a").text == "Search"
    page.script("document.activeElement.blur()")
    page.keys(Keys.ARROW_RIGHT)  # to the first result
    width = page.script("return getComputedStyle(document.activeElement).outlineWidth")
    assert page.script("return document.activeElement.className") == "go"
    assert float(width.removesuffix("px")) >= 3


def test_things_have_their_place_under_the_search_box(page: Page, root: Path) -> None:
    order = page.script(
        "const [box, things, results] = ['.query', '#things', '#results'].map((one) => document.querySelector(one));"
        "return !!(box.compareDocumentPosition(things) & 4) && !!(things.compareDocumentPosition(results) & 4)"
    )
    assert order
    page.script("document.querySelector('#things').hidden = false")
    page.upload(root / "0" / "0.png")
    assert not page.one("#things").is_displayed()  # it belongs to the start page
