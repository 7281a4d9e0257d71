"""Joins of many consumer groups, as many at once as the cluster answers in time: found out as they go, since of a crowd that comes
faster no member is answered in time, and all come again.

    answered soon ─▶ one more at once          late, or refused ─▶ half as many, and the refused ones come again
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Final

from bench.http2_calls import CallRefused

AT_ONCE_FIRST: Final = 50
AT_ONCE_MAX: Final = 500
# A join in time takes 0.5 s, in which the coordinator waits for other members, and three calls.
LATE_S: Final = 3.0
AGAIN_S: Final = 0.2
REPORTED_MAX: Final = 3
_NUMBER: Final = re.compile(r"\d+")


class Pace:
    """How many may be under way. Pure: the caller brings the time."""

    def __init__(self) -> None:
        self.at_once = AT_ONCE_FIRST
        self._halved_at_s = float("-inf")

    def ended(self, began_s: float, now_s: float, *, refused: bool) -> None:
        if not refused and now_s - began_s <= LATE_S:
            self.at_once = min(AT_ONCE_MAX, self.at_once + 1)
        elif began_s >= self._halved_at_s:  # those that began before were too many for the same reason
            self.at_once = max(1, self.at_once // 2)
            self._halved_at_s = now_s


class Refusals:
    """Why calls came to nothing, alike ones counted together: those that differ in numbers alone are alike."""

    def __init__(self) -> None:
        self._alike: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    def add(self, why: str) -> None:
        kind = _NUMBER.sub("#", why)
        self._alike[kind] += 1
        self._first.setdefault(kind, why)

    def __str__(self) -> str:
        if not self._alike:
            return "none was refused"
        reported = [f"{count:,} × {self._first[kind]}" for kind, count in self._alike.most_common(REPORTED_MAX)]
        others = len(self._alike) - REPORTED_MAX
        return "; ".join([*reported, f"and {others} other reasons"] if others > 0 else reported)


async def join_all(groups: int, join: Callable[[int], Awaitable[None]], *, within_s: float) -> Refusals:
    """Calls `join` with each number below `groups` until it raises no CallRefused. Answers why it was called again.

    Raises RuntimeError where not all have joined in time, with what was refused.
    """
    now_s = asyncio.get_running_loop().time
    pace, refusals, waiting = Pace(), Refusals(), deque(range(groups))
    started_s, joined, under_way, ended = now_s(), 0, 0, asyncio.Event()

    async def one(number: int) -> None:
        nonlocal joined, under_way
        began_s = now_s()
        try:
            await join(number)
        except CallRefused as error:
            refusals.add(str(error))
            pace.ended(began_s, now_s(), refused=True)
            await asyncio.sleep(AGAIN_S)
            waiting.append(number)
        else:
            joined += 1
            pace.ended(began_s, now_s(), refused=False)
        under_way -= 1
        ended.set()

    try:
        async with asyncio.timeout(within_s), asyncio.TaskGroup() as joins:
            while joined < groups:
                while waiting and under_way < pace.at_once:
                    under_way += 1
                    joins.create_task(one(waiting.popleft()))
                ended.clear()
                await ended.wait()
    except TimeoutError:
        raise RuntimeError(
            f"{joined:,} of {groups:,} groups have joined after {now_s() - started_s:.0f} s, "
            f"{pace.at_once} at once in the end; {refusals}"
        ) from None
    return refusals
