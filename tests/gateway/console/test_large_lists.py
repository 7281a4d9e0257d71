"""Pages of a topic with 10,000 partitions, of 5,000 groups, and of a group with 10,000 partitions: short, and complete together."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from metadata.model import Partition, TopicPartition
from tests.gateway.groups.admin.test_topic_readers import store_groups
from tests.kit.gateway.console_reader import Reader
from tests.kit.gateway.http_client import Client, serve
from tests.kit.gateway.small_broker import SmallBroker

pytestmark = pytest.mark.slow

PARTITIONS, GROUPS, REQUESTS = 10_000, 5_000, 5
# The HTML of one page; all rows of 10,000 partitions take 2.4 MB.
PAGE_BYTES_MAX = 100_000


async def filled(broker: SmallBroker) -> None:
    wide = await broker.create_topic("wide", PARTITIONS)
    orders = broker.topic_cache.get("orders")
    await store_groups(broker.metadata, [f"g{n:05}" for n in range(GROUPS)], {TopicPartition(orders.id, Partition(0)): 0})
    offsets = {TopicPartition(wide.id, Partition(number)): 0 for number in range(PARTITIONS)}
    await store_groups(broker.metadata, ["wide-reader"], offsets)


def of_large_cluster(tmp_path: Path, scenario: Callable[[Reader], Awaitable[None]]) -> None:
    async def whole(broker: SmallBroker, client: Client) -> None:
        await filled(broker)
        await scenario(Reader(client))

    serve(tmp_path, whole)


def next_page(html: str) -> str | None:
    found = re.search(r'href="([^"]+)">Next page', html)
    return found[1].replace("&amp;", "&") if found is not None else None


async def names_on_pages(reader: Reader, path: str, pattern: str) -> list[str]:
    """Follows the links to next pages, and returns what the pattern finds on all of them."""
    found: list[str] = []
    at: str | None = path
    while at is not None:
        status, html = await reader.get(at)
        assert status == 200
        assert len(html) <= PAGE_BYTES_MAX, at
        found += re.findall(pattern, html)
        at = next_page(html)
    return found


def test_pages_of_long_lists_are_short_and_their_times_are_printed(tmp_path: Path) -> None:
    async def scenario(reader: Reader) -> None:
        for page in (
            "/topics",
            "/topics/wide/partitions",
            "/topics/wide/partitions?from=9990",
            "/topics/wide/records",
            "/topics/wide/settings",
            "/topics/wide/produce",
            "/topics/wide/tail",
            "/topics/wide/groups",
            "/topics/orders/groups",
            "/groups",
            "/groups?search=499",
            "/groups/wide-reader",
            "/groups/wide-reader?from=9800",
            "/cluster",
        ):
            took_ms = []
            for _ in range(REQUESTS):
                began_s = time.perf_counter()
                status, html = await reader.get(f"/console{page}")
                took_ms.append(1000 * (time.perf_counter() - began_s))
                assert status == 200
                assert len(html) <= PAGE_BYTES_MAX
            print(f"{page:40} median {statistics.median(took_ms):6.1f} ms, {len(html):6} bytes")

    of_large_cluster(tmp_path, scenario)


def test_every_partition_and_every_group_is_found_by_following_the_pages(tmp_path: Path) -> None:
    async def scenario(reader: Reader) -> None:
        partitions = await names_on_pages(reader, "/console/topics/wide/partitions", r"records\?partition=(\d+)")
        assert partitions == [str(number) for number in range(PARTITIONS)]
        groups = await names_on_pages(reader, "/console/groups", r'scope="row"><a href="/console/groups/([^"]+)"')
        assert groups == [f"g{number:05}" for number in range(GROUPS)] + ["wide-reader"]
        lags = await names_on_pages(reader, "/console/groups/wide-reader", r"records\?partition=(\d+)")
        assert lags == partitions

    of_large_cluster(tmp_path, scenario)


def test_searches_find_names_on_any_page(tmp_path: Path) -> None:
    async def scenario(reader: Reader) -> None:
        row = r'scope="row"><a (?:id="[^"]*" )?href="/console/(?:groups|topics)/([^"]+)"'
        assert await names_on_pages(reader, "/console/groups?search=G0499", row) == [f"g0499{digit}" for digit in range(10)]
        assert await names_on_pages(reader, "/console/groups?search=reader&state=Empty", row) == ["wide-reader"]
        assert await names_on_pages(reader, "/console/groups?search=reader&state=Stable", row) == []
        assert await names_on_pages(reader, "/console/topics?search=WID", row) == ["wide"]
        _, html = await reader.get("/console/topics?search=%3Cb%3E")
        assert "contains <code>&lt;b&gt;</code>" in html
        _, html = await reader.get("/console/groups/wide-reader?topic=other")
        assert "No partition of such a topic." in html
        _, html = await reader.get("/console/topics/wide/partitions?from=9999999999999")
        assert "records?partition=" not in html

    of_large_cluster(tmp_path, scenario)
