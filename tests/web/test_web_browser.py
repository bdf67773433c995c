"""The page in a real browser: searching by photos, boxes, sets, keys, and on a phone."""

import io
from pathlib import Path

from PIL import Image
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from helpers.browser import Page, things
from insclr.web.served import ServedStore
from insclr.web.server import create_app


def test_an_uploaded_photo_shows_its_thing_first(page: Page, root: Path) -> None:
    paths = page.upload(root / "2" / "3.png")
    assert paths[0] == "2/3.png"
    assert things(paths[:5]) == {"2"}
    page.until(lambda: "your photo" in page.one(".tile.own").text)  # shown when its picture has faded in
    sure = len(page.all(".band.sure .tile:not(.own)"))
    assert 0 < sure < len(paths)
    assert page.one("#status").text.startswith(f"{sure} sure")
    # The thumbnails are really there.
    page.until(lambda: page.script("return document.querySelector('.tile img').naturalWidth") == 48)


def test_drawing_a_box_searches_by_the_part(page: Page, root: Path, tmp_path: Path) -> None:
    both = Image.new("RGB", (96, 48))
    for side, path in enumerate(("1/0.png", "3/0.png")):
        both.paste(Image.open(root / path), (48 * side, 0))
    both.save(tmp_path / "both.png")
    page.upload(tmp_path / "both.png")
    canvas = page.one("#canvas")
    width, height = canvas.size["width"], canvas.size["height"]

    def draw_right_half() -> None:
        drag = ActionChains(page.browser, duration=50)
        drag.move_to_element_with_offset(canvas, 2, -height // 2 + 2).click_and_hold()
        drag.move_to_element_with_offset(canvas, width // 4, 0)
        drag.move_to_element_with_offset(canvas, width // 2 - 2, height // 2 - 2).release().perform()

    paths = page.after(draw_right_half)
    assert page.one("#box").is_displayed()
    assert things(paths[:3]) == {"3"}
    assert page.all("#set .part")
    page.after(lambda: page.one("#clear-box").click())
    assert not page.one("#box").is_displayed()


def test_the_second_control_of_a_tile_searches_from_it_and_back_returns(page: Page, root: Path) -> None:
    before = page.upload(root / "0" / "0.png")
    goal = before[1]
    after = page.after(lambda: page.all(".tile [data-do=search]")[1].click())
    assert page.one("#stage-name").text == goal
    assert after[0] == goal  # the photo itself, marked as such
    assert page.after(lambda: page.browser.back()) == before


def test_starting_from_a_picture_of_the_collection(page: Page) -> None:
    assert page.one("h1").is_displayed()
    page.until(lambda: page.all("#things .thing"))  # it pushes the tiles down when it comes
    page.script("document.querySelector('.tile').scrollIntoView({block: 'center'})")
    goal = page.paths()[0]
    paths = page.after(lambda: page.all(".tile .go")[0].click())
    assert things(paths[:1]) == things([goal])


def test_several_pictures_are_one_query(page: Page, root: Path) -> None:
    page.upload(root / "0" / "0.png")
    paths = page.paths()
    page.open_other()
    last = next(i for i, path in enumerate(paths) if path.startswith("5/"))

    def add() -> None:
        tile = page.all(".tile")[last]
        page.script("arguments[0].scrollIntoView({block: 'center'})", tile)
        ActionChains(page.browser).move_to_element(tile).perform()
        tile.find_element(By.CSS_SELECTOR, "[data-do=add]").click()

    joined = page.after(add)
    assert len(page.all("#set li")) == 3  # two pictures and the button that adds more
    assert page.one("#join-field").is_displayed()
    assert joined != paths
    any_of = page.after(lambda: page.one("[data-join=max]").click())
    assert {"0", "5"} <= things(any_of[:8])
    page.after(lambda: page.all("#set .remove")[1].click())
    assert len(page.all("#set li")) == 2


def test_before_and_after(page: Page, root: Path) -> None:
    page.upload(root / "1" / "1.png")
    assert [one.text for one in page.all("#compare button")] == ["Before", "After"]
    assert page.one("#compare [aria-pressed=true]").text == "After"
    page.after(lambda: ActionChains(page.browser).send_keys("b").perform())
    assert page.one("#compare [aria-pressed=true]").text == "Before"
    assert page.one(".tile").get_attribute("data-ref").startswith("1:")  # type: ignore[union-attr]


def test_the_whole_way_by_keyboard(page: Page, root: Path) -> None:
    paths = page.upload(root / "4" / "0.png")
    page.script("document.activeElement.blur()")
    page.keys(Keys.ARROW_RIGHT)
    page.keys(Keys.ARROW_RIGHT)
    focused = "return document.activeElement.closest('.tile')?.title"
    assert page.script(focused) == paths[1]
    page.keys(Keys.ARROW_DOWN)
    assert page.script(focused) != paths[1]
    page.keys(Keys.ARROW_UP)
    page.keys(Keys.ENTER)
    assert page.one("#viewer").is_displayed()
    assert page.one("#facts-path").text == paths[1]
    page.keys(Keys.ARROW_RIGHT)
    assert page.one("#facts-path").text == paths[2]
    page.keys(Keys.ESCAPE)
    page.until(lambda: not page.one("#viewer").is_displayed())
    assert page.script(focused) == paths[1]  # the focus is where it was
    page.until(lambda: "view=" not in page.browser.current_url)
    page.after(lambda: page.keys("s"))
    assert page.one("#stage-name").text == paths[1]
    page.one("#canvas").send_keys(Keys.ARROW_RIGHT)
    assert page.one("#box").is_displayed()
    page.keys("?")
    assert page.one("#help").is_displayed()


def test_pasting_and_dropping_a_photo(page: Page, root: Path) -> None:
    content = list((root / "3" / "2.png").read_bytes())
    give = """
      const file = new File([new Uint8Array(arguments[0])], "given.png", {type: "image/png"});
      const data = new DataTransfer(); data.items.add(file);
      const event = arguments[1] === "paste"
        ? new ClipboardEvent("paste", {clipboardData: data, bubbles: true})
        : new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true});
      document.body.dispatchEvent(event);"""
    for way in ("paste", "drop"):
        page.open("")
        paths = page.after(lambda way=way: page.script(give, content, way))
        assert paths[0] == "3/2.png"


def test_what_is_no_picture_is_said_and_the_page_goes_on(page: Page, root: Path, tmp_path: Path) -> None:
    (tmp_path / "fake.png").write_bytes(b"this is not a picture")
    page.upload(tmp_path / "fake.png")
    assert "not an image" in page.one(".problem").text
    assert page.upload(root / "0" / "0.png")


def test_a_vanished_file_is_a_grey_tile(page: Page, root: Path) -> None:
    target, kept = root / "5" / "7.png", (root / "5" / "7.png").read_bytes()
    try:
        target.unlink()
        page.open("")
        page.upload(root / "5" / "6.png")
        tile = page.one(".tile[title='5/7.png']")
        page.script("arguments[0].scrollIntoView()", tile)
        page.until(lambda: "gone" in (tile.get_attribute("class") or ""))
    finally:
        target.write_bytes(kept)


def test_it_fits_a_phone_and_follows_the_dark(page: Page, root: Path) -> None:
    with page.phone(dark=True):
        page.upload(root / "0" / "0.png")
        assert page.script("return document.documentElement.scrollWidth") == 390
        ground = "return getComputedStyle(document.body).backgroundColor"
        assert page.script(ground) == "rgb(16, 16, 22)"
        page.one("#theme").click()
        assert page.script(ground) == "rgb(246, 246, 249)"
        shot = Image.open(io.BytesIO(page.browser.get_screenshot_as_png()))
        assert shot.width == 390


def test_the_documentation_page_lists_the_calls(page: Page, served: tuple[str, ServedStore]) -> None:
    page.browser.get(served[0] + "docs")
    described = create_app([served[1]]).openapi()["paths"]
    calls = sum(map(len, described.values()))
    assert calls > 30
    page.until(lambda: len(page.all("#main details")) == calls)
    assert "/api/search" in page.one("#main").text
    assert "min_score" in page.one("details[open]").text
