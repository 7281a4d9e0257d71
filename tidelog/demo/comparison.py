"""Whether what was read back is what was sent, row by row. Pure.

    sent      A1 A2 A3 A4          of one key, in the order sent
    read      A1 A3 A3 A2 B?
                 │  │  │  └ changed: it takes the place of a row that is missing
                 │  │  └ out of order
                 │  └ doubled
                 └ (A4 is missing, and would be counted so if B? were not there)

Invariant: a comparison without findings means that for each key the two sequences are equal, byte for byte.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

EXAMPLES_MAX: Final = 3


@dataclass(slots=True)
class Comparison:
    rows: int = 0
    """That were sent."""
    missing: int = 0
    doubled: int = 0
    changed: int = 0
    """Rows with bytes that were never sent under their key."""
    out_of_order: int = 0
    """Rows that come after one that was sent behind them."""
    examples: list[str] = field(default_factory=list)
    """Of what was found, for people; a few of each kind."""

    @property
    def equal(self) -> bool:
        return not (self.missing or self.doubled or self.changed or self.out_of_order)

    def __str__(self) -> str:
        found = [f"{getattr(self, kind):,} {kind.replace('_', ' ')}" for kind in _KINDS if getattr(self, kind)]
        return ", ".join(found) if found else f"{self.rows:,} rows, each once, unchanged, in order within its key"


_KINDS: Final = ("missing", "doubled", "changed", "out_of_order")


def compare(sent: Mapping[str, Sequence[bytes]], read: Mapping[str, Sequence[bytes]]) -> Comparison:
    """`sent` and `read`: by key, the values in their order."""
    comparison = Comparison(rows=sum(map(len, sent.values())))
    for key in sorted({*sent, *read}):
        if list(sent.get(key, ())) != list(read.get(key, ())):
            _compare_key(comparison, key, sent.get(key, ()), read.get(key, ()))
    return comparison


def _compare_key(comparison: Comparison, key: str, sent: Sequence[bytes], read: Sequence[bytes]) -> None:
    sent_counts, read_counts = Counter(sent), Counter(read)
    missing = list((sent_counts - read_counts).elements())
    surplus = read_counts - sent_counts
    doubled = [value for value in surplus.elements() if value in sent_counts]
    strangers = [value for value in surplus.elements() if value not in sent_counts]
    # A stranger beside a missing row is that row, changed; the rest of the missing are missing.
    missing = missing[len(strangers) :]
    late = _out_of_order(sent, read)
    comparison.missing += len(missing)
    comparison.doubled += len(doubled)
    comparison.changed += len(strangers)
    comparison.out_of_order += len(late)
    for kind, values in zip(_KINDS, (missing, doubled, strangers, late), strict=True):
        for value in values[:EXAMPLES_MAX]:
            comparison.examples.append(f"{key} {kind.replace('_', ' ')}: {value.decode(errors='replace')}")


def _out_of_order(sent: Sequence[bytes], read: Sequence[bytes]) -> list[bytes]:
    """Values whose place in `sent` lies before one that was read earlier. Equal values keep their order, and count once each."""
    places: dict[bytes, list[int]] = {}
    for place in range(len(sent) - 1, -1, -1):
        places.setdefault(sent[place], []).append(place)
    late: list[bytes] = []
    furthest = -1
    for value in read:
        left = places.get(value)
        if not left:
            continue  # doubled or changed, which is counted elsewhere
        place = left.pop()
        if place < furthest:
            late.append(value)
        furthest = max(furthest, place)
    return late
