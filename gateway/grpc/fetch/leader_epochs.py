"""Reads the leader epochs that clients name in requests. Pure.

segments/partition/partition_log.py compares them with the epoch of the leader.

Invariant: a request without an epoch differs from one with epoch 0, and from one with an invalid epoch.
"""

from __future__ import annotations

from gateway.proto import log_pb2
from metadata.errors import InvalidArgument


def current_epoch_of(question: log_pb2.FetchPartition | log_pb2.OffsetQuery | log_pb2.LeaderEpochQuery) -> int | None:
    """Returns the leader epoch that the reader knows; None if it names none."""
    if not question.HasField("current_leader_epoch"):
        return None
    return checked_epoch(
        question.current_leader_epoch, field="current_leader_epoch", hint="Leave it out where no leader epoch is known."
    )


def checked_epoch(number: int, *, field: str, hint: str = "") -> int:
    """Returns the epoch; raises InvalidArgument for a negative number."""
    if number < 0:
        raise InvalidArgument(f"{field} is {number}; leader epochs count from 0", hint=hint, field=field)
    return number
