"""What the etcd member that is asked tells of itself. Pure, and light: who uses SQLite never loads the client."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class EtcdStatus(NamedTuple):
    db_size_bytes: int
    leader: int
    """Its id; 0: the member knows none."""
    is_full: bool
    """Nothing can be written until there is room, and the alarm is taken back (NOSPACE)."""
    leader_changes: int = 0
    """That were seen here."""
    last_leader: int = 0
    """The last that was known."""


def next_status(before: EtcdStatus | None, *, db_size_bytes: int, leader: int, alarms: Iterable[str]) -> EtcdStatus:
    """With the changes of leader that this answer adds."""
    changes, last_leader = (before.leader_changes, before.last_leader) if before is not None else (0, 0)
    if leader and last_leader not in {0, leader}:
        changes += 1
    return EtcdStatus(db_size_bytes, leader, any("NOSPACE" in alarm for alarm in alarms), changes, leader or last_leader)
