"""The page of the bucket and its bill in a real browser, at a broker whose rates have half an hour of history."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop
from playwright.sync_api import Browser

from gateway.topics.usage.verification import Verification
from segments.bucket.cluster_record import sign_bucket
from tests.gateway.console.test_bill import pass_minutes
from tests.kit.gateway.console_browser import IN_CHROMIUM, Watched, look
from tests.kit.gateway.http_client import Client, client_of
from tests.kit.gateway.small_broker import NOW_MS, SmallBroker, small_broker

pytestmark = IN_CHROMIUM


class BrokerThread:
    """A small broker in a thread of its own, with topics that were written to for half an hour."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self.url = ""
        self.broker: SmallBroker | None = None

    def __enter__(self) -> BrokerThread:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self.call(lambda _: self._stop.set() if self._stop is not None else None)
        self._thread.join(60)

    def call(self, act: object) -> None:
        """Calls `act` with the broker, in its loop."""
        assert self._loop is not None
        assert callable(act)
        self._loop.call_soon_threadsafe(act, self.broker)

    def _serve(self) -> None:
        async def run() -> None:
            # Without a time limit: it serves as long as all tests of the module take.
            async with small_broker(self._folder) as broker, client_of(broker) as client:
                await self._written(broker, client)

        uvloop.run(run())

    async def _written(self, broker: SmallBroker, client: Client) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self.broker, self.url = broker, broker.url
        await sign_bucket(broker.store, broker.cluster_id, now_ms=NOW_MS)
        for minute in range(30):
            await client.produce("/v1/topics/orders/records", [{"value": "x" * 20_000}] * (1 + minute % 7))
            if minute % 3 == 0:
                await client.produce("/v1/topics/single/records", [{"value": "x" * 5_000}])
            pass_minutes(broker, 1)
        await client.get("/v1/storage")
        self._ready.set()
        await self._stop.wait()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    with BrokerThread(tmp_path_factory.mktemp("bill")) as thread:
        yield thread


@pytest.fixture(scope="module")
def console_url(served: BrokerThread) -> str:
    return served.url


def test_the_bill_is_shown_with_its_chart_and_other_prices(watched: Watched) -> None:
    page = watched.page
    watched.go("/bill")
    page.locator(".plot canvas").wait_for()
    page.get_by_text("The figures").click()
    look(watched, "bill")
    page.get_by_label("A GiB for a month, $").fill("1000")
    page.get_by_role("button", name="Calculate with these").click()
    page.wait_for_url("**price_gib_month=1000**")
    assert page.get_by_label("A GiB for a month, $").input_value() == "1000.0"
    listeners = page.evaluate("window.listeners")
    page.get_by_role("button", name="Switch between dark and light").click()
    assert page.locator(".plot canvas").count() == 1, "it is drawn again in the other colours"
    assert page.evaluate("window.listeners") == listeners, "the chart before it was destroyed"


def test_the_bucket_is_verified_with_progress_and_cancelled(watched: Watched, served: BrokerThread) -> None:
    page = watched.page
    watched.go("/bill")
    page.get_by_role("button", name="Verify the bucket").click()
    page.get_by_text("Every rule that was checked holds.").wait_for()
    look(watched, "bill-verified")
    assert served.broker is not None
    held = served.broker.usage.verifier

    running = Verification(state="running", begun_by="ann", segments_read=30, segments=120, files=40)
    served.call(lambda _: setattr(held, "state", running))
    watched.go("/bill")
    page.get_by_text("30 of 120 segments").wait_for()
    look(watched, "bill-verifying")
    served.call(lambda _: setattr(held, "state", running._replace(segments_read=90)))
    page.get_by_text("90 of 120 segments").wait_for()
    # In one step: a click of the mouse is lost if the part is refreshed between its press and its release.
    page.get_by_role("button", name="Cancel").evaluate("button => button.click()")
    page.get_by_text("It was cancelled.").wait_for()


def test_topics_and_a_topic_show_their_figures_and_the_list_follows_them(watched: Watched, served: BrokerThread) -> None:
    page = watched.page
    watched.go("/topics")
    page.locator("svg.spark").first.wait_for()
    look(watched, "topics")
    page.locator("#topic-orders").focus()
    with page.expect_response(lambda answer: answer.request.headers.get("hx-request") == "true") as refreshed:
        pass
    assert refreshed.value.status == 200
    page.wait_for_function("document.activeElement && document.activeElement.id === 'topic-orders'")
    watched.go("/topics/orders/partitions")
    page.locator(".plot canvas").wait_for()
    look(watched, "topic")


def test_the_bill_is_reached_by_its_key_and_fits_a_small_screen(browser: Browser, served: BrokerThread) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 800})
    watched = Watched(context.new_page(), served.url)
    watched.go("/topics")
    entry = watched.page.get_by_role("link", name="Bucket and bill")
    assert entry.get_attribute("accesskey") == "b"
    entry.focus()
    watched.page.keyboard.press("Enter")
    watched.page.get_by_role("heading", name="Bucket and bill", exact=True).wait_for()
    assert watched.page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    context.close()
    assert watched.faults == []
