"""What a session takes requests for: what it leads, but for what is handed over or damaged."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from metadata.errors import Corrupt, NoLeader, SessionFenced, TidelogError
from metadata.model import LeaderEpoch, TopicPartition
from segments.partition.leader_partitions import LeaderPartition, LeaderPartitions
from segments.recovery.recovered_partition import empty_partition
from segments.settings import SegmentSettings
from tests.kit.segments.batches import ORDERS, PAYMENTS


def led_partition(partition: TopicPartition = ORDERS) -> LeaderPartition:
    empty = empty_partition(partition, SegmentSettings())
    return LeaderPartition(empty.log(LeaderEpoch(1)), empty.runs)


def open_session() -> None:
    pass


def leading(check_open: Callable[[], None] = open_session) -> LeaderPartitions:
    led = LeaderPartitions(check_open=check_open)
    led.add(ORDERS, led_partition())
    return led


def served(led: LeaderPartitions) -> tuple[bool, bool]:
    """Whether ORDERS is written, and read."""

    def is_served(at: Callable[[TopicPartition], LeaderPartition]) -> bool:
        try:
            at(ORDERS)
        except TidelogError:
            return False
        return True

    return is_served(led.writable), is_served(led.readable)


def test_a_paused_partition_is_read_and_one_with_its_reads_stopped_is_not_until_it_is_resumed() -> None:
    led = leading()
    assert served(led) == (True, True)
    led.pause(ORDERS)
    assert served(led) == (False, True)
    led.stop_reads([ORDERS])
    assert served(led) == (False, False)
    led.resume(ORDERS)
    assert served(led) == (True, True)


def test_a_partition_that_was_paused_before_it_was_led_is_paused_and_a_drop_forgets_it() -> None:
    led = LeaderPartitions(check_open=open_session)
    led.pause(ORDERS)
    led.add(ORDERS, led_partition())
    assert served(led) == (False, True)
    assert led.remove(ORDERS)
    assert not led.remove(ORDERS)
    led.add(ORDERS, led_partition())
    assert served(led) == (True, True)


def test_each_request_for_a_damaged_partition_receives_its_own_copy_of_the_error() -> None:
    led = leading()
    damage = Corrupt("a segment is missing", key="wal/7/3")
    led.mark_damaged(PAYMENTS, damage)
    for _ in range(2):
        with pytest.raises(Corrupt, match="a segment is missing") as reported:
            led.readable(PAYMENTS)
        assert reported.value is not damage
    assert set(led.damaged) == {PAYMENTS}
    led.remove(PAYMENTS)
    with pytest.raises(NoLeader):
        led.at(PAYMENTS)


def test_a_session_that_has_ended_says_so_of_what_it_does_not_lead() -> None:
    def ended() -> None:
        raise SessionFenced("the session has ended")

    with pytest.raises(SessionFenced):
        leading(ended).at(PAYMENTS)
