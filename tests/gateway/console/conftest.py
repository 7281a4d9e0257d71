"""Fixtures of the tests in a browser. Each module of them has a fixture `console_url`, the URL of its broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.kit.gateway.console_browser import CHROMIUM, Watched
from tests.kit.gateway.flights_broker import HeldFlights, flights_broker


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # Chromium has no sandbox of its own for root, which containers run as.
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="package")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeldFlights]:
    with flights_broker(tmp_path_factory.mktemp("flights")) as held:
        yield held


@pytest.fixture(params=["light", "dark"])
def watched(request: pytest.FixtureRequest, browser: Browser, console_url: str) -> Iterator[Watched]:
    context = browser.new_context(color_scheme=request.param, viewport={"width": 1280, "height": 860})
    page = Watched(context.new_page(), console_url)
    yield page
    context.close()
    assert page.faults == []
