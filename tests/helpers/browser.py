"""A browser window on a served collection: what a person does there, and what is then shown."""

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from insclr.web.served import ServedStore
from insclr.web.server import create_app
from insclr.web.settings import ServeOptions

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
_FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --window-size=1200,900 "
    "--force-prefers-reduced-motion"  # a tile that fades in is not displayed yet
)


class Page:
    """A browser window on the served collections."""

    def __init__(self, browser: webdriver.Chrome, address: str) -> None:
        self.browser = browser
        self.address = address
        # Chromium keeps 50 steps; then it forgets those that nobody clicked in, as a script does not.
        self.until(self._forgets_history)
        self.open("")

    def _forgets_history(self) -> bool:
        """Whether the browser forgot where it was: it cannot while the page of the test before moves on."""
        try:
            self.browser.get("about:blank")
            self.cdp("Page.resetNavigationHistory")
        except WebDriverException:
            return False
        return True

    def open(self, query: str) -> list[str]:
        """Go to an address of the page, such as ?photo=0:1, and wait for its tiles or message."""
        self.browser.get("about:blank")  # a page of the same address would not be loaded again
        self.browser.get(self.address + query)
        self.until(self.settled)
        return self.paths()

    def visit(self, path: str, selector: str) -> None:
        """Go to an address of any page, and wait for an element, and for photos in place of empty tiles."""
        self.browser.get("about:blank")  # an address that differs by its fragment alone would not be loaded
        self.browser.get(self.address + path)
        self.until(lambda: self.all(selector) and not self.all(".tile.wait"), 60)

    def until(self, condition: Any, seconds: float = 20) -> Any:
        return WebDriverWait(self.browser, seconds, 0.03).until(lambda _: condition())

    def all(self, selector: str) -> list[WebElement]:
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def script(self, code: str, *arguments: object) -> Any:
        return self.browser.execute_script(code, *arguments)

    def cdp(self, command: str, **values: object) -> Any:
        return self.browser.execute_cdp_cmd(command, values)

    def keys(self, *some: str) -> None:
        ActionChains(self.browser).send_keys(*some).perform()

    def paths(self) -> list[str]:
        return self.script("return [...document.querySelectorAll('.tile')].map((one) => one.title)")

    def settled(self) -> bool:
        """Whether the grid holds results or a message, new since `after` marked the old ones."""
        return self.script(
            "return !!document.querySelector('#grid .tile:not(.wait), #grid .none, #grid .problem')"
            " && !document.querySelector('#grid > [data-old], #grid .wait')"
            " && !document.body.hasAttribute('aria-busy')"
        )

    def after(self, action: Any) -> list[str]:
        """Do something that starts a search, and wait for new results."""
        self.script("document.querySelector('#grid > *')?.setAttribute('data-old', '1')")
        action()
        self.until(self.settled)
        return self.paths()

    def upload(self, *files: Path) -> list[str]:
        return self.after(lambda: self.one("#file").send_keys("\n".join(str(one) for one in files)))

    def open_viewer(self, tile: int) -> None:
        self.script("document.querySelectorAll('.tile .go')[arguments[0]].click()", tile)
        self.until(lambda: self.script("return document.querySelector('#large').naturalWidth > 0"))

    def open_other(self) -> None:
        """Show the collapsed band of photos that probably show something else."""
        self.script("for (const one of document.querySelectorAll('details.band')) one.open = true")

    @contextmanager
    def phone(self, dark: bool = False) -> Iterator[None]:
        """A small screen with touch, and in the dark if wanted."""
        try:
            size = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
            self.cdp("Emulation.setDeviceMetricsOverride", **size)
            self.cdp("Emulation.setTouchEmulationEnabled", enabled=True, maxTouchPoints=5)
            colour = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
            self.cdp("Emulation.setEmulatedMedia", features=[colour])
            yield
        finally:
            self.script("localStorage.clear()")
            self.cdp("Emulation.clearDeviceMetricsOverride")
            self.cdp("Emulation.setTouchEmulationEnabled", enabled=False)
            self.cdp("Emulation.setEmulatedMedia", features=[])

    def touch(self, kind: str, *points: tuple[float, float]) -> None:
        """touchStart, touchMove or touchEnd of fingers at these points of the window."""
        fingers = [{"x": x, "y": y, "id": i} for i, (x, y) in enumerate(points)]
        self.cdp("Input.dispatchTouchEvent", type=kind, touchPoints=fingers)

    def barriers(self) -> list[str]:
        """What axe-core finds wrong for people who read the page by other means than eyes, or with weak ones."""
        self.script((files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8"))
        found = self.browser.execute_async_script(
            "axe.run(document).then(arguments[arguments.length - 1], () => null)"
        )
        return [f"{one['id']}: {one['nodes'][0]['target']}" for one in found["violations"]]

    def step(self) -> str:
        """The address at the browser's step of the history: its own Back starts from there."""
        history = self.cdp("Page.getNavigationHistory")
        return history["entries"][history["currentIndex"]]["url"]

    def tap(self, element: WebElement) -> None:
        middle = (
            "const one = arguments[0].getBoundingClientRect();"
            "return [one.x + one.width / 2, one.y + one.height / 2]"
        )
        x, y = self.script(middle, element)
        self.touch("touchStart", (x, y))
        self.touch("touchEnd")


@contextmanager
def started_browser(profile: Path) -> Iterator[webdriver.Chrome]:
    """Headless Chromium with an empty profile."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in [*_FLAGS.split(), f"--user-data-dir={profile}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield browser
    finally:
        browser.quit()


@contextmanager
def served_page(*stores: ServedStore) -> Iterator[str]:
    """The address of a running server of these stores."""
    import uvicorn

    config = uvicorn.Config(create_app(stores, ServeOptions()), port=0, log_level="warning")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}/"
    server.should_exit = True
    thread.join(10)


def things(paths: list[str]) -> set[str]:
    """The things that drawn pictures show: their folders."""
    return {path.split("/")[0] for path in paths}
