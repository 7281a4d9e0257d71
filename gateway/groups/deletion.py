"""What shall be deleted of a consumer group, how far that has come, and what is told where it ends half way. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from metadata.errors import OutcomeUnknown, Stopping, TidelogError


class DeletionScope(NamedTuple):
    """What shall be deleted of a group."""

    # Their keys.
    offsets: Sequence[str] = ()
    # Its record, too.
    group: bool = False


@dataclass(slots=True)
class Deletion:
    """How far the deletion of a group, or of its offsets, has come."""

    # Keys that are to be deleted, once that is known.
    of: int = 0
    deleted: int = 0
    # More than those may be gone.
    is_sent: bool = False

    def stopped(self, name: str) -> TidelogError:
        """What is to be told where the broker stops in the middle of it."""
        if self.is_sent or self.deleted:
            return half_deleted(name, self.deleted, self.of)
        return Stopping("the broker is shutting down")


def half_deleted(name: str, deleted: int, of: int) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"{deleted} of the {of} keys of group {name} were deleted; whether others were is not known",
        hint="Repeat it: what is gone stays gone.",
        group=name,
    )
