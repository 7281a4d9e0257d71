"""What a chaos run wrote down: what was sent, what was answered, what readers got, what was broken on purpose. One line each.

    write    Sent ──▶ Acknowledged | Refused | Unknown | Unexpected      (none: the run ended before the answer)
    read     Polled, Unexpected
    groups   Assigned ──▶ HandedOut ──▶ Processed ──▶ Committed ──▶ GaveUp      (a member that is dropped says nothing more)
    the end  Served (through the brokers), OnBucket (from the bucket alone), GroupEnd
    besides  Blow, Ended

Times are seconds since the start of the run. A record is known by its value, PRODUCER#NUMBER, which is sent once only: a client
that repeats it uses the same sequence or Idempotency-Key. Numbers rise in the order of sending. The file is NDJSON, written as
it happens, so that a run which is broken off can be judged as well.
"""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

# (offset, value) in the order read.
OffsetValues = tuple[tuple[int, str], ...]


class Event(msgspec.Struct, frozen=True, tag_field="event"):
    time_s: float


class Sent(Event, frozen=True, tag="sent"):
    operation: int
    values: tuple[str, ...]
    # By an idempotent producer that goes on in order: a later record of it never lies before an earlier one.
    ordered: bool

    @property
    def producer(self) -> str:
        return self.values[0].partition("#")[0]


class Acknowledged(Event, frozen=True, tag="acknowledged"):
    operation: int
    # (partition, offset) of each value.
    positions: tuple[tuple[int, int], ...]


class Refused(Event, frozen=True, tag="refused"):
    """The producer learnt that nothing was written, and has not tried again."""

    operation: int
    why: str


class Unknown(Event, frozen=True, tag="unknown"):
    operation: int
    why: str


class Unexpected(Event, frozen=True, tag="unexpected"):
    """An answer that no fault excuses: a right request was called wrong, or the SDK raised what it should have hidden."""

    who: str
    why: str


class Polled(Event, frozen=True, tag="polled"):
    """One answer to one reader. Its polls of a partition stand in the order in which it asked, each from where it was."""

    reader: str
    partition: int
    from_offset: int
    records: OffsetValues
    # As far as the reader knows.
    high_watermark: int | None = None


class Assigned(Event, frozen=True, tag="assigned"):
    """A member of a consumer group was assigned these from now on. Each of its lives has a name of its own."""

    group: str
    member: str
    generation: int
    partitions: tuple[int, ...]


class GaveUp(Event, frozen=True, tag="gave up"):
    """These were revoked from it, or it has ended in order."""

    group: str
    member: str
    partitions: tuple[int, ...]


class HandedOut(Event, frozen=True, tag="handed out"):
    group: str
    member: str
    # The member's own, when its caller got the records; below 0 where it is in none.
    generation: int
    partition: int
    records: OffsetValues


class Processed(Event, frozen=True, tag="processed"):
    """The member's caller is done with what it was handed out before this offset: from here on that may be committed."""

    group: str
    member: str
    partition: int
    next_offset: int


class Committed(Event, frozen=True, tag="committed"):
    """A commit was acknowledged."""

    group: str
    member: str
    # (partition, offset of the next record to be read)
    offsets: tuple[tuple[int, int], ...]


class CommittedReported(Event, frozen=True, tag="committed reported"):
    """What is committed, as some broker says."""

    asked_s: float
    group: str
    offsets: tuple[tuple[int, int], ...]


class Lived(Event, frozen=True, tag="lived"):
    """A member's life is over."""

    began_s: float
    group: str
    member: str
    # As if its process were gone; else it has left.
    dropped: bool


class GroupEnd(Event, frozen=True, tag="group end"):
    """A group, as it is described when all is quiet and its members had their time."""

    group: str
    lag_records: int
    offsets: tuple[tuple[int, int], ...]


class Served(Event, frozen=True, tag="served"):
    """A whole partition as the brokers serve it, when all is quiet."""

    partition: int
    records: OffsetValues


class OnBucket(Event, frozen=True, tag="on bucket"):
    """The same from the bucket alone."""

    partition: int
    records: OffsetValues


class Blow(Event, frozen=True, tag="blow"):
    what: str
    # Empty where it strikes all.
    broker: str
    lasts_s: float


class Ended(Event, frozen=True, tag="ended"):
    """A broker's process ended by itself."""

    broker: str
    code: int
    was_ready: bool


class Leaders(Event, frozen=True, tag="leaders"):
    """At the beginning, and at the end."""

    # Leader epoch by partition: each change of its leader raises it.
    epochs: tuple[int, ...]


class Topics(Event, frozen=True, tag="topics"):
    """How many lives the topic had that is made and deleted all the time."""

    lives: int


class Healed(Event, frozen=True, tag="healed"):
    """From here on nothing is broken on purpose."""


AnyEvent = (
    Sent
    | Acknowledged
    | Refused
    | Unknown
    | Unexpected
    | Polled
    | Served
    | OnBucket
    | Blow
    | Ended
    | Leaders
    | Topics
    | Healed
    | Assigned
    | GaveUp
    | HandedOut
    | Processed
    | Committed
    | CommittedReported
    | Lived
    | GroupEnd
)


class History:
    """Keeps the events in memory, and in a file."""

    def __init__(self, path: Path) -> None:
        self.events: list[AnyEvent] = []
        self._file = path.open("wb")
        self._encoder = msgspec.json.Encoder()
        self._start_s = time.monotonic()
        self._operations = 0

    @property
    def now_s(self) -> float:
        return round(time.monotonic() - self._start_s, 4)

    def add(self, event: AnyEvent) -> None:
        self.events.append(event)
        self._file.write(self._encoder.encode(event) + b"\n")

    def sent(self, *values: str, ordered: bool) -> int:
        """The number of the operation that begins."""
        self._operations += 1
        self.add(Sent(self.now_s, self._operations, values, ordered))
        return self._operations

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._file.close()


def read_history(path: Path) -> list[AnyEvent]:
    """What `History` wrote. A last line that was cut off is left out."""
    decoder = msgspec.json.Decoder(AnyEvent)
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    return [decoder.decode(line) for line in whole.splitlines()]
