"""A photo seen large: by mouse, by keys, by fingers; what can be done with it; and when its file is gone."""

from pathlib import Path

import httpx
import pytest
from selenium.webdriver.common.keys import Keys

from helpers.browser import Page
from insclr.web.served import ServedStore

SCALE = "return new DOMMatrix(getComputedStyle(document.querySelector('#large')).transform).a"
MIDDLE = (195, 300)  # of the photo on a phone


@pytest.fixture
def viewed(page: Page, root: Path) -> Page:
    """The page with the second of some results opened by a click."""
    page.upload(root / "0" / "0.png")
    page.open_viewer(1)
    return page


def shown(page: Page) -> str:
    return page.one("#facts-path").text


def test_a_click_opens_the_photo_large(page: Page, root: Path) -> None:
    paths = page.upload(root / "0" / "0.png")
    page.all(".tile .go")[1].click()
    assert shown(page) == paths[1]
    page.until(lambda: page.script("return document.querySelector('#large').naturalWidth > 0"))
    assert page.one("#large").size["width"] > 600
    assert page.one("#viewer-place").text == f"2 of {len(paths)}"
    assert "%" in page.one("#facts").text
    assert "year" in page.one("#facts").text
    page.one("#next").click()
    assert shown(page) == paths[2]
    page.one("#viewer [data-close]").click()
    page.until(lambda: not page.one("#viewer").is_displayed())


def test_keys_step_zoom_and_close(viewed: Page) -> None:
    paths = viewed.paths()
    viewed.keys(Keys.ARROW_RIGHT)
    assert shown(viewed) == paths[2]
    viewed.keys(Keys.ARROW_LEFT, Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert shown(viewed) == paths[-1]  # around the end
    viewed.keys("+", "+")
    assert viewed.script(SCALE) == pytest.approx(1.6**2)
    viewed.keys("-")
    assert viewed.script(SCALE) == pytest.approx(1.6)
    viewed.keys("0")
    assert viewed.script(SCALE) == 1
    viewed.keys("+", Keys.ARROW_RIGHT)
    assert viewed.script(SCALE) == 1  # the next photo is seen whole
    viewed.keys(Keys.ESCAPE)
    viewed.until(lambda: not viewed.one("#viewer").is_displayed())


def test_a_tap_opens_it_on_a_phone_and_fingers_swipe_and_zoom(page: Page, root: Path) -> None:
    with page.phone():
        paths = page.upload(root / "0" / "0.png")
        page.script("window.scrollTo(0, 0)")
        page.tap(page.all(".tile .go")[1])
        page.until(lambda: page.one("#viewer").is_displayed())
        page.until(lambda: page.script("return document.querySelector('#large').naturalWidth > 0"))
        assert page.script("return document.querySelector('#viewer').scrollWidth") == 390
        x, y = MIDDLE
        page.touch("touchStart", (x + 80, y))
        page.touch("touchMove", (x - 20, y + 5))
        page.touch("touchMove", (x - 80, y + 5))
        page.touch("touchEnd")
        page.until(lambda: shown(page) == paths[2])
        page.touch("touchStart", (x - 40, y), (x + 40, y))
        page.touch("touchMove", (x - 60, y), (x + 60, y))
        page.touch("touchMove", (x - 80, y), (x + 80, y))
        page.touch("touchEnd")
        page.until(lambda: page.script(SCALE) == pytest.approx(2, rel=0.05))
        assert shown(page) == paths[2]
        page.touch("touchStart", (x + 80, y))
        page.touch("touchMove", (x - 80, y))
        page.touch("touchEnd")
        assert shown(page) == paths[2]  # a large photo is moved, not left
        page.tap(page.one("#viewer [data-close]"))
        page.until(lambda: not page.one("#viewer").is_displayed())


def test_on_a_phone_the_second_control_searches(page: Page, root: Path) -> None:
    with page.phone():
        paths = page.upload(root / "0" / "0.png")
        page.script("window.scrollTo(0, 0)")
        page.after(lambda: page.tap(page.all(".tile [data-do=search]")[1]))
        assert page.one("#stage-name").text == paths[1]


def test_searching_and_adding_from_the_viewer(viewed: Page) -> None:
    goal = shown(viewed)
    viewed.after(lambda: viewed.one("#viewer-add").click())
    assert len(viewed.all("#set li")) == 3  # two photos and the button that adds more
    viewed.open_viewer(0)
    goal = shown(viewed)
    viewed.after(lambda: viewed.one("#viewer-search").click())
    assert viewed.one("#stage-name").text == goal


def test_the_file_can_be_opened_downloaded_and_named(viewed: Page, root: Path) -> None:
    file = root / shown(viewed)
    original = httpx.get(viewed.one("#original").get_attribute("href") or "")
    assert original.content == file.read_bytes()
    saved = httpx.get(viewed.one("#download").get_attribute("href") or "")
    assert saved.content == file.read_bytes()
    assert saved.headers["content-disposition"].startswith("attachment")
    viewed.cdp("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    viewed.one("#copy-path").click()
    viewed.until(lambda: viewed.all(".toast") and viewed.one(".toast").is_displayed())
    read = "navigator.clipboard.readText().then(arguments[0], (error) => arguments[0](String(error)))"
    assert viewed.browser.execute_async_script(read) == str(file)


def test_a_vanished_file_s_viewer_is_readable(
    page: Page, served: tuple[str, ServedStore], root: Path
) -> None:
    target = root / "5" / "7.png"
    kept = target.read_bytes()
    number = served[1].store.rows_by_path()["5/7.png"].id
    for phone in (False, True):
        try:
            target.unlink()
            if phone:
                with page.phone():
                    assert_readable(page, number)
            else:
                assert_readable(page, number)
        finally:
            target.write_bytes(kept)


def assert_readable(page: Page, number: int) -> None:
    page.open(f"?view=0:{number}")
    page.until(lambda: page.one("#missing").is_displayed())
    text = page.one("#missing").text
    assert "This photo cannot be shown" in text
    assert "5/7.png" in text
    assert not page.one("#download").is_displayed()  # there is nothing to download
    assert page.one("#copy-path").is_displayed()
    assert "not found" in text
    assert "--prune" in text
    colours = page.script(
        "const one = document.querySelector('#missing'); const all = getComputedStyle(one);"
        "return [getComputedStyle(one.querySelector('p')).color, all.backgroundColor]"
    )
    light, dark = ([int(n) for n in one[4:-1].split(",")] for one in colours)
    assert min(light) - max(dark) > 150  # light text on a dark ground
    # Nothing of it is cut off, and the buttons do not lie on it.
    assert page.script(
        "const box = document.querySelector('#viewer-stage').getBoundingClientRect();"
        "return [...document.querySelectorAll('#missing > *')].every((one) => {"
        " const text = one.getBoundingClientRect();"
        " return text.left >= box.left && text.right <= box.right"
        "  && text.top >= box.top && text.bottom <= box.bottom; })"
    )
