"""To which broker of its rack a reader is sent, and when it is sent nowhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec
import pytest

from gateway.cluster.settings import ClusterSettings
from gateway.routing.preferred_replica import PreferredReplica
from metadata.cluster.broker_registry import BrokerRegistration
from metadata.errors import InvalidArgument
from metadata.model import SessionId, check_client_rack
from tests.kit.segments.batches import partition_of


def registration(number: int, rack: str, **more: object) -> BrokerRegistration:
    found = BrokerRegistration(broker_id=f"b{number}", session=SessionId(number), grpc_address=f"10.0.0.{number}:9090", rack=rack)
    return msgspec.structs.replace(found, **more)


class Seen:
    def __init__(self, *brokers: BrokerRegistration) -> None:
        self.brokers = {broker.broker_id: broker for broker in brokers}
        self._subscribers: list[Callable[[], None]] = []

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        self._subscribers.append(changed)
        return lambda: None

    def report(self, *brokers: BrokerRegistration) -> None:
        self.brokers |= {broker.broker_id: broker for broker in brokers}
        for changed in self._subscribers:
            changed()


LEADER = registration(1, "a")


def test_a_reader_of_another_rack_is_sent_to_one_broker_of_it_the_same_for_each_reader_and_all_in_turn() -> None:
    seen = Seen(LEADER, *(registration(number, "b") for number in (2, 3, 4)), registration(5, "c"))
    preferred = PreferredReplica(seen, rack="a")
    found = [preferred.broker_for(partition_of(number), "b", LEADER) for number in range(300)]
    counted = Counter(broker.broker_id for broker in found if broker is not None)
    assert sorted(counted) == ["b2", "b3", "b4"]
    assert min(counted.values()) > 50
    elsewhere = PreferredReplica(seen, rack="c")
    assert [elsewhere.broker_for(partition_of(number), "b", LEADER) for number in range(300)] == found
    assert preferred.counters.answers == 300


@pytest.mark.parametrize(
    ("client_rack", "why"),
    [
        ("", "it names none"),
        ("a", "the leader is there"),
        ("z", "no broker is there"),
        ("own", "this broker is there"),
        ("B", "case counts"),
    ],
)
def test_no_preferred_broker_is_named_if_the_leader_this_broker_or_no_broker_is_in_the_rack(client_rack: str, why: str) -> None:
    seen = Seen(LEADER, registration(2, "b"), registration(3, "own"), registration(4, "a"))
    preferred = PreferredReplica(seen, rack="own")
    assert preferred.broker_for(partition_of(0), client_rack, LEADER) is None, why
    assert preferred.broker_for(partition_of(0), "b", None) is None, "a partition without a leader is waited for here"
    assert preferred.counters.answers == 0


def test_brokers_that_come_go_drain_or_do_not_reach_the_bucket_are_heeded_at_once() -> None:
    seen = Seen(LEADER)
    preferred = PreferredReplica(seen, rack="a")

    def sent_to() -> str | None:
        found = preferred.broker_for(partition_of(0), "b", LEADER)
        return None if found is None else found.broker_id

    assert sent_to() is None
    seen.report(registration(2, "b"))
    assert sent_to() == "b2"
    seen.report(registration(2, "b", draining=True), registration(3, "b", unwritable_bytes=5))
    seen.report(registration(4, "b", grpc_address=""))
    assert sent_to() is None
    seen.report(registration(5, "b"))
    assert sent_to() == "b5"
    del seen.brokers["b5"]
    seen.report()
    assert sent_to() is None


def test_a_rack_has_at_most_255_characters_here_and_in_a_broker_s_settings() -> None:
    assert check_client_rack("") == ""
    assert check_client_rack("é" * 255) == "é" * 255
    with pytest.raises(InvalidArgument, match=r"start\.client_rack has 1048576 characters; a rack has at most 255") as refused:
        check_client_rack("r" * (1 << 20), field="start.client_rack")
    assert len(str(refused.value)) < 300
    with pytest.raises(InvalidArgument, match="rack has 256 characters"):
        ClusterSettings(rack="r" * 256)
    with pytest.raises(InvalidArgument, match="rack_read_bytes_min is 0"):
        ClusterSettings(rack_read_bytes_min=0)
