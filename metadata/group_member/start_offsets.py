"""Decides where a member of a group begins to read a partition, and where it goes on when its offset is gone. Pure.

    committed ──────────────────────▶ there; or where the log was cut, if that is below (KIP-320)
    nothing committed ──────────────▶ as the policy says: at the earliest or the latest record, or an error
    the offset is not in the log ───▶ as the policy says

The SDK, Consume over gRPC and reading over HTTP share these rules; each finds committed offsets and the bounds of the log its own
way. A committed offset names the leader epoch of the last record that was read. Where the records of that epoch end below the
offset, the log was cut since, and other records have these offsets now. The reader goes on at the cut, so that it skips no record
that came since, and reads none twice.

Invariant: a start at the end of the log is marked (`is_end`), since the end moves: a reader remembers such a start before it reads,
or a later one, without a commit, would begin at a later end and skip what came between.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from metadata.errors import NotFound, OutOfRange


class StartPolicy(Enum):
    """Says where a reader begins that has committed nothing, or whose offset is gone. Kafka's auto.offset.reset."""

    ERROR = "error"
    EARLIEST = "earliest"
    LATEST = "latest"


class LogBounds(Protocol):
    """The offsets between which a partition can be read."""

    @property
    def log_start_offset(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...


class GroupStart(NamedTuple):
    """Names the offset of the first record that a reader wants."""

    offset: int
    # It is the end of the log. It has to be remembered, by a commit or otherwise.
    is_end: bool = False
    # Why it differs from the committed offset, for people; empty where it does not.
    moved: str = ""


@dataclass(frozen=True, slots=True)
class StartRules:
    """Decides for one member: `group` for messages, and the policy that its reader has chosen."""

    group: str
    policy: StartPolicy

    def at_committed(
        self, partition: str, offset: int, *, leader_epoch: int = -1, epoch_end: int | None = None
    ) -> GroupStart | OutOfRange:
        """Returns the start of a partition of which `offset` is committed, or why it can't be read.

        `epoch_end`: where the records of `leader_epoch` end, or of the newest epoch before it that has any; None where that is not
        known, or no record of them is left.
        """
        if epoch_end is None or epoch_end >= offset:
            return GroupStart(offset)
        cut = (
            f"the log of {partition} was cut at {epoch_end}, below what group {self.group} has committed "
            f"({offset}, of leader epoch {leader_epoch}): records that were read are gone"
        )
        if self.policy is StartPolicy.ERROR:
            return OutOfRange(
                cut, hint=f"Go on at {epoch_end} (tidelog group seek), or choose auto_offset_reset='earliest' or 'latest'."
            )
        return GroupStart(epoch_end, moved=cut)

    def within(self, partition: str, bounds: LogBounds, *, was_added: bool = False) -> GroupStart | NotFound:
        """Returns the start where nothing is committed, or the offset is gone; NotFound where the policy is an error.

        `was_added`: the partition came while the reader ran. LATEST then skips nothing of it.
        """
        if self.policy is StartPolicy.ERROR:
            return self.nothing_committed(partition)
        is_end = self.policy is StartPolicy.LATEST and not was_added
        return GroupStart(bounds.high_watermark if is_end else bounds.log_start_offset, is_end)

    def nothing_committed(self, partition: str) -> NotFound:
        return NotFound(
            f"group {self.group} has committed nothing of {partition}",
            hint="Commit an offset (tidelog group seek), or choose where to begin: auto_offset_reset='earliest' or 'latest'.",
        )
