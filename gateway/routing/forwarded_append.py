"""A batch for a partition that is not led here, and what becomes of it."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from metadata.errors import (
    InvalidTimestamp,
    NoLeader,
    NotLeader,
    OutcomeUnknown,
    OutOfOrderSequence,
    ProducerFenced,
    SessionFenced,
    StaleRouting,
    Stopping,
    TidelogError,
    Unauthenticated,
    UnknownProducer,
)
from metadata.model import NO_PRODUCER, LeaderEpoch, Offset, TopicPartition
from segments.log.doubted_refusal import DoubtedRefusal
from segments.log.session_log import Acks, Log, PendingAppend
from segments.object_store.interface import Buffer
from segments.partition.partition_log import Appended, Dates
from segments.records.header import BatchHeader

NOT_LED: Final = (NoLeader, NotLeader, SessionFenced, Stopping)
"""Errors of a broker that does not lead, or leads no more: nothing was written, and another may lead by now."""
_OF_ITS_PRODUCER: Final = (OutOfOrderSequence, UnknownProducer, ProducerFenced, InvalidTimestamp, StaleRouting, Unauthenticated)
UNTOLD: Final = Appended(Offset(-1), Offset(-1), LeaderEpoch(-1))
"""What a producer learns that does not wait (acks=none)."""


def refuses_alone(error: TidelogError) -> bool:
    """Returns whether the batches behind the refused one are looked at nevertheless. That is so where the reason lies with its own
    producer: its sequence, clock, routing or API key. Later batches of that producer are refused for the same reason, and those
    of other producers, which share the message, are not concerned."""
    return isinstance(error.refusal if isinstance(error, DoubtedRefusal) else error, _OF_ITS_PRODUCER)


class LedMeanwhile(NamedTuple):
    """A batch that was appended here, since its partition came to be led here."""

    log: Log
    pending: PendingAppend


Outcome = Appended | LedMeanwhile | TidelogError


class ClientMessage:
    """The batches of one client's message that wait for one partition. When one is refused for good, those behind it are, too."""

    __slots__ = ("appends", "of", "undecided")

    def __init__(self, of: object) -> None:
        """`of`: whatever is the same for batches of one message, and for no others."""
        self.of = of
        self.appends: list[ForwardedAppend] = []
        self.undecided = 0


class ForwardedAppend:
    __slots__ = (
        "acks",
        "batch",
        "bytes_charged",
        "charged_to",
        "continues",
        "dates",
        "deadline_s",
        "expected_offset",
        "header",
        "in_doubt",
        "is_sent",
        "key_id",
        "message",
        "outcome",
        "partition",
    )

    def __init__(
        self,
        partition: TopicPartition,
        batch: Buffer,
        header: BatchHeader,
        *,
        acks: Acks,
        deadline_s: float,
        expected_offset: int | None,
        dates: Dates,
        bytes_charged: int,
        charged_to: str,
        key_id: str = "",
        continues: bool = False,
    ) -> None:
        """`key_id`: of the API key that the client has shown. A leader that knows that it was revoked refuses the batch."""
        self.partition = partition
        self.batch = batch
        self.header = header
        self.acks = acks
        self.deadline_s = deadline_s
        self.expected_offset = expected_offset
        self.dates = dates
        self.key_id = key_id
        self.continues = continues
        """As in Log.append."""
        self.message: ClientMessage | None = None
        """Set by the lane that it waits in."""
        self.bytes_charged = bytes_charged
        self.charged_to = charged_to
        self.is_sent = False
        """On its way to a leader, now."""
        self.in_doubt = False
        """It was sent, and no answer came: it may be in the log. Only what its leader recognises is sent again then."""
        self.outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

    @property
    def is_repeatable(self) -> bool:
        """Whether a leader takes it once, however often it is sent: it has a producer id and a sequence."""
        return self.header.producer_id != NO_PRODUCER

    def overdue(self) -> TidelogError:
        """What to tell where nobody took it in time."""
        return self.lost() if self.in_doubt else NoLeader(f"no leader of {self.partition} took the records in time")

    def lost(self) -> OutcomeUnknown:
        return OutcomeUnknown(f"records for {self.partition} were forwarded to its leader, which has not answered in time")
