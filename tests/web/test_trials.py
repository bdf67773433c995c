"""Three whole trials on 572 real photos of 34 things, and 50 more: at the page, in Python, on a phone."""

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps
from selenium.webdriver.common.keys import Keys

import insclr
from helpers.browser import Page, served_page
from helpers.camera_photos import take_photos
from insclr.feedback.names import Gallery, build_gallery
from insclr.options import SearchOptions
from insclr.retrieval.query import describer_of
from insclr.retrieval.search import search
from insclr.store import open_store
from insclr.web.decode_pool import DecodePool
from insclr.web.queries import QueryDecoder, row_query
from insclr.web.served import ServedStore

pytestmark = pytest.mark.slow
NAMED = 10  # things that get a name before the next day
SCREENS = 6


@dataclass(frozen=True)
class Trial:
    """A folder with the photos of the first day, those of the next day, a run and a store, and what photos show."""

    folder: Path
    shows: dict[str, str]
    first: frozenset[str]

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def serve(self) -> ServedStore:
        store = open_store(self.store)
        return ServedStore("Search", store, describer_of(store.info, "", workers=0))


@pytest.fixture(scope="module")
def trial(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Trial:
    folder = tmp_path_factory.mktemp("trial")
    first, later = take_photos(shared, folder)
    insclr.train(folder / "first", folder / "run", "fast")
    insclr.index(folder / "run", folder / "first", folder / "store")
    return Trial(folder, first | later, frozenset(first))


@pytest.fixture
def page(browser: object, trial: Trial) -> Iterator[Page]:
    with served_page(trial.serve()) as address:
        yield Page(browser, address)  # type: ignore[arg-type]


def titles(page: Page, selector: str) -> list[str]:
    return page.script(
        "return [...document.querySelectorAll(arguments[0])].map((one) => one.title)", selector
    )


def name_largest(page: Page, trial: Trial) -> int:
    """Name the largest things one after the other, wrong photos taken out, those of one name joined; their number."""
    page.visit("things", ".thing")
    page.script("document.querySelector('.thing').click()")
    names = set()
    for _ in range(NAMED):
        page.until(lambda: page.all("#photos .tile"))
        shown = titles(page, "#photos .tile")
        thing = Counter(trial.shows[path] for path in shown).most_common(1)[0][0]
        wrong = [path for path in shown if trial.shows[path] != thing]
        if wrong:
            page.script(
                "for (const one of document.querySelectorAll('#photos .tile'))"
                " if (arguments[0].includes(one.title)) one.querySelector('.tick').click()",
                wrong,
            )
            page.script("document.getElementById('choose-remove').click()")
            kept = len(shown) - len(wrong)
            page.until(lambda kept=kept: len(page.all("#photos .tile")) == kept)
        page.one("#name").send_keys(thing)
        page.script("document.getElementById('photos').dataset.old = 'yes'")
        page.script("document.getElementById('save-next').click()")
        if thing in names:
            page.until(lambda: page.all("dialog [data-answer=join]"))[0].click()
        names.add(thing)
        page.until(lambda: page.all("#photos:not([data-old]) .tile"))
    return len(names)


def members(gallery: Gallery) -> dict[str, set[str]]:
    """The photos of every named thing."""
    return {one.name: {row.image.path for row in one.rows} for one in gallery.things if one.name}


def count_sure(trial: Trial) -> tuple[int, int]:
    """Sure results of searching for every sixth photo of the first day, and the right ones among them."""
    sure = right = 0
    home = trial.serve()
    rows, known = home.store.rows_by_path(), home.feedback.known_pairs()
    for path in sorted(trial.first)[::6]:
        query = row_query(QueryDecoder(DecodePool(1)), home, rows[path])
        for match in search(home.store, home.describer, [query], SearchOptions(top=50), known=known):
            if match.band == "sure" and not match.is_query:
                sure += 1
                right += trial.shows[match.path] == trial.shows[path]
    home.store.close()
    return sure, right


def test_a_person_names_photos_adds_those_of_the_next_day_and_learns(browser: object, trial: Trial) -> None:
    served = trial.serve()
    with served_page(served) as address:
        page = Page(browser, address)  # type: ignore[arg-type]
        count = name_largest(page, trial)
        named = members(served.feedback.gallery())
        assert len(named) == count
        for file in (trial.folder / "next").iterdir():
            shutil.copy(file, trial.folder / "first")
        insclr.index(trial.store, trial.folder / "first", trial.store)

        # What a person has seen stays as it was; what joins by itself is right, the rest waits.
        with closing(open_store(trial.store)) as store:
            gallery = build_gallery(store)
        after = members(gallery)
        assert {name: paths & trial.first for name, paths in after.items()} == named
        joined = [(name, path) for name, paths in after.items() for path in paths - trial.first]
        wrong = [one for one in joined if one[0] != trial.shows[one[1]]]
        assert len(wrong) <= 0.05 * len(joined)
        proposed = [
            (one.name, row.image.path) for one in gallery.things for row, _ in one.proposed if one.name
        ]
        assert {path for _, path in (*joined, *proposed)} - trial.first

        # A thing with proposals: the right ones are confirmed, the wrong ones rejected.
        waiting = max((one for one in gallery.things if one.name), key=lambda one: len(one.proposed))
        page.visit(f"things#{waiting.id}", "#proposals .tile")
        right = [path for path in titles(page, "#proposals .tile") if waiting.name == trial.shows[path]]
        if right:
            page.script(
                "for (const one of document.querySelectorAll('#proposals .tile'))"
                " if (arguments[0].includes(one.title)) one.querySelector('.tick').click();"
                "document.getElementById('confirm').click()",
                right,
            )
            page.until(lambda: set(right) <= set(titles(page, "#photos .tile")))

        # A photo that matches nothing opens, is searched from, and gets a name.
        page.visit("photos?show=new", ".tile")
        lonely = titles(page, ".tile")[0]
        page.script("document.querySelector('.tile .go').click()")
        page.until(lambda: page.script("return document.querySelector('#large').naturalWidth > 0"))
        page.script("document.getElementById('viewer-rename').click()")
        page.one("#viewer-naming input").send_keys("Odd one", Keys.ENTER)
        page.until(lambda: page.one("#viewer-thing").text == "Odd one")

        before = count_sure(trial)
        page.visit("teach", "#candidates .pick")
        for number in range(1, SCREENS + 1):
            query = trial.shows[titles(page, "#query")[0]]
            same = [path for path in titles(page, "#candidates .pick") if trial.shows[path] == query]
            page.script(
                "for (const one of document.querySelectorAll('#candidates .pick'))"
                " if (arguments[0].includes(one.title)) one.click();"
                "document.getElementById(arguments[0].length ? 'done' : 'none').click()",
                same,
            )
            page.until(lambda number=number: page.one("#count").text.startswith(f"{number} screen"))
        page.script("document.getElementById('learn').click()")
        page.until(lambda: page.one("#learning").get_attribute("data-state") in ("done", "failed"), 900)
        assert page.one("#learning").get_attribute("data-state") == "done", page.one("#learning").text

    # The next day the same store has the names.
    again = trial.serve()
    kept = members(again.feedback.gallery())
    assert set(named) <= set(kept)
    assert lonely in kept["Odd one"]
    sure, right_ones = count_sure(trial)
    with served_page(again) as address:
        page = Page(browser, address)  # type: ignore[arg-type]
        page.open("")
        page.until(lambda: "Odd one" in page.one("#things").text or page.all("#things .thing"))
        assert len(members(again.feedback.gallery())) == count + 1
    if right_ones < before[1] or right_ones < 0.95 * sure:  # docs/research/results-search.md has the figures
        pytest.xfail(f"sure results (right ones) before Learn {before}, after {(sure, right_ones)}")


def test_a_pipeline_in_python_gets_the_vectors_names_and_matches_of_the_store(
    trial: Trial, tmp_path: Path
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    photos = [trial.folder / "first" / path for path in sorted(trial.first)[:40]]
    vectors = insclr.embed(trial.folder / "run", photos).vectors
    with closing(open_store(trial.store)) as store:
        rows = store.rows_by_path()
        kept = store.descriptors([rows[one.name].id for one in photos])
    assert (vectors * kept).sum(1).min() > 0.999
    insclr.export(trial.folder / "run", tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    longest = int(session.get_modelmeta().custom_metadata_map["insclr.longest"])
    for photo, vector in zip(photos, vectors, strict=True):
        image = Image.open(photo)
        width, height = (-(-side * longest // max(image.size)) for side in image.size)
        image.draft("RGB", (width, height))
        pixels = np.asarray(ImageOps.exif_transpose(image).convert("RGB"), np.float32)
        (descriptor,) = session.run(["descriptor"], {"images": pixels.transpose(2, 0, 1)[None]})
        assert float(descriptor[0] @ vector) >= 0.9999, photo.name
    array = np.asarray(Image.open(photos[0]).convert("RGB"))
    matches = insclr.search(trial.store, array, top=5)
    assert matches[0].path == photos[0].name
    (tmp_path / "names.csv").write_text(f"path,name\n{photos[0].name},Blue thing\nnowhere.jpg,Other\n")
    assert insclr.names(trial.store, tmp_path / "names.csv")[photos[0].name] == "Blue thing"
    (tmp_path / "empty.csv").write_text("path,name\nnowhere.jpg,Other\n")
    with pytest.raises(insclr.UserError, match="not in the store"):
        insclr.names(trial.store, tmp_path / "empty.csv")


@pytest.mark.parametrize("width", [1300, 390])
def test_every_page_fits_and_can_be_read_by_everyone(page: Page, width: int) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    page.cdp("Emulation.setDeviceMetricsOverride", **size)
    page.visit("things", ".thing")
    thing = page.script("return document.querySelector('.thing').dataset.thing")
    try:
        for path, selector in {
            "": "#things .thing",
            "?photo=0:1": "#grid .tile",
            "?photo=0:1&view=0:2": "#viewer[open]",
            "photos?order=fit": ".tile .score",
            "things": ".thing",
            f"things#{thing}": "#photos .tile",
            "teach": "#candidates .pick",
            "history": "#steps > *",
        }.items():
            page.visit(path, selector)
            assert page.script("return document.documentElement.scrollWidth") <= width, path
            assert page.barriers() == [], path
    finally:
        page.cdp("Emulation.clearDeviceMetricsOverride")
