"""From the gallery to a better search in a real browser, on a drawn collection."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from helpers.browser import Page, served_page
from insclr.data.images import list_images
from insclr.describe.describer import Describer
from insclr.jobs.train import train
from insclr.report.run_report import report_proof
from insclr.retrieval.index import index_images
from insclr.store import open_store
from insclr.store.store_models import model_before
from insclr.web.served import ServedStore
from insclr_demo import draw_collection

THINGS, VIEWS, FIRST_ROW = 16, 10, 5
SCREENS = 16
QUERIES = 2  # of each thing


@pytest.fixture
def collection(tmp_path: Path) -> Iterator[ServedStore]:
    """A drawn collection, indexed with a model that was trained without a word from anybody."""
    photos = draw_collection(tmp_path / "photos", things=THINGS, views=VIEWS, size=128, workers=1)
    model = train(photos, tmp_path / "run", "fast")
    describer = Describer(str(tmp_path / "run"), model)
    index_images(describer, list_images(photos), tmp_path / "store")
    store = open_store(tmp_path / "store")
    yield ServedStore("Search", store, describer)
    store.close()


def _thing(path: str | None) -> str:
    """What a photo shows: the folder it lies in."""
    return str(path).split("/")[-2]


def _first_row_precision(page: Page, store: ServedStore) -> float:
    """The share of right photos among the first five results on the page, over some photos of every thing."""
    right = 0
    rows = store.store.rows_by_path()
    queries = [path for path in sorted(rows) if int(Path(path).stem) < QUERIES]
    for path in queries:
        found = page.open(f"?photo=0:{rows[path].id}")
        results = [one for one in found if one != path][:FIRST_ROW]
        assert len(results) == FIRST_ROW
        right += sum(_thing(one) == _thing(path) for one in results)
    return right / (FIRST_ROW * len(queries))


def _name_the_first_thing(page: Page) -> str:
    """Open the largest group, take out what it does not show, and name it."""
    page.open("")
    page.until(lambda: page.all("#things .thing"))
    page.script("document.querySelector('#things .thing').click()")
    page.until(lambda: page.all("#photos .tile"))
    shown = [_thing(one.get_attribute("title")) for one in page.all("#photos .tile")]
    name = max(set(shown), key=shown.count)
    if wrong := [one for one in page.all("#photos .tile") if _thing(one.get_attribute("title")) != name]:
        page.script("for (const one of arguments[0]) one.querySelector('.tick').click()", wrong)
        page.script("document.getElementById('choose-remove').click()")
        page.until(lambda: len(page.all("#photos .tile")) == len(shown) - len(wrong))
    page.one("#name").send_keys(name, Keys.ENTER)
    page.until(lambda: "thing-" in page.browser.current_url)
    return name


def _tap(page: Page, photos: list[WebElement]) -> None:
    # By script: pictures above may still be loading and move what is below them.
    page.script("for (const one of arguments[0]) one.click()", photos)


def _answer_screens(page: Page) -> int:
    page.browser.get(page.address + "teach")
    page.until(lambda: page.all("#candidates .pick"))
    for number in range(1, SCREENS + 1):
        query = _thing(page.one("#query").get_attribute("title"))
        same = [one for one in page.all("#candidates .pick") if _thing(one.get_attribute("title")) == query]
        _tap(page, same)
        page.script(f"document.getElementById('{'done' if same else 'none'}').click()")
        expected = f"{number} screen"
        page.until(lambda expected=expected: page.one("#count").text.startswith(expected))
        if page.one("h1").text.startswith("There is nothing left"):
            return number
    return SCREENS


def _judge(page: Page) -> list[str]:
    """Judge results drawn by chance until the page says how precise search is; gives its sentences."""
    page.browser.get(page.address + "teach")
    page.until(lambda: page.all("#proof p"))
    page.script("document.getElementById('judge').click()")
    for _ in range(70):
        said = page.script("return [...document.querySelectorAll('#proof p')].map((one) => one.textContent)")
        if not any("judged" in one and "of 30" in one for one in said):
            return said
        shown = page.until(lambda: page.script("return document.getElementById('judged-query').title"))
        same = _thing(shown) == _thing(page.one("#judged-result").get_attribute("title"))
        page.script("document.body.dataset.old = document.querySelector('#proof').dataset.pairs")
        page.script(f"document.getElementById('{'right' if same else 'wrong'}').click()")
        page.until(
            lambda: page.script(
                "return document.body.dataset.old !== document.querySelector('#proof').dataset.pairs"
            )
        )
    raise AssertionError(f"70 judged results were not enough: {said}")


@pytest.mark.slow
def test_names_and_answers_make_search_better_and_the_report_proves_it(
    browser: object, collection: ServedStore
) -> None:
    with served_page(collection) as address:
        page = Page(browser, address)  # type: ignore[arg-type]
        before = _first_row_precision(page, collection)
        name = _name_the_first_thing(page)
        assert _answer_screens(page) > 5
        page.script("document.getElementById('learn').click()")
        page.until(lambda: page.one("#learning").get_attribute("data-state") in ("done", "failed"), 600)
        assert page.one("#learning").get_attribute("data-state") == "done", page.one("#learning").text

        page.open("")
        page.until(lambda: len(page.all("#compare button")) == 2)
        assert {one.text for one in page.all("#compare button")} == {"After", "Before"}
        learned = open_store(collection.store.uri)
        after = _first_row_precision(page, ServedStore("After", learned, _of(learned)))
        assert after > before + 0.02, f"the first row was right {before:.1%} of the time, now {after:.1%}"

        page.open(f"?photo=0:{next(row.id for path, row in learned.rows_by_path().items() if name in path)}")
        assert any(name in one.text for one in page.all(".tile"))  # the name went along

        sentences = _judge(page)
        assert [one.split(":")[0] for one in sentences] == ["After", "Before"]
        for one in sentences:
            assert "of the first 5 results show the same thing (between " in one
        with closing(open_store(str(model_before(collection.store.uri)))) as earlier:
            printed = report_proof([learned, earlier], ["Now", "Before"])
        assert printed == [one.split(": ", 1)[1] for one in sentences]
        told = (Path(learned.info.model) / "report.html").read_text()
        assert all(one in told for one in printed)


def _of(store: object) -> Describer:
    from insclr.model.model_file import resolve_model

    name = store.info.model  # type: ignore[attr-defined]
    return Describer(name, resolve_model(name))
