"""A real Chromium, driven through its WebDriver on loopback."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import axe_core_python
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from support.waiting import PATIENCE_S, eventually

CHROMIUM = Path("/usr/bin/chromium")
DRIVER = Path("/usr/bin/chromedriver")
WIDTHS = (360, 768, 1280, 1920)
THEMES = ("light", "dark")
_AXE = Path(axe_core_python.__file__).parent / "axe.min.js"


class Browser:
    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, address: str) -> None:
        self.driver.get(address)

    @property
    def text(self) -> str:
        """The text that a reader sees."""
        found: str = self.driver.execute_script("return document.body.innerText")
        return found

    def shows(self, *texts: str, timeout_s: float = PATIENCE_S) -> None:
        eventually(lambda: all(text in self.text for text in texts), timeout_s, lambda: self.text)

    def use(self, width: int, theme: str) -> None:
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600},
        )
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def overflow(self) -> int:
        """Pixels by which the page is wider than the window."""
        wider: int = self.driver.execute_script(
            "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        return wider

    def accessibility_faults(self) -> list[str]:
        """Serious and critical ones, found by axe-core."""
        if not self.driver.execute_script("return typeof axe !== 'undefined'"):
            # Over the debugging protocol, which the page's policy does not bind.
            self.driver.execute_cdp_cmd("Runtime.evaluate", {"expression": _AXE.read_text()})
        found: dict[str, Any] = self.driver.execute_async_script(
            "const done = arguments[0]; axe.run().then(done, error => done({error: String(error)}))"
        )
        assert "violations" in found, found
        return [
            f"{fault['id']}: {json.dumps([node['html'][:120] for node in fault['nodes'][:3]])}"
            for fault in found["violations"]
            if fault["impact"] in ("serious", "critical")
        ]

    def complaints(self) -> list[str]:
        """Errors in the console, such as breaches of the policy of the page."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]


def lack() -> str:
    """Why there is no browser; "" if there is."""
    return "" if CHROMIUM.exists() and DRIVER.exists() else "no chromium with chromedriver"


@contextmanager
def browser() -> Iterator[Browser]:
    options = Options()
    options.binary_location = str(CHROMIUM)
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--no-proxy-server",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    try:
        driver.set_script_timeout(PATIENCE_S)
        yield Browser(driver)
    finally:
        driver.quit()
