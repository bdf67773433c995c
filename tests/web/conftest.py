"""What the tests of the page share."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

# The describer and the pictures of the search tests serve the page's tests too.
from fastapi.testclient import TestClient

from helpers.clients import client_of
from helpers.drawn_store import make_store
from insclr.web.served import ServedStore

if TYPE_CHECKING:
    from selenium import webdriver

    from helpers.browser import Page


@pytest.fixture
def collection(tmp_path: Path) -> ServedStore:
    return make_store(tmp_path)


@pytest.fixture
def client(collection: ServedStore) -> Iterator[TestClient]:
    with client_of(collection) as client:
        yield client


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ServedStore]]:
    """The address of a page with two stores, and the first of them. Its tests leave it as it was."""
    from helpers.browser import served_page

    folder = tmp_path_factory.mktemp("served")
    after, before = make_store(folder, "After"), make_store(folder, "Before")
    with served_page(after, before) as address:
        yield address, after


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator["webdriver.Chrome"]:
    from helpers.browser import CHROMIUM, DRIVER, started_browser

    if not (CHROMIUM and DRIVER):
        pytest.skip(
            "chromium and chromium-driver are not installed: apt-get install chromium chromium-driver"
        )
    with started_browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture
def page(served: tuple[str, ServedStore], browser: "webdriver.Chrome") -> Iterator["Page"]:
    from helpers.browser import Page

    browser.get_log("browser")
    yield Page(browser, served[0])
    # A 404 of a vanished file is part of a test; everything else in the console is a fault.
    faults = [one["message"] for one in browser.get_log("browser") if "/thumbnail" not in one["message"]]
    assert [one for one in faults if "status of 4" not in one] == []


@pytest.fixture
def root(served: tuple[str, ServedStore]) -> Path:
    return served[1].store.info.root
