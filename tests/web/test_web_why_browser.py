"""The "why?" view in a real browser: both photos, their points joined, the thing in a box."""

from pathlib import Path

from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from helpers.browser import served_page
from helpers.textured_store import make_textured_store


def test_why_shows_both_photos_with_their_points_joined_and_the_box(
    browser: webdriver.Chrome, tmp_path: Path
) -> None:
    with served_page(make_textured_store(tmp_path)) as address:
        browser.get_log("browser")  # of the tests before
        browser.get(address)
        _show_why(browser, tmp_path)


def _show_why(browser: webdriver.Chrome, tmp_path: Path) -> None:
    query = tmp_path / "query.png"
    Image.open(tmp_path / "images" / "thing.png").save(query)
    wait = WebDriverWait(browser, 30, 0.05)
    wait.until(lambda page: page.find_elements(By.ID, "file"))
    browser.find_element(By.ID, "file").send_keys(str(query))
    wait.until(lambda page: page.find_elements(By.CSS_SELECTOR, ".tile[title='with.png'] [data-do=why]"))
    click = "document.querySelector(`.tile[title='${arguments[0]}'] [data-do=why]`).click()"
    browser.execute_script(click, "with.png")
    wait.until(lambda page: page.find_elements(By.CSS_SELECTOR, ".why-lines rect"))
    sentence = browser.find_element(By.CSS_SELECTOR, ".why-sentence").text
    assert "points of the query are found again" in sentence
    lines = browser.find_elements(By.CSS_SELECTOR, ".why-lines line")
    assert len(lines) >= 20
    left, right = (one.rect for one in browser.find_elements(By.CSS_SELECTOR, ".why-photos img"))
    assert left["width"] == right["width"] > 300  # the query has 240 pixels, the photo 480
    box = browser.find_element(By.CSS_SELECTOR, ".why-lines rect").rect
    assert left["x"] + left["width"] <= right["x"]
    assert right["x"] <= box["x"] < box["x"] + box["width"] <= right["x"] + right["width"] + 2
    browser.save_screenshot(str(tmp_path / "why.png"))
    browser.find_element(By.CSS_SELECTOR, ".why .close").click()
    wait.until(lambda page: not page.find_elements(By.CSS_SELECTOR, "dialog.why"))
    browser.execute_script(click, "without.png")
    wait.until(lambda page: "look alone" in page.find_element(By.CSS_SELECTOR, ".why-sentence").text)
    assert not browser.find_elements(By.CSS_SELECTOR, ".why-lines line")
    browser.find_element(By.CSS_SELECTOR, ".why .close").click()
    browser.execute_script("document.querySelector(`.tile[title='with.png'] .go`).click()")
    frame = browser.find_element(By.ID, "parent-box").rect
    photo = browser.find_element(By.ID, "parent-photo").rect
    assert 0 < frame["width"] < photo["width"]  # where the thing is
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
