"""Gallery, names and teaching in a real browser: what a person does, and what is then shown."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from helpers.browser import served_page
from insclr.web.served import ServedStore


class Window:
    """A browser window on a served collection."""

    def __init__(self, browser: webdriver.Chrome, address: str) -> None:
        self.browser = browser
        self.address = address

    def open(self, path: str = "") -> None:
        self.browser.get(self.address + path)

    def until(self, condition: Callable[[], Any], seconds: float = 20) -> Any:
        return WebDriverWait(self.browser, seconds, 0.05).until(lambda _: condition())

    def all(self, selector: str) -> list[WebElement]:
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        return self.until(lambda: next(iter(self.all(selector)), None))

    def press(self, key: str) -> None:
        self.browser.find_element(By.TAG_NAME, "body").send_keys(key)

    def fits(self) -> bool:
        """Whether nothing is wider than the window."""
        return bool(
            self.browser.execute_script(
                "return document.documentElement.scrollWidth <= window.innerWidth + 1"
            )
        )


@pytest.fixture
def window(browser: webdriver.Chrome, collection: ServedStore) -> Iterator[Window]:
    with served_page(collection) as address:
        yield Window(browser, address)


def test_from_the_gallery_to_a_name_to_the_search_results(window: Window, collection: ServedStore) -> None:
    window.open()
    window.until(lambda: window.all("#things .thing"))
    window.all("#things .thing")[0].click()
    name = window.one("#name")
    name.send_keys("<img src=x onerror=alert(1)> mug", Keys.ENTER)
    window.until(lambda: "thing-" in window.browser.current_url)
    window.until(lambda: window.all("#photos .tile"))
    assert window.one("#name").get_attribute("value") == "<img src=x onerror=alert(1)> mug"
    # In one step: the page may be drawn anew between finding a photo and asking for its ref.
    photo = window.browser.execute_script("return document.querySelector('#photos .tile').dataset.ref")
    assert photo
    # The link is the thing's own: it leads there again.
    window.open(window.browser.current_url.removeprefix(window.address))
    window.browser.refresh()
    window.until(lambda: window.one("#name").get_attribute("value").startswith("<img"))  # type: ignore[union-attr]
    row = collection.row(int(photo.partition(":")[2]))
    assert collection.feedback.read().name_of(row.image.hash) == "<img src=x onerror=alert(1)> mug"
    window.open("things")
    window.until(lambda: window.all(".thing b:not(.unnamed)"))
    assert window.one(".thing b:not(.unnamed)").text == "<img src=x onerror=alert(1)> mug"
    assert not window.all(".thing b img")


def test_not_this_one_and_undo(window: Window) -> None:
    window.open("things")
    window.one(".thing").click()
    window.until(lambda: window.all("#photos .tile"))
    before = len(window.all("#photos .tile"))
    assert not window.one("#choose").is_displayed()
    window.browser.execute_script("[...document.querySelectorAll('#photos .tick')].at(-1).click()")
    window.one("#choose-remove").click()
    window.until(lambda: len(window.all("#photos .tile")) == before - 1)
    window.until(lambda: window.one("#undo").is_enabled())
    window.one("#undo").click()
    window.until(lambda: len(window.all("#photos .tile")) == before)


def test_a_screen_is_answered_by_taps_and_by_keys(window: Window, collection: ServedStore) -> None:
    window.open("teach")
    window.until(lambda: window.all("#candidates .pick"))
    assert not window.one("#done").is_enabled()
    chosen = window.one("#candidates .pick")
    chosen.click()
    assert chosen.get_attribute("aria-pressed") == "true"
    window.one("#done").click()
    window.until(lambda: window.one("#count").text == "1 screen answered")
    said = collection.feedback.read()
    assert sum(link.same for link in said.links) == 1
    if window.one("#none").is_displayed():
        window.press("n")
        window.until(lambda: window.one("#count").text == "2 screens answered")
    window.one("#undo").click()
    window.until(lambda: window.all(".toast"))


def test_a_candidate_is_seen_large_without_being_chosen(window: Window, collection: ServedStore) -> None:
    window.open("teach")
    window.until(lambda: window.all("#candidates .pick"))
    first = window.one("#candidates .pick")
    window.one("#candidates .enlarge").click()
    window.until(lambda: window.one("#viewer").is_displayed())
    assert window.one("#facts-path").text == first.get_attribute("title")
    assert window.one("#viewer-place").text.startswith("2 of ")  # after the photo that is asked about
    window.one("#viewer").send_keys(Keys.ESCAPE)
    window.until(lambda: not window.one("#viewer").is_displayed())
    assert first.get_attribute("aria-pressed") == "false"
    assert collection.store.journal() == []


def test_an_answer_to_what_the_model_before_asked_is_not_written_and_asked_anew(
    window: Window, collection: ServedStore
) -> None:
    window.open("teach")
    window.until(lambda: window.all("#candidates .pick"))
    collection.store.info = replace(collection.store.info, fingerprint="of a model that learned meanwhile")
    window.press("n")
    window.until(lambda: "A new model" in window.one(".toast").text)
    assert collection.store.journal() == []
    window.until(lambda: window.all("#candidates .pick"))
    window.press("n")
    window.until(lambda: window.one("#count").text == "1 screen answered")


@pytest.mark.parametrize("page", ["", "things", "teach"])
def test_nothing_is_wider_than_a_phone(window: Window, page: str) -> None:
    window.browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 390, "height": 800, "deviceScaleFactor": 2, "mobile": True},
    )
    try:
        window.open(page)
        window.until(lambda: window.all(".thing, #candidates .pick"))
        assert window.fits()
    finally:
        window.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
