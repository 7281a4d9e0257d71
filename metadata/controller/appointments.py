"""The numbered batches of appointments on the bucket, and what a batch changes when it is applied again. Pure.

    /{cluster}/appointments           {"number":41,"pending":["9f…","c0…"],"applied_at":8112}
                                      the last batch that is wholly applied; the nonces that were noted for the next one
    appointments/{number:020d}        {"format_version":1,"number":42,"nonce":"9f…","checksum":…,
      (segments/bucket/layout.py)      "decisions":[{"topic_id":"…","partition":7,"state":{…}}]}       state: leadership.py

All JSON in UTF-8. The checksum is the CRC-32C of the bytes of the list of decisions. A batch is created once and never changed, so
of two copies of the metadata one alone writes batch 42. The other copy finds a nonce that it has not noted. A copy that was made
between the note and the end of the batch has noted the nonce, and applies the same batch.

Invariant: metadata that have applied the same batches know the same leaders, but for handovers that those batches ask for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from awscrt.checksums import crc32c

from metadata.cluster.leadership import FORMAT_VERSION as STATE_FORMAT_VERSION
from metadata.cluster.leadership import LeadershipChange, PartitionState, moving
from metadata.errors import Corrupt, Rejected
from metadata.model import Partition, Revision, TopicId, TopicPartition
from metadata.store.interface import KeyValue

FORMAT_VERSION: Final = 1


class Progress(msgspec.Struct, frozen=True):
    """Records which batches these metadata have applied."""

    # The last batch that is wholly applied; 0 before the first.
    number: int = 0
    # Nonces that were noted for the next batch. A controller that was deposed may still create it.
    pending: tuple[str, ...] = ()
    # The revision of the metadata at which the last batch was applied; 0 where it changed nothing, or belongs to other metadata.
    applied_at: Revision = Revision(0)

    def noting(self, nonce: str) -> Progress:
        """Returns the progress once `nonce` is noted for the next batch."""
        return msgspec.structs.replace(self, pending=(*self.pending, nonce))

    def advanced(self, applied_at: Revision) -> Progress:
        """Returns the progress once the next batch is wholly applied."""
        return Progress(self.number + 1, (), max(applied_at, self.applied_at))


class Appointment(msgspec.Struct, frozen=True):
    """A partition's next state, as a batch holds it."""

    topic_id: TopicId
    partition: Partition
    state: PartitionState

    @property
    def of(self) -> TopicPartition:
        """Returns the partition that the decision is about."""
        return TopicPartition(self.topic_id, self.partition)


class Batch(msgspec.Struct, frozen=True):
    """Appointments that are applied together."""

    number: int
    nonce: str
    appointments: tuple[Appointment, ...] = ()


class _Stored(msgspec.Struct, frozen=True):
    number: int
    nonce: str
    checksum: int
    decisions: msgspec.Raw
    format_version: int = FORMAT_VERSION


def batch_of(number: int, nonce: str, decisions: Sequence[LeadershipChange]) -> Batch:
    """Returns the batch that holds these decisions."""
    held = (Appointment(partition.topic_id, partition.partition, state) for partition, _, state in decisions)
    return Batch(number, nonce, tuple(held))


def encode_progress(progress: Progress) -> bytes:
    return msgspec.json.encode(progress)


def decode_progress(kept: KeyValue | None, *, key: str) -> Progress:
    """Returns the progress that the key holds; that of new metadata where there is no key. Raises Corrupt."""
    if kept is None:
        return Progress()
    try:
        return msgspec.json.decode(kept.value, type=Progress)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"{key} can't be read: {error}", key=key, revision=kept.mod_revision) from error


def encode_batch(batch: Batch) -> bytes:
    decisions = msgspec.json.encode(batch.appointments)
    return msgspec.json.encode(_Stored(batch.number, batch.nonce, crc32c(decisions), msgspec.Raw(decisions)))


def decode_batch(body: bytes, *, number: int, key: str) -> Batch:
    """Raises Corrupt where the object is damaged or another one, Rejected where a newer version of Tidelog has written it."""
    try:
        stored = msgspec.json.decode(body, type=_Stored)
        if stored.format_version > FORMAT_VERSION:
            raise Rejected(
                f"{key} has format version {stored.format_version}; this program knows {FORMAT_VERSION}",
                hint="Upgrade this broker.",
                key=key,
            )
        held = bytes(stored.decisions)
        if crc32c(held) != stored.checksum:
            raise Corrupt(f"{key}: the appointments do not match their CRC-32C", key=key)
        appointments = msgspec.json.decode(held, type=tuple[Appointment, ...])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"{key} can't be read: {error}", key=key) from error
    if stored.number != number:
        raise Corrupt(f"{key} holds batch {stored.number}", key=key)
    return Batch(number, stored.nonce, appointments)


def reapplied(decided: PartitionState, current: PartitionState | None) -> PartitionState | None:
    """Returns the state that a batch still makes of the current one; None where it changes nothing.

    The leader may have handed over, pruned its list or let go of the partition since the batch was planned, in one copy of the
    metadata and not in another. So the appointed leader follows whatever leads in an earlier epoch, with the epochs of the batch.
    A partition without a state gets its first leader alone: any other state was forgotten with its topic. The epoch of a first
    leader may be above 0 (`Topic.first_leader_epoch`).
    """
    if current is None:
        is_first_leader = len(decided.sessions) == 1 and decided.moving_to is None
        return decided if is_first_leader else None
    if current.format_version > STATE_FORMAT_VERSION:
        return None
    if current.leader_epoch < decided.leader_epoch:
        later = tuple(span for span in decided.sessions if span.leader_epoch > current.leader_epoch)
        return msgspec.structs.replace(
            current,
            leader_session=decided.leader_session,
            leader_epoch=decided.leader_epoch,
            sessions=(*current.sessions, *later),
            moving_to=decided.moving_to,
        )
    is_same_leader = (current.leader_session, current.leader_epoch) == (decided.leader_session, decided.leader_epoch)
    if is_same_leader and decided.moving_to is not None and current.moving_to is None and not current.is_closed:
        return moving(current, decided.moving_to)
    return None
