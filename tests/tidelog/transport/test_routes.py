"""What a cluster reports of a topic, as a route to its partitions."""

from __future__ import annotations

import pytest

from gateway.proto import admin_pb2
from metadata.errors import FencedLeaderEpoch, NotLeader
from tidelog.settings import MIB
from tidelog.transport import routes
from tidelog.transport.routes import (
    DEFAULT_LIMITS,
    DETOUR_AGE_S,
    NEXT_LEADER,
    NO_LEADER_EPOCH,
    BrokerLimits,
    LeaderEpochs,
    PartitionRoute,
    limits_from,
    route_from,
)
from tidelog.transport.wire_sizes import LONE_BATCH_OVERHEAD_BYTES

A, B = "a:9090", "b:9090"


def state(partition: int, leader: str, leader_epoch: int = 0) -> admin_pb2.PartitionState:
    return admin_pb2.PartitionState(partition=partition, leader=leader, leader_epoch=leader_epoch)


def topic(*states: admin_pb2.PartitionState, partition_count: int = 3, batch_bytes_max: int = 0) -> admin_pb2.Topic:
    return admin_pb2.Topic(
        name="orders", id="7", partition_count=partition_count, partitions=states, batch_bytes_max=batch_bytes_max
    )


def test_each_partition_is_led_at_an_address_and_an_epoch() -> None:
    reported = topic(state(0, "a", 4), state(1, "b", 9), state(2, "a", 4))
    route = route_from(reported, address_of={"a": A, "b": B}, limits_at={}, anyone=B, learnt_s=1.5)
    assert route.partitions == (PartitionRoute(A, 4), PartitionRoute(B, 9), PartitionRoute(A, 4))
    assert route.leaders == (A, B, A)
    assert (route.name, route.topic_id, route.partition_count, route.learnt_s) == ("orders", "7", 3, 1.5)


def test_a_partition_without_a_known_leader_is_routed_to_any_broker() -> None:
    reported = topic(state(0, "", -1), state(1, "gone", 3), state(9, "a"))
    route = route_from(reported, address_of={"a": A}, limits_at={}, anyone=B, learnt_s=0)
    assert route.partitions == (PartitionRoute(B, NO_LEADER_EPOCH, NEXT_LEADER),) * 3


def test_a_former_leader_counts_as_unknown() -> None:
    epochs = LeaderEpochs()
    epochs.note("7", 1, 5)
    reported = topic(state(0, "a", 4), state(1, "a", 4), state(2, "a", 4))
    route = route_from(reported, address_of={"a": A}, limits_at={}, anyone=B, learnt_s=0, epochs=epochs)
    assert route.partitions == (PartitionRoute(A, 4), PartitionRoute(B, NO_LEADER_EPOCH, NEXT_LEADER), PartitionRoute(A, 4))
    assert [epochs.newest("7", partition) for partition in range(3)] == [4, 5, 4]


def test_a_leader_that_is_reached_through_another_is_asked_about_again_soon() -> None:
    reported = topic(state(0, "a", 4), state(1, "b", 9), partition_count=2)
    addresses = {"a": A, "b": B}
    route = route_from(reported, address_of=addresses, limits_at={}, anyone=A, learnt_s=0, way_to={A: A, B: A}.__getitem__)
    assert route.partitions == (PartitionRoute(A, 4), PartitionRoute(A, 9, B))
    assert route.age_s_max(60.0) == DETOUR_AGE_S
    direct = route_from(reported, address_of=addresses, limits_at={}, anyone=A, learnt_s=0)
    assert direct.age_s_max(60.0) == 60.0


def test_the_newest_epoch_of_each_partition_is_kept_also_from_a_refusal() -> None:
    epochs = LeaderEpochs()
    assert epochs.newest("7", 0) == NO_LEADER_EPOCH
    assert epochs.note("7", 0, 0)
    assert epochs.note("7", 0, 3)
    assert not epochs.note("7", 0, 3)
    assert not epochs.note("7", 0, 2)
    epochs.heed("7", 0, FencedLeaderEpoch("another leads", leader_epoch=6))
    epochs.heed("7", 0, NotLeader("of another kind", leader_epoch=9))
    epochs.heed("7", 1, FencedLeaderEpoch("without a number"))
    assert [epochs.newest("7", 0), epochs.newest("7", 1), epochs.newest("8", 0)] == [6, NO_LEADER_EPOCH, NO_LEADER_EPOCH]


def test_the_epochs_of_topics_that_were_met_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "EPOCHS_OF_TOPICS_MAX", 2)
    epochs = LeaderEpochs()
    for topic_id in ("1", "2"):
        epochs.note(topic_id, 0, 0)
    epochs.note("1", 1, 0)
    epochs.note("3", 0, 0)
    assert [epochs.newest(topic_id, 0) for topic_id in ("1", "2", "3")] == [0, NO_LEADER_EPOCH, 0]


def test_a_batch_has_to_fit_its_topic_and_every_broker_that_leads_it() -> None:
    reported = topic(state(0, "a"), state(1, "b"), batch_bytes_max=700_000, partition_count=2)
    limits_at = {A: BrokerLimits(request_bytes_max=10 * MIB, decompressed_bytes_max=5 * MIB), B: BrokerLimits()}

    def batch_bytes_max() -> int:
        return route_from(reported, address_of={"a": A, "b": B}, limits_at=limits_at, anyone=A, learnt_s=0).batch_bytes_max

    assert batch_bytes_max() == 700_000
    limits_at[B] = BrokerLimits(request_bytes_max=500_000)
    assert batch_bytes_max() == 500_000 - LONE_BATCH_OVERHEAD_BYTES
    limits_at[A] = BrokerLimits(message_bytes_max=400_000)
    assert batch_bytes_max() == 400_000
    route = route_from(
        reported, address_of={"a": A, "b": B}, limits_at={A: BrokerLimits(decompressed_bytes_max=9)}, anyone=A, learnt_s=0
    )
    assert route.decompressed_bytes_max == 9


def test_a_broker_that_takes_next_to_nothing_takes_no_batch() -> None:
    assert BrokerLimits(request_bytes_max=10).batch_bytes_max == 0


def test_limits_that_a_broker_does_not_report_have_their_defaults() -> None:
    assert limits_from(admin_pb2.Broker()) is None
    assert limits_from(admin_pb2.Broker(limits=admin_pb2.BrokerLimits())) == DEFAULT_LIMITS
    reported = admin_pb2.BrokerLimits(request_bytes_max=9 * MIB, message_bytes_max=MIB, decompressed_bytes_max=2 * MIB)
    assert limits_from(admin_pb2.Broker(limits=reported)) == BrokerLimits(9 * MIB, MIB, 2 * MIB)
    reported.buffer_bytes_max = 8 * MIB
    assert limits_from(admin_pb2.Broker(limits=reported)) == BrokerLimits(8 * MIB, MIB, 2 * MIB), "a request has to fit the buffer"


def test_a_topic_of_a_broker_without_limits_takes_batches_up_to_the_default_request() -> None:
    route = route_from(topic(state(0, "a"), partition_count=1), address_of={"a": A}, limits_at={}, anyone=A, learnt_s=0)
    assert route.batch_bytes_max == DEFAULT_LIMITS.request_bytes_max - LONE_BATCH_OVERHEAD_BYTES
    assert route.decompressed_bytes_max == DEFAULT_LIMITS.decompressed_bytes_max


def life(topic_id: str, *leader_epochs: int, first: int = 0) -> admin_pb2.Topic:
    """Returns a broker's description of a topic. -1 stands for a partition without a leader, 0 in `first` for an older broker."""
    states = [state(partition, "a" if epoch >= 0 else "", epoch) for partition, epoch in enumerate(leader_epochs)]
    return admin_pb2.Topic(name="orders", id=topic_id, partition_count=len(states), partitions=states, first_leader_epoch=first)


def test_a_recreated_topic_is_distinguished_from_the_former_one_by_its_leader_epochs() -> None:
    epochs = LeaderEpochs()

    def learn(reported: admin_pb2.Topic) -> None:
        route_from(reported, address_of={"a": A}, limits_at={}, anyone=A, learnt_s=0, epochs=epochs)

    assert not epochs.is_outdated(life("1", 3, 4))
    learn(life("1", 3, 4))
    assert not epochs.is_outdated(life("1", 0, 0)), "the same topic, of a broker that lags"
    assert not epochs.is_outdated(life("2", 12, -1))
    learn(life("2", 12, -1))
    assert epochs.is_outdated(life("1", 3, 5))
    assert epochs.is_outdated(life("1", -1, -1)), "the former topic before it had leaders, or the next one"
    assert not epochs.is_outdated(life("3", 20, 20))
    learn(life("3", -1, -1))
    assert not epochs.is_outdated(life("2", 12, 12)), "no epoch of the newest is known, and an older broker names no first one"
    epochs.forget_ids()
    learn(life("4", 30))
    epochs.forget_ids()
    assert not epochs.is_outdated(life("5", 0)), "of another cluster"


def test_a_topic_that_was_made_again_and_has_no_leader_yet_is_distinguished_from_the_former_one() -> None:
    epochs = LeaderEpochs()

    def learn(reported: admin_pb2.Topic) -> None:
        route_from(reported, address_of={"a": A}, limits_at={}, anyone=A, learnt_s=0, epochs=epochs)

    learn(life("2", -1, -1, first=10))
    assert epochs.is_outdated(life("1", 5, 5)), "the first topic of all has no first epoch"
    assert epochs.is_outdated(life("1", -1, -1))
    assert not epochs.is_outdated(life("2", -1, -1)), "the same, of an older broker"
    learn(life("2", -1, -1))
    assert epochs.is_outdated(life("1", 5, 5)), "an older broker takes nothing away"
    assert not epochs.is_outdated(life("3", 20, -1)), "a newer one, of an older broker"
    assert not epochs.is_outdated(life("3", -1, first=20)), "a newer one without a leader"
    learn(life("3", -1, first=20))
    assert epochs.is_outdated(life("2", 12, 14, first=10))
    learn(life("3", 23, first=20))
    assert epochs.is_outdated(life("2", 12, 14, first=10))
    assert not epochs.is_outdated(life("4", -1, first=30))
    assert not epochs.is_outdated(life("2", 1 << 20, first=10)), "a restore from an older bucket has brought it back"
    learn(life("5", 0))
    assert not epochs.is_outdated(life("6", -1, first=10))


def test_the_ids_of_the_last_topics_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "EPOCHS_OF_TOPICS_MAX", 2)
    epochs = LeaderEpochs()
    epochs.note("2", 0, 9)
    for name in ("orders", "payments", "flights"):
        epochs.note_id(admin_pb2.Topic(name=name, id="2"))
    assert not epochs.is_outdated(life("1", 0))
    epochs.note_id(admin_pb2.Topic(name="orders", id="2"))
    assert epochs.is_outdated(life("1", 0))
