"""What a batch was refused with by a leader that may lead no more, until the bucket says whether it still did.

    refused for what is known of the log ─▶ surely appointed: told at once
                                        └▶ else DoubtedRefusal ─▶ a look for the seal ─▶ none: the refusal is true
                                                                                     └▶ one, or no answer: to be sent again

Another leader may have taken the batches before this one, and then it is no gap; or this very batch, and then it is no refusal at
all: a producer that took one for true would number its records anew, and write them twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from metadata.errors import ConditionFailed, OutOfOrderSequence, TidelogError, Unavailable

MAY_PASS: Final = (OutOfOrderSequence, ConditionFailed)
"""What another leader, that has committed more, might not refuse. Epochs of producers only rise, and keys stay used."""


class DoubtedRefusal(Unavailable):
    """Where nobody asks what was `decided` it is told as it is: nothing was written, and the same batch may be sent again."""

    def __init__(self, refusal: TidelogError, check_appointed: Callable[[], Awaitable[None]]) -> None:
        """`check_appointed`: as that of the Log that refused the batch."""
        super().__init__(f"this broker may lead no more, and may know too little of the log: {refusal.message}")
        self.refusal = refusal
        self._check_appointed = check_appointed
        self._decided: TidelogError | None = None

    async def decided(self) -> TidelogError:
        """The refusal, where the broker that refused did lead then; else why it can't be told (SessionFenced, Unavailable)."""
        if self._decided is None:
            try:
                await self._check_appointed()
                self._decided = self.refusal
            except TidelogError as error:
                self._decided = error.with_traceback(None)
        return self._decided

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.refusal, self._check_appointed)
