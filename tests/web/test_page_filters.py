"""Filters are chosen from the columns, or written by experts; what goes wrong takes the place of the results."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from helpers.browser import Page, served_page, things
from helpers.histogram_describer import HistogramDescriber, draw_things
from insclr.data.images import list_images
from insclr.retrieval.index import index_images
from insclr.store import open_store
from insclr.web.served import ServedStore

ROOMS = ("Reading room", "Store B, shelf 3", "O'Neill's room")


@pytest.fixture(scope="module")
def museum(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ServedStore]]:
    """Photos with a room each (names that need quotes) and a year."""
    folder = tmp_path_factory.mktemp("museum")
    paths = draw_things(folder / "images", 3, 4)
    lines = [f'{path},"{ROOMS[i % 3]}",{1900 + i}' for i, path in enumerate(paths)]
    table = folder / "images" / "list.csv"
    table.write_text("path,room,date taken\n" + "\n".join(lines) + "\n")
    describer = HistogramDescriber()
    index_images(describer, list_images(table), folder / "store")
    store = ServedStore("Search", open_store(folder / "store"), describer)
    with served_page(store) as address:
        yield address, store


@pytest.fixture
def page(museum: tuple[str, ServedStore], browser: webdriver.Chrome) -> Page:
    opened = Page(browser, museum[0])
    opened.upload(museum[1].store.info.root / "0" / "0.png")
    return opened


def rows_with(museum: tuple[str, ServedStore], **columns: str) -> set[str]:
    rows = museum[1].store.rows_by_path()
    return {p for p, row in rows.items() if all(row.image.columns[k] == v for k, v in columns.items())}


def test_filters_are_built_by_choosing(page: Page, museum: tuple[str, ServedStore]) -> None:
    menu = lambda: Select(page.one("#filter-add"))  # noqa: E731
    assert [one.text for one in menu().options] == ["Add a filter…", "path", "date taken", "room"]
    page.after(lambda: menu().select_by_visible_text("room"))
    rooms = Select(page.one(".filter .value"))
    assert {one.text for one in rooms.options} == set(ROOMS)
    for room in ROOMS:
        if Select(page.one(".filter .value")).first_selected_option.text != room:
            page.after(lambda room=room: Select(page.one(".filter .value")).select_by_visible_text(room))
        assert set(page.paths()) == rows_with(museum, room=room)
    menu().select_by_visible_text("date taken")
    year = page.all(".filter .value")[1]
    assert year.get_attribute("placeholder") == "1900 to 1911"
    assert page.browser.switch_to.active_element == year
    last = sorted(rows_with(museum, room=ROOMS[2]))[-1]
    assert page.after(lambda: year.send_keys("1911", Keys.ENTER)) == [last]
    assert page.one("#filter-count").text == "2"
    page.after(lambda: page.all(".filter .remove")[1].click())
    page.after(lambda: page.all(".filter .remove")[0].click())
    assert len(page.paths()) == 12


def test_chosen_filters_live_in_the_address(page: Page, museum: tuple[str, ServedStore]) -> None:
    ref = f"0:{museum[1].store.rows_by_path()['0/0.png'].id}"
    paths = page.open(f"?photo={ref}&only.room=is:O%27Neill%27s+room&only.path=contains:1/")
    assert set(paths) == {p for p in rows_with(museum, room=ROOMS[2]) if p.startswith("1/")}
    names = [one.text for one in page.all(".filter .name")]
    assert names == ["room", "path"]
    page.after(lambda: Select(page.all(".filter .sign")[0]).select_by_visible_text("is not"))
    assert "only.room=is-not:" in page.browser.current_url
    assert not set(page.paths()) & rows_with(museum, room=ROOMS[2])
    page.after(lambda: page.browser.back())
    assert set(page.paths()) == set(paths)


def test_the_written_language_stays_and_slash_leads_there(page: Page) -> None:
    page.script("document.activeElement.blur()")
    page.keys("/")
    field = page.one("#where")
    assert page.browser.switch_to.active_element == field
    paths = page.after(lambda: field.send_keys("path contains '2/' and 'date taken' >= 1910", Keys.ENTER))
    assert things(paths) == {"2"}
    assert len(paths) == 2


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("room = Reading room", "Quote it: write 'Reading room'"),
        ("date taken >= 1905", "Quote it: write the column as 'date taken'"),
        ("colour = red", "No column 'colour'"),
    ],
)
def test_a_mistake_replaces_the_results_by_what_to_do(page: Page, written: str, said: str) -> None:
    assert page.all(".tile")
    page.keys("/")
    page.after(lambda: page.one("#where").send_keys(written, Keys.ENTER))
    assert not page.all(".tile")  # nothing of the search before is left
    assert page.one("#status").text == ""
    assert said in page.one(".problem").text
    assert said in page.one("#where-error").text
    assert page.one("#where").get_attribute("aria-invalid") == "true"
    button = next(one for one in page.all(".problem button") if one.text == "Remove the filters")
    page.after(button.click)
    assert len(page.paths()) == 12
    assert not page.one("#where-error").is_displayed()


def test_a_changed_filter_keeps_the_focus(page: Page) -> None:
    page.after(lambda: Select(page.one("#filter-add")).select_by_visible_text("room"))
    page.one(".filter .sign").send_keys("")  # by keyboard
    page.after(lambda: page.keys(Keys.ARROW_DOWN))
    assert page.script("return document.activeElement.className") == "sign"
    assert page.one(".filter .sign").get_attribute("value") == "is-not"


def test_every_field_has_a_name(page: Page) -> None:
    page.script("document.querySelector('#more').open = true")
    Select(page.one("#filter-add")).select_by_visible_text("path")
    for field in page.browser.find_elements(By.CSS_SELECTOR, "#panel input, #panel select, #panel button"):
        if field.is_displayed():
            assert field.accessible_name, field.get_attribute("outerHTML")


def test_an_upload_that_fails_replaces_the_results(page: Page, tmp_path: Path) -> None:
    (tmp_path / "fake.png").write_bytes(b"this is not a picture")
    page.upload(tmp_path / "fake.png")
    assert "This file is not a photo" in page.one(".problem").text
    assert not page.all(".tile")
