"""What a batch was refused with by a leader that may lead no more, until the bucket says whether it still did.

    append ─▶ DoubtedRefusal ─▶ decided: a look for the seal ─▶ none: the refusal is true
                                                            └▶ one, or no answer: to be sent again

Another leader may have taken the batches before this one, and then it is no gap; or this very batch, and then it is no refusal at
all: a producer that took one for true would number its records anew, and write them twice. What only a leader that is ahead could
pass is doubted, so not a producer's old epoch, nor a key that was used: epochs only rise, and keys stay used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from metadata.errors import TidelogError, Unavailable
from segments.shared_errors import own_copy


class DoubtedRefusal(Unavailable):
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


async def decide(doubted: Iterable[DoubtedRefusal]) -> None:
    """All of them, those of one Log by one look: a producer that is not known (any more) is refused in each of its partitions."""
    alike: defaultdict[Callable[[], Awaitable[None]], list[DoubtedRefusal]] = defaultdict(list)
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
