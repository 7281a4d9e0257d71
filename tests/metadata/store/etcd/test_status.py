from __future__ import annotations

from metadata.store.etcd.settings import EtcdStatus, next_status


def reported(before: EtcdStatus | None, leader: int, *alarms: str) -> EtcdStatus:
    return next_status(before, db_size_bytes=5, leader=leader, alarms=alarms)


def test_a_leader_that_stays_is_no_change() -> None:
    status = reported(reported(None, 7), 7)
    assert status == EtcdStatus(5, 7, is_full=False, leader_changes=0, last_leader=7)


def test_a_change_of_leader_counts_once_also_when_there_was_none_between() -> None:
    status = reported(reported(reported(None, 7), 0), 8)
    assert (status.leader, status.leader_changes) == (8, 1)
    assert reported(reported(reported(None, 7), 0), 7).leader_changes == 0
    assert reported(reported(None, 7), 0).leader == 0


def test_the_alarm_of_a_full_database_is_recognised() -> None:
    assert reported(None, 7, "memberID:1 alarm:NOSPACE ").is_full
    assert not reported(None, 7, "memberID:1 alarm:CORRUPT ").is_full
