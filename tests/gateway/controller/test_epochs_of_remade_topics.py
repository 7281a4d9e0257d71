"""Clients that knew a topic before it was deleted must not meet a lower leader epoch under its name."""

from __future__ import annotations

from metadata.model import TopicPartition
from tests.kit.gateway.virtual_cluster import World, in_a_world


def test_a_topic_that_is_made_again_is_led_at_higher_epochs_than_ever_before() -> None:
    async def scenario(world: World) -> None:
        b1, b2 = await world.start("b1", "b2")

        def epochs(partitions: list[TopicPartition]) -> list[int]:
            states = [b2.view.partitions.get(partition) for partition in partitions]
            return [state.leader_epoch for state in states if state is not None]

        first = await world.topic("orders", 4)
        b1.kill()
        await world.until(lambda: all(world.leader(partition) is b2 for partition in first))
        highest = max(epochs(first))
        assert highest >= 1
        await world.topics.delete("orders")
        await world.until(lambda: not epochs(first))
        again = epochs(await world.topic("orders", 4))
        assert len(again) == 4
        assert min(again) > highest

    in_a_world(scenario)
