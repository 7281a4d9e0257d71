"""Commits a batch exactly once over all attempts: chooses its files, sends them, and marks the batch as done.

    create chosen ─▶ no later batch? ─▶ send (delivery.py) ─▶ create done ─▶ delete the rows, and all of earlier batches
         │                                   ▲
         └ it is there: an earlier attempt's ┘  its files are the batch, and not ours

A crash between any two steps leaves what the next attempt goes on with. `chosen` and `done` of a query's last batch stay: Spark may
run it again. Markers are never deleted by age, so that nothing is written twice however late an attempt comes.

A topic that was deleted and made again lacks what earlier batches have written. `done` holds the ids of their topics. A batch for
another topic of such a name is refused, unless the query is to go on without these rows.

A batch of one topic that is deleted and made again after `chosen` is chosen once more for the new topic, if the query may lose
rows: `chosen-{topic id}`. Attempts of the first choice may still run, or have ended with an unknown outcome. They write nothing to
the new topic, since their requests hold the id of the former one. If one of them creates `done`, the batch was written to the
former topic, and is lost with it.

Invariant: of a batch, a topic id gets only the files of one choice, always under the same producer and sequences. That is `chosen`;
where `chosen` is for another topic id, it is the `chosen-` of this id. All of these are create-only.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from compaction.deleter import ObjectDeleter
from metadata.errors import AlreadyExists, Fenced, InvalidTimestamp, NotFound, Rejected, TidelogError, Unavailable
from metadata.retry import RetryPauses, retry, retry_unavailable
from segments.bucket.layout import StagedKey, chosen_key, done_key, parse_staged_key, staged_prefix
from segments.object_store.interface import ObjectStore, list_all
from spark.sink.brokers import Brokers, Connect, StagedTopicGone
from spark.sink.delivery import PATIENCE_S, PAUSE_S, PAUSE_S_MAX, StagedDelivery
from spark.sink.options import PRODUCER_EXPIRY_MS
from spark.sink.staged_files import (
    ChosenBatch,
    Done,
    StagedFile,
    added,
    as_counts,
    counted,
    decode_chosen,
    decode_done,
    replaced_topics,
    topic_made_again,
)

BUCKET_PATIENCE_S: Final = 60.0
# A tenth of the time for which brokers remember a producer is left for clocks that differ.
EXPIRY_MARGIN: Final = 10

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BatchCommit:
    """Commits one batch of a write; each object is one attempt."""

    store: ObjectStore
    connect: Connect
    write: str
    batch: int
    # The write, and the batch, as people know them.
    label: str
    # What to do where it was broken off.
    go_on: str
    now_ms: Callable[[], int]
    # Whether all markers may go: no later attempt will use this write id.
    forgets: bool = False
    # Whether a batch is refused whose topic was made again after earlier batches were written to it.
    fails_on_loss: bool = True
    producer_expiry_ms: int = PRODUCER_EXPIRY_MS
    patience_s: float = PATIENCE_S

    async def commit(self, files: Sequence[StagedFile]) -> Done | None:
        """Returns what this attempt or an earlier one wrote; None if there was nothing to write.

        Raises what StagedDelivery raises, with what is written at that point; Fenced if a later batch of the write exists.
        """
        done = await read_done(self.store, self.write, self.batch)
        if done is not None:
            log.info("batch was written before batch=%s rows=%d", self.label, done.records)
        else:
            if not files and await self._read_chosen(chosen_key(self.write, self.batch)) is None:
                return None
            sending: list[StagedDelivery] = []
            try:
                async with self.connect() as brokers:
                    done = await self._write(brokers, files, sending)
            except TidelogError as error:
                raise self._explained(error, sending) from error
            log.info("batch written batch=%s rows=%d partitions=%d", self.label, done.records, len(done.partitions))
        await self._clear()
        return done

    async def _write(self, brokers: Brokers, files: Sequence[StagedFile], sending: list[StagedDelivery]) -> Done:
        """Adds what it sends to `sending`."""
        before = await self._read_previous()
        await self._check_topics(brokers, files, before)
        chosen, marker = await self._choose(files)
        if before is not None and chosen.files != tuple(files):
            self._check_loss(before, chosen.files)
        later = [other.batch for other in await self._markers() if other.batch > self.batch]
        if later:
            raise Fenced(
                f"batch {max(later)} of the same query is there already",
                hint="Another run of the query goes on: stop one of them. Or the checkpoint was set back: begin a new one.",
            )
        if chosen.files:
            sending.append(self._delivery(brokers, chosen, marker))
            await self._send(sending[0])
        return await self._finish(chosen, before)

    async def _check_topics(self, brokers: Brokers, files: Sequence[StagedFile], before: Done | None) -> None:
        """Checks, before files are chosen for good, that their topics are there, and are those that earlier batches have written.

        Raises Unavailable if a topic was deleted or made again since its rows were staged, or brokers do not agree on that for
        `patience_s`; what `_check_loss` raises.
        """
        topics = {(where.topic, where.topic_id): where for where in counted(files)}
        for where in topics.values():
            try:
                check = partial(brokers.check_present, where)
                await retry(check, on=Unavailable, pauses=RetryPauses(PAUSE_S, PAUSE_S_MAX), for_s=self.patience_s)
            except StagedTopicGone as error:
                raise Unavailable(error.message, hint="Its rows are staged again then.") from error
        if before is not None:
            self._check_loss(before, files)

    def _check_loss(self, before: Done, files: Sequence[StagedFile]) -> None:
        """Raises Rejected, or warns, if a topic was made again after earlier batches of the query were written to it."""
        for name, (former, present) in replaced_topics(before.total, as_counts(counted(files))).items():
            rows = sum(count.records for count in before.total if count.topic_id == former)
            lost = (
                f"topic {name} was deleted and made again (its id was {former}, and is {present}): {rows} rows that this query has "
                "written to it are gone"
            )
            if self.fails_on_loss:
                raise Rejected(
                    lost,
                    hint="Begin a new checkpoint to write all rows again. Or set failOnDataLoss to false to go on with "
                    "the new topic.",
                )
            log.warning("rows lost batch=%s: %s; going on with the new topic", self.label, lost)

    async def _choose(self, files: Sequence[StagedFile]) -> tuple[ChosenBatch, str]:
        """Creates `chosen`, or reads the one that another attempt created first. Returns it with its key.

        Where the topic was made again since, and the query may lose rows, does the same for the new topic.
        """
        ours = ChosenBatch(
            write=self.write,
            batch=self.batch,
            label=self.label,
            created_ms=self.now_ms(),
            nonce=secrets.token_hex(8),
            files=tuple(files),
        )
        key = chosen_key(self.write, self.batch)
        chosen = await self._create_chosen(ours, key)
        again = topic_made_again(chosen.files, ours.files)
        if again is None or self.fails_on_loss:
            return chosen, key
        log.warning(
            "batch chosen again batch=%s topic=%s topic_id=%s: the topic was deleted and made again, and rows that were written to "
            "the former one are gone; going on with the new topic",
            self.label,
            again.topic,
            again.topic_id,
        )
        key = chosen_key(self.write, self.batch, again.topic_id)
        return await self._create_chosen(ours, key), key

    async def _create_chosen(self, ours: ChosenBatch, key: str) -> ChosenBatch:
        try:
            await retry_unavailable(lambda: self.store.create(key, [msgspec.json.encode(ours)]), for_s=BUCKET_PATIENCE_S)
        except AlreadyExists:
            chosen = await self._read_chosen(key)
            if chosen is None:
                raise Fenced(f"{key} was there and is gone", hint="Another run of the query goes on: stop one.") from None
            if chosen.nonce != ours.nonce:
                log.info("an earlier attempt has chosen the rows batch=%s key=%s", self.label, key)
            return chosen
        return ours

    def _delivery(self, brokers: Brokers, chosen: ChosenBatch, marker: str) -> StagedDelivery:
        lasts_ms = self.producer_expiry_ms - self.producer_expiry_ms // EXPIRY_MARGIN
        return StagedDelivery(
            chosen,
            self.store,
            brokers,
            marker=marker,
            begins_until_ms=chosen.created_ms + lasts_ms,
            now_ms=self.now_ms,
            patience_s=self.patience_s,
        )

    async def _send(self, delivery: StagedDelivery) -> None:
        try:
            await delivery.run()
        except StagedTopicGone as error:
            if self.fails_on_loss and len({where.topic for where in delivery.partitions}) == 1:
                error.hint += " Or set failOnDataLoss to false to write the batch to the new topic."
            raise
        except NotFound as error:
            if await read_done(self.store, self.write, self.batch) is None:
                what = f"staged rows are gone from the bucket: {error.message}"
                hint = (
                    "They are kept for a week. Look at the end of the topic. Where none of the rows are there, delete "
                    f"{delivery.marker} on {self.store.url}, and run it again; where some are, begin a new checkpoint behind them."
                )
                raise Rejected(what, hint=hint) from error
            # else another attempt was faster, and has cleared up

    def _explained(self, error: TidelogError, sending: Sequence[StagedDelivery]) -> TidelogError:
        """Adds what is written, and its consequence, to the error."""
        so_far = "This attempt has sent nothing"
        for delivery in sending:
            whole = f"the rows of {delivery.complete} of {len(delivery.partitions)} partitions are in their topic"
            so_far = f"So far {whole}, of others some may be"
        error.message = f"{self.label} could not be written: {error.message}. {so_far}"
        error.args = (error.message,)
        if error.retryable or isinstance(error, InvalidTimestamp):
            error.hint = f"{self.go_on} and the rest follows; nothing is doubled. {error.hint}".strip()
        return error

    async def _finish(self, chosen: ChosenBatch, before: Done | None) -> Done:
        counts = as_counts(counted(chosen.files))
        done = Done(
            write=self.write,
            batch=self.batch,
            done_ms=self.now_ms(),
            label=self.label,
            partitions=counts,
            first_batch=before.first_batch if before else self.batch,
            total=added(before.total, counts) if before else counts,
        )
        key = done_key(self.write, self.batch)
        try:
            await retry_unavailable(lambda: self.store.create(key, [msgspec.json.encode(done)]), for_s=BUCKET_PATIENCE_S)
        except AlreadyExists:
            return await read_done(self.store, self.write, self.batch) or done
        return done

    async def _clear(self) -> None:
        """Deletes files that are no longer needed. The next batch or the collector finds what stays."""
        rows: list[str] = []
        markers: list[str] = []
        with contextlib.suppress(TidelogError):
            async for found in list_all(self.store, staged_prefix(self.write)):
                key = parse_staged_key(found.key)
                if key is None or key.batch > self.batch:
                    continue
                if key.created_ms is not None:
                    rows.append(found.key)
                elif key.batch < self.batch or self.forgets:
                    markers.append(found.key)
            await ObjectDeleter(self.store, now_ms=self.now_ms).delete([*rows, *markers])

    async def _markers(self) -> list[StagedKey]:
        """Lists the markers of all batches of the write."""
        keys = [parse_staged_key(found.key) async for found in list_all(self.store, staged_prefix(self.write))]
        return [key for key in keys if key is not None and (key.chosen or key.done)]

    async def _read_previous(self) -> Done | None:
        """Reads the marker of the newest earlier batch that is done. Batches without rows have none."""
        if self.batch == 0:
            return None
        done = await read_done(self.store, self.write, self.batch - 1)
        if done is not None:
            return done
        batches = [other.batch for other in await self._markers() if other.done and other.batch < self.batch]
        return await read_done(self.store, self.write, max(batches)) if batches else None

    async def _read_chosen(self, key: str) -> ChosenBatch | None:
        try:
            return decode_chosen(await retry_unavailable(lambda: self.store.get(key), for_s=BUCKET_PATIENCE_S), key)
        except NotFound:
            return None


async def read_done(store: ObjectStore, write: str, batch: int) -> Done | None:
    """Reads the marker of a finished batch; None if the batch is not done, or a later one is."""
    key = done_key(write, batch)
    try:
        return decode_done(await retry_unavailable(lambda: store.get(key), for_s=BUCKET_PATIENCE_S), key)
    except NotFound:
        return None


async def newest_done(store: ObjectStore, write: str) -> Done | None:
    """Returns the newest marker of a finished batch. Its `total` counts the rows of all batches, by partition."""
    batches = [
        key.batch
        async for found in list_all(store, staged_prefix(write))
        if (key := parse_staged_key(found.key)) is not None and key.done
    ]
    return await read_done(store, write, max(batches)) if batches else None


async def discard(store: ObjectStore, write: str, batch: int, files: Sequence[StagedFile], *, now_ms: Callable[[], int]) -> None:
    """Deletes the files of an abandoned batch, unless it was chosen: then the next attempt completes it."""
    try:
        await store.get(chosen_key(write, batch))
    except NotFound:
        await ObjectDeleter(store, now_ms=now_ms).delete([file.key for file in files])
