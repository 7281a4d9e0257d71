"""The leader epochs that readers name, as they come in at the doors. Pure.

segments/partition/partition_log.py compares them with the epoch of the leader that is asked.

Invariant: a question that names no epoch is told apart from one that names epoch 0, or nonsense.
"""

from __future__ import annotations

from gateway.proto import log_pb2
from metadata.errors import InvalidArgument


def current_epoch_of(question: log_pb2.FetchPartition | log_pb2.OffsetQuery | log_pb2.LeaderEpochQuery) -> int | None:
    """The epoch of the leader that the reader knows; None where it names none."""
    if not question.HasField("current_leader_epoch"):
        return None
    return checked_epoch(
        question.current_leader_epoch, field="current_leader_epoch", hint="Leave it out where no leader epoch is known."
    )


def checked_epoch(number: int, *, field: str, hint: str = "") -> int:
    """InvalidArgument for what is no leader epoch."""
    if number < 0:
        raise InvalidArgument(f"{field} is {number}; leader epochs count from 0", hint=hint, field=field)
    return number
