"""The "why?" view in a real browser: both photos, their points joined, the thing in a box."""

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from helpers.running_server import free_port
from insclr.web.served import ServedStore
from insclr.web.server import create_app
from insclr.web.settings import ServeSettings

selenium = pytest.importorskip("selenium")
uvicorn = pytest.importorskip("uvicorn")
from selenium import webdriver  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="chromium and chromium-driver are not installed"
)


@pytest.fixture
def collection(tmp_path: Path) -> ServedStore:
    pytest.importorskip("cv2")
    from helpers.textured_store import make_textured_store

    return make_textured_store(tmp_path)


@pytest.fixture
def browser(collection: ServedStore) -> Iterator[webdriver.Chrome]:
    port = free_port()
    config = uvicorn.Config(create_app([collection], ServeSettings(port=port)), port=port, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1200,900",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    browser.get(f"http://127.0.0.1:{port}/")
    yield browser
    browser.quit()
    server.should_exit = True
    thread.join(10)


def test_why_shows_both_photos_with_their_points_joined_and_the_box(
    browser: webdriver.Chrome, tmp_path: Path
) -> None:
    query = tmp_path / "query.png"
    Image.open(tmp_path / "images" / "thing.png").save(query)
    wait = WebDriverWait(browser, 30, 0.05)
    wait.until(lambda page: page.find_elements(By.ID, "file"))
    browser.find_element(By.ID, "file").send_keys(str(query))
    wait.until(lambda page: page.find_elements(By.CSS_SELECTOR, ".tile[title='with.png'] [data-do=why]"))
    click = "document.querySelector(`.tile[title='${arguments[0]}'] [data-do=why]`).click()"
    browser.execute_script(click, "with.png")
    wait.until(lambda page: page.find_elements(By.CSS_SELECTOR, ".why-lines rect"))
    says = browser.find_element(By.CSS_SELECTOR, ".why-says").text
    assert "points of the query are found again" in says
    lines = browser.find_elements(By.CSS_SELECTOR, ".why-lines line")
    assert len(lines) >= 20
    left, right = (one.rect for one in browser.find_elements(By.CSS_SELECTOR, ".why-photos img"))
    box = browser.find_element(By.CSS_SELECTOR, ".why-lines rect").rect
    assert left["x"] + left["width"] <= right["x"]
    assert right["x"] <= box["x"] < box["x"] + box["width"] <= right["x"] + right["width"] + 2
    browser.save_screenshot(str(tmp_path / "why.png"))
    browser.find_element(By.CSS_SELECTOR, ".why .close").click()
    wait.until(lambda page: not page.find_elements(By.CSS_SELECTOR, "dialog.why"))
    browser.execute_script(click, "without.png")
    wait.until(lambda page: "look alone" in page.find_element(By.CSS_SELECTOR, ".why-says").text)
    assert not browser.find_elements(By.CSS_SELECTOR, ".why-lines line")
    browser.find_element(By.CSS_SELECTOR, ".why .close").click()
    browser.execute_script("document.querySelector(`.tile[title='with.png'] .go`).click()")
    browser.find_element(By.ID, "viewer-why").click()
    wait.until(lambda page: page.find_elements(By.CSS_SELECTOR, ".why-lines rect"))
    browser.find_element(By.CSS_SELECTOR, ".why .close").click()
    assert browser.find_element(By.ID, "viewer").is_displayed()
    browser.find_element(By.CSS_SELECTOR, "#viewer [data-close]").click()
    # The query's own photo needs no reason.
    assert not browser.find_elements(By.CSS_SELECTOR, ".tile.own [data-do=why]")
    browser.execute_script("document.querySelector('.tile.own .go').click()")
    assert not browser.find_element(By.ID, "viewer-why").is_displayed()
    severe = [one["message"] for one in browser.get_log("browser") if one["level"] == "SEVERE"]
    assert not severe
