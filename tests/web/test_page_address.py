"""The search lives in the address: it can be reloaded, shared and gone back to; an uploaded photo cannot."""

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from helpers.browser import Page, things
from insclr.web.served import ServedStore


def asked(page: Page) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.browser.current_url).query)


def id_of(served: tuple[str, ServedStore], path: str) -> int:
    return served[1].store.rows_by_path()[path].id


def test_query_filters_and_order_survive_a_reload_and_a_new_window(
    page: Page, served: tuple[str, ServedStore]
) -> None:
    page.open(f"?photo=0:{id_of(served, '2/3.png')}")
    page.script("document.querySelector('#more').open = true")
    page.after(lambda: Select(page.one("#rerank")).select_by_index(1))
    page.after(lambda: page.one("#where").send_keys("year >= 2030", Keys.ENTER))
    found = page.after(lambda: page.script("document.querySelectorAll('.tile [data-do=search]')[1].click()"))
    kept = asked(page)
    assert kept["where"] == ["year >= 2030"]
    assert kept["order"]
    assert found
    page.browser.refresh()
    page.until(page.settled)
    assert page.paths() == found
    assert page.one("#where").get_attribute("value") == "year >= 2030"
    address = page.browser.current_url
    page.browser.switch_to.new_window("tab")
    try:
        page.browser.get(address)
        page.until(page.settled)
        assert page.paths() == found
    finally:
        page.browser.close()
        page.browser.switch_to.window(page.browser.window_handles[0])


def test_back_undoes_one_step_at_a_time(page: Page) -> None:
    start = page.paths()
    first = page.after(lambda: page.all(".tile .go")[0].click())
    page.script("document.querySelector('#more').open = true")
    filtered = page.after(lambda: page.one("#where").send_keys("thing = 3", Keys.ENTER))
    assert things(filtered) == {"3"}
    assert page.after(lambda: page.browser.back()) == first
    assert page.one("#where").get_attribute("value") == ""
    assert page.after(lambda: page.browser.back()) == start
    assert page.after(lambda: page.browser.forward()) == first


def test_a_box_is_part_of_the_address(page: Page, served: tuple[str, ServedStore]) -> None:
    page.open(f"?photo=0:{id_of(served, '2/3.png')}@0.1,0.2,0.8,0.9")
    assert page.one("#box").is_displayed()
    page.after(lambda: page.one("#clear-box").click())
    assert "@" not in page.browser.current_url


def test_an_uploaded_photo_is_politely_asked_for_again(page: Page, root: Path) -> None:
    page.upload(root / "1" / "1.png")
    page.script("document.querySelector('#more').open = true")
    page.after(lambda: page.one("#where").send_keys("year >= 2001", Keys.ENTER))
    assert asked(page)["uploaded"] == ["1"]  # not its name: addresses are logged and shared
    page.browser.refresh()
    page.until(page.settled)
    notice = page.one("#notice")
    assert notice.is_displayed()
    assert "1.png" in notice.text
    assert "neither stored nor part of the address" in notice.text
    assert "The filters are kept" in notice.text
    paths = page.upload(root / "1" / "1.png")
    assert not page.one("#notice").is_displayed()
    assert "0/0.png" not in paths  # its year is 2000
    assert paths[0] == "1/1.png"


def test_a_shared_address_of_an_uploaded_photo_asks_for_the_photo(page: Page) -> None:
    assert page.open("?uploaded=1&where=year+%3E+2001")
    assert "The photo of this search was only in the page" in page.one("#notice").text


def test_back_to_an_uploaded_photo_works_while_the_page_is_open(page: Page, root: Path) -> None:
    first = page.upload(root / "1" / "1.png")
    second = page.upload(root / "4" / "1.png")
    assert first != second
    assert page.after(lambda: page.browser.back()) == first  # two files of the same name
    assert page.after(lambda: page.browser.forward()) == second


def test_the_open_photo_has_an_address_and_back_closes_it(
    page: Page, served: tuple[str, ServedStore]
) -> None:
    paths = page.open(f"?photo=0:{id_of(served, '2/3.png')}")
    page.open_viewer(1)
    assert asked(page)["view"]
    page.browser.refresh()
    page.until(lambda: page.one("#viewer").is_displayed())
    page.until(lambda: page.one("#facts-path").text == paths[1])
    page.open(f"?photo=0:{id_of(served, '2/3.png')}")
    page.open_viewer(1)
    page.browser.back()
    page.until(lambda: not page.one("#viewer").is_displayed())
    assert page.paths() == paths
    assert "view" not in asked(page)


def test_closing_the_photo_leaves_no_step_behind(page: Page, root: Path) -> None:
    start = page.paths()
    page.upload(root / "0" / "0.png")
    page.open_viewer(1)
    page.until(lambda: "view" in page.step())
    page.keys(Keys.ESCAPE)
    page.until(lambda: "view" not in page.step() and not page.one("#viewer").is_displayed())
    page.until(lambda: "view" not in page.script("return location.search") and page.settled())
    assert page.after(lambda: page.browser.back()) == start


@pytest.mark.parametrize(
    "query", ["?photo=nonsense", "?photo=0:1@5,5,5,5&least=abc&store=9&join=x", "?only.=is:x&view=<b>"]
)
def test_nonsense_in_the_address_is_left_out(page: Page, query: str) -> None:
    assert page.open(query)
    assert not page.all(".problem")


def test_the_address_of_a_deleted_photo_shows_a_message(page: Page) -> None:
    page.open("?photo=0:424242")
    assert "This photo is no longer there" in page.one(".problem").text
    assert not page.all(".tile")
