"""What a producer is answered with, and when: an append that has its offsets, and is not committed yet.

What a batch was refused with by a leader that may lead no more, until the bucket says whether it still did.

    append ─▶ UnverifiedRejection ─▶ decided: a look for the seal ─▶ none: the refusal is true
                                                            └▶ one, or no answer: to be sent again

Another leader may have taken the batches before this one, and then it is no gap; or this very batch, and then it is no refusal at
all: a producer that took one for true would number its records anew, and write them twice. What only a leader that is ahead could
pass is doubted, so not a producer's old epoch, nor a key that was used: epochs only rise, and keys stay used.
"""

from __future__ import annotations

import asyncio
import enum
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

from metadata.errors import OutcomeUnknown, TidelogError, Unavailable
from segments.partition.partition_log import Appended
from segments.shared_errors import own_copy
from segments.wal.pending_segment import PendingSegment


class Acks(enum.Enum):
    """When a producer is answered."""

    ALL = "all"
    """When the records are committed on the bucket."""
    LEADER = "leader"
    """When the leader holds them in memory: a crash may lose them."""
    NONE = "none"
    """Never."""


class PendingAppend(NamedTuple):
    appended: Appended
    """Known at once; true for good when `segment` is committed."""
    segment: PendingSegment | None
    """None when the batch repeats one that is committed already."""

    async def committed(self, *, timeout_s: float) -> Appended:
        """Waits until the append is committed. A waiter that is cancelled disturbs no other.

        Raises SessionFenced or Stopping (nothing was written), OutcomeUnknown when it is not decided in time.
        """
        if self.segment is None:
            return self.appended
        outcome = self.segment.outcome
        if not outcome.done():
            await asyncio.wait((outcome,), timeout=timeout_s)
        if not outcome.done():
            raise OutcomeUnknown(f"the bucket did not confirm the records within {timeout_s:g} s; they may still be committed")
        error = outcome.result()
        if error is not None:
            raise own_copy(error)
        return self.appended


class UnverifiedRejection(Unavailable):
    """Where nobody asks what was `decided` it is told as it is: nothing was written, and the same batch may be sent again."""

    def __init__(self, refusal: TidelogError, check_appointed: Callable[[], Awaitable[None]]) -> None:
        """`check_appointed`: raises unless nobody led in place of the Log that refused the batch, before it was called."""
        super().__init__(f"this broker may lead no more, and may know too little of the log: {refusal.message}")
        self.refusal = refusal
        self._check_appointed = check_appointed
        self._decided: TidelogError | None = None

    @property
    def told(self) -> TidelogError:
        """The refusal, where the broker that refused did lead then; else why it can't be told (SessionFenced, Unavailable). Itself
        before that was decided."""
        return self._decided or self

    async def decided(self) -> TidelogError:
        await decide([self])
        return self.told

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.refusal, self._check_appointed)


async def decide(doubted: Iterable[UnverifiedRejection]) -> None:
    """All of them, those of one Log by one look: a producer that is not known (any more) is refused in each of its partitions."""
    alike: defaultdict[Callable[[], Awaitable[None]], list[UnverifiedRejection]] = defaultdict(list)
    for each in doubted:
        if each._decided is None:
            alike[each._check_appointed].append(each)
    for check_appointed, refused in alike.items():
        hindrance: TidelogError | None = None
        try:
            await check_appointed()
        except TidelogError as error:
            hindrance = error.with_traceback(None)
        for each in refused:
            each._decided = each.refusal if hindrance is None else own_copy(hindrance)
