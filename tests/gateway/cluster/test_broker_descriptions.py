"""The brokers of the cluster, as the listeners list them."""

from __future__ import annotations

from gateway.cluster.broker_descriptions import describe_brokers
from metadata.cluster.broker_registry import NO_NODE_ID
from tests.kit.gateway.virtual_cluster import World, in_a_world


def test_each_broker_is_described_with_a_node_id_of_its_own_that_survives_a_restart() -> None:
    async def scenario(world: World) -> None:
        b1, b2 = await world.start("b1", "b2")
        first = {broker.broker_id: broker.node_id for broker in describe_brokers(b1.view)}
        assert sorted(first.values()) == [0, 1]
        assert {broker.broker_id: broker.node_id for broker in describe_brokers(b2.view)} == first
        assert NO_NODE_ID not in first.values()
        b1.kill()
        await world.until(lambda: len(describe_brokers(b2.view)) == 1)
        await world.start("b3", "b1")
        again = {broker.broker_id: broker.node_id for broker in describe_brokers(b2.view)}
        assert again == first | {"b3": 2}

    in_a_world(scenario)
