"""Watches pages of the console in Chromium, where this machine has one.

Each page is kept as a picture in build/console-pages, in both themes. axe looks for faults of accessibility.
"""

from __future__ import annotations

import shutil

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Dialog, Page

from tests.kit.servers import ROOT

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
# The marks of a module of such tests.
IN_CHROMIUM = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here: apt-get install chromium")]
PICTURES = ROOT / "build" / "console-pages"
HOSTILE = "<img src=x onerror=alert(1)><script>alert(1)</script>"
WAIT_MS = 60_000

# Counts what listens to a change of the window's pixels, in window.listeners: the library of charts once, and each chart.
COUNT_LISTENERS = """
window.listeners = 0;
for (const [name, change] of [['addEventListener', 1], ['removeEventListener', -1]]) {
  const plain = window[name];
  window[name] = function (kind, ...rest) {
    if (kind === 'dppxchange') window.listeners += change;
    return plain.call(this, kind, ...rest);
  };
}
"""


class Watched:
    """A page whose errors, dialogs and foreign requests are noted."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.faults: list[str] = []
        page.set_default_timeout(WAIT_MS)
        page.add_init_script(COUNT_LISTENERS)
        page.on("console", lambda message: self._note(message.type == "error", f"console: {message.text}"))
        page.on("pageerror", lambda error: self._note(True, f"error: {error}"))
        page.on("dialog", self._refuse)
        page.on("request", lambda request: self._note(not request.url.startswith(f"{url}/"), f"foreign: {request.url}"))

    def _refuse(self, dialog: Dialog) -> None:
        self.faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _note(self, is_fault: bool, text: str) -> None:
        if is_fault:
            self.faults.append(text)

    def go(self, path: str) -> None:
        answer = self.page.goto(f"{self.url}/console{path}")
        assert answer is not None
        assert answer.status == 200, path


def look(watched: Watched, name: str) -> None:
    """Keeps a picture of the page, and checks it with axe."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    theme = watched.page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light'")
    watched.page.screenshot(path=PICTURES / f"{name}-{theme}.png", full_page=True)
    found = Axe().run(watched.page)
    assert found.violations_count == 0, found.generate_report()
