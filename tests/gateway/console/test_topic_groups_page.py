"""The page of the groups that read a topic."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from metadata.model import Partition, TopicPartition
from tests.gateway.groups.admin.test_topic_readers import store_groups
from tests.kit.gateway.console_reader import Reader
from tests.kit.gateway.http_client import Client, serve
from tests.kit.gateway.small_broker import SmallBroker

pytestmark = pytest.mark.slow


def test_the_groups_of_a_topic_are_shown_page_by_page_among_thousands(tmp_path: Path) -> None:
    async def scenario(broker: SmallBroker, client: Client) -> None:
        reader = Reader(client)
        path = "/console/topics/orders/groups"
        assert "No group that you may see" in (await reader.get(path))[1]
        orders, single = broker.topic_cache.get("orders"), broker.topic_cache.get("single")
        others = [f"a{number:04}" for number in range(600)]
        await store_groups(broker.metadata, others, {TopicPartition(single.id, Partition(0)): 0})
        await store_groups(broker.metadata, ["billing <b>"], {TopicPartition(orders.id, Partition(0)): 0})
        _, html = await reader.get(path)
        assert "None of the 500 groups" in html
        found = re.search(r'href="([^"]+)">Next page', html)
        assert found is not None
        _, html = await reader.get(found[1])
        assert "billing &lt;b&gt;" in html
        assert "Next page" not in html
        assert (await reader.get("/console/topics/none/groups"))[0] == 404

    serve(tmp_path, scenario)
