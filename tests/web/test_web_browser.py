"""The page in a real browser: what a person does, and what is then shown."""

import io
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from drawn_store import make_store
from PIL import Image

from insclr.web.served import ServedStore
from insclr.web.server import create_app
from insclr.web.settings import ServeSettings

selenium = pytest.importorskip("selenium")
uvicorn = pytest.importorskip("uvicorn")
from selenium import webdriver  # noqa: E402
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.remote.webelement import WebElement  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="chromium and chromium-driver are not installed"
)
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --window-size=1200,900"
)


class Page:
    """A browser window on the served collections."""

    def __init__(self, browser: webdriver.Chrome, address: str) -> None:
        self.browser = browser
        browser.get(address)
        self.until(lambda: self.all(".tile .go"))

    def until(self, condition: object, seconds: float = 20) -> object:
        return WebDriverWait(self.browser, seconds, 0.05).until(lambda _: condition())  # type: ignore[operator]

    def all(self, selector: str) -> list[WebElement]:
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def script(self, code: str, *arguments: object) -> object:
        return self.browser.execute_script(code, *arguments)

    def paths(self) -> list[str]:
        return self.script("return [...document.querySelectorAll('.tile')].map((one) => one.title)")  # type: ignore[return-value]

    def after(self, action: object) -> list[str]:
        """Do something that starts a search, and wait for new results."""
        self.script("document.querySelector('#grid > *')?.setAttribute('data-old', '1')")
        action()  # type: ignore[operator]
        fresh = (
            "return !document.querySelector('#grid > [data-old], #grid .wait')"
            " && !document.body.hasAttribute('aria-busy')"
        )
        self.until(lambda: self.script(fresh))
        return self.paths()

    def upload(self, *files: Path) -> list[str]:
        return self.after(lambda: self.one("#file").send_keys("\n".join(str(one) for one in files)))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ServedStore]]:
    folder = tmp_path_factory.mktemp("served")
    after, before = make_store(folder, "After"), make_store(folder, "Before")
    config = uvicorn.Config(create_app([after, before], ServeSettings()), port=0, log_level="warning")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}/", after
    server.should_exit = True
    thread.join(10)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in [*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield browser
    browser.quit()


@pytest.fixture
def page(served: tuple[str, ServedStore], browser: webdriver.Chrome) -> Iterator[Page]:
    browser.get_log("browser")
    yield Page(browser, served[0])
    # A 404 of a vanished file is part of a test; everything else in the console is a fault.
    faults = [one["message"] for one in browser.get_log("browser") if "/thumbnail" not in one["message"]]
    assert [one for one in faults if "status of 4" not in one] == []


@pytest.fixture
def root(served: tuple[str, ServedStore]) -> Path:
    return served[1].store.info.root


def things(paths: list[str]) -> set[str]:
    return {path.split("/")[0] for path in paths}


def test_an_uploaded_photo_shows_its_thing_first_and_the_cut_off(page: Page, root: Path) -> None:
    paths = page.upload(root / "2" / "3.png")
    assert paths[0] == "2/3.png"
    assert things(paths[:5]) == {"2"}
    page.until(lambda: page.one(".tile .score").text == "100 %")  # shown when its picture has faded in
    likely, all_tiles = len(page.all(".tile.likely")), len(page.all(".tile"))
    assert 0 < likely < all_tiles
    assert page.one("#status").text.startswith(f"{likely} likely match")
    cut = page.one("#cut")
    assert "more likely something else" in cut.text
    last, first = page.all(".tile.likely")[-1], page.all(".tile.unlikely")[0]
    assert last.location["y"] < cut.location["y"] < first.location["y"]
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


def test_clicking_a_result_searches_from_it_and_back_returns(page: Page, root: Path) -> None:
    before = page.upload(root / "0" / "0.png")
    goal = page.paths()[1]
    after = page.after(lambda: page.all(".tile .go")[1].click())
    assert page.one("#stage-name").text == goal
    assert goal not in after
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


def test_filters_and_their_mistakes(page: Page, root: Path) -> None:
    page.upload(root / "0" / "0.png")
    ActionChains(page.browser).send_keys("/").perform()
    field = page.one("#where")
    assert page.browser.switch_to.active_element == field
    paths = page.after(lambda: field.send_keys("thing = 3 and year >= 2026", Keys.ENTER))
    assert things(paths) == {"3"}
    assert len(paths) == 6
    field.clear()
    page.after(lambda: field.send_keys("colour = red", Keys.ENTER))
    assert "No column 'colour'" in page.one("#status").text
    assert page.one(".toast").is_displayed()


def test_before_and_after(page: Page, root: Path) -> None:
    page.upload(root / "1" / "1.png")
    assert [one.text for one in page.all("#compare button")] == ["Before", "After"]
    assert page.one("#compare [aria-pressed=true]").text == "After"
    page.after(lambda: ActionChains(page.browser).send_keys("b").perform())
    assert page.one("#compare [aria-pressed=true]").text == "Before"
    assert page.one(".tile").get_attribute("data-ref").startswith("1:")


def test_the_whole_way_by_keyboard(page: Page, root: Path) -> None:
    page.upload(root / "4" / "0.png")
    keys = lambda *some: ActionChains(page.browser).send_keys(*some).perform()  # noqa: E731
    page.script("document.activeElement.blur()")
    keys(Keys.ARROW_RIGHT)
    keys(Keys.ARROW_RIGHT)
    focused = "return document.activeElement.closest('.tile')?.title"
    assert page.script(focused) == page.paths()[1]
    keys(Keys.ARROW_DOWN)
    assert page.script(focused) != page.paths()[1]
    keys(Keys.ARROW_UP)
    keys(Keys.SPACE)
    assert page.one("#viewer").is_displayed()
    assert page.one("#facts-path").text == page.paths()[1]
    keys(Keys.ARROW_RIGHT)
    assert page.one("#facts-path").text == page.paths()[2]
    assert "score" in page.one("#facts").text
    keys(Keys.ESCAPE)
    assert not page.one("#viewer").is_displayed()
    goal = page.paths()[1]
    page.after(lambda: keys(Keys.ENTER))
    assert page.one("#stage-name").text == goal
    page.one("#canvas").send_keys(Keys.ARROW_RIGHT)
    assert page.one("#box").is_displayed()
    keys("?")
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
        page.browser.refresh()
        page.until(lambda: page.all(".tile .go"))
        paths = page.after(lambda way=way: page.script(give, content, way))
        assert paths[0] == "3/2.png"


def test_what_is_no_picture_is_said_and_the_page_goes_on(page: Page, root: Path, tmp_path: Path) -> None:
    (tmp_path / "fake.png").write_bytes(b"this is not a picture")
    page.upload(tmp_path / "fake.png")
    assert "not an image" in page.one("#status").text
    assert page.upload(root / "0" / "0.png")


def test_a_vanished_file_is_a_grey_tile(page: Page, root: Path) -> None:
    target, kept = root / "5" / "7.png", (root / "5" / "7.png").read_bytes()
    try:
        target.unlink()
        page.browser.refresh()
        page.until(lambda: page.all(".tile .go"))
        page.upload(root / "5" / "6.png")
        tile = page.one(".tile[title='5/7.png']")
        page.script("arguments[0].scrollIntoView()", tile)
        page.until(lambda: "gone" in (tile.get_attribute("class") or ""))
    finally:
        target.write_bytes(kept)


def test_it_fits_a_phone_and_follows_the_dark(page: Page, root: Path) -> None:
    try:
        size = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
        page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
        page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
        page.upload(root / "0" / "0.png")
        assert page.script("return document.documentElement.scrollWidth") == 360
        ground = "return getComputedStyle(document.body).backgroundColor"
        assert page.script(ground) == "rgb(16, 16, 22)"
        page.one("#theme").click()
        assert page.script(ground) == "rgb(246, 246, 249)"
        shot = Image.open(io.BytesIO(page.browser.get_screenshot_as_png()))
        assert shot.width == 360
    finally:
        page.script("localStorage.clear()")
        page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_the_documentation_page_lists_the_calls(page: Page, served: tuple[str, ServedStore]) -> None:
    page.browser.get(served[0] + "docs")
    page.until(lambda: len(page.all("details")) == 22)
    assert "/api/search" in page.one("#docs").text
    assert "min_score" in page.one("details[open]").text
