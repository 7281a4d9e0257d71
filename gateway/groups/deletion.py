"""Describes the deletion of a consumer group: its scope, its progress, and the error if it ends half-way. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from metadata.errors import OutcomeUnknown, Stopping, TidelogError


class DeletionScope(NamedTuple):
    """Names what is deleted of a group."""

    # Keys of the offsets to delete.
    offsets: Sequence[str] = ()
    # Whether the group's record is deleted, too.
    group: bool = False


@dataclass(slots=True)
class Deletion:
    """Counts the progress of the deletion of a group, or of its offsets."""

    # Number of keys to delete, once it is known.
    of: int = 0
    deleted: int = 0
    # Whether a deletion was sent whose outcome is unknown.
    is_sent: bool = False

    def stopped(self, name: str) -> TidelogError:
        """Returns the error for a broker that stops during the deletion."""
        if self.is_sent or self.deleted:
            return half_deleted(name, self.deleted, self.of)
        return Stopping("the broker is shutting down")


def half_deleted(name: str, deleted: int, of: int) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"{deleted} of the {of} keys of group {name} were deleted; whether others were is not known",
        hint="Repeat it: what is gone stays gone.",
        group=name,
    )
