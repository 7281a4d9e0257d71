"""Encodes the answer to a produce request: one result for each record, in the order of the request. Pure.

    {"results": [{"partition": 0, "offset": 17}, {"partition": 2, "error": {…}}, …]}     JSON
    one of these objects per line                                                        NDJSON
    columns partition int32, offset int64, error string (a code)                         Arrow stream
    {"results": [{"partition": 0, "offset": 17, "count": 500}]}                          for a ready batch, always JSON

`duplicate` is true, and else absent, if a repeated batch has the offset of its first attempt. With acks=none there is no offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gateway.http.problem_details import Member, error_members
from gateway.records.append import Outcome
from gateway.records.partitioning import Plan, outcome_by_record
from metadata.errors import TidelogError
from segments.log.session_log import Acks
from segments.partition.partition_log import Appended


class ProduceResult(msgspec.Struct, omit_defaults=True, gc=False):
    """Holds the result of one record, or of a ready batch."""

    partition: int
    offset: int | None = None
    # The number of records of a ready batch, which begin at `offset`.
    count: int | None = None
    duplicate: bool = False
    error: dict[str, Member] | None = None


class _Results(msgspec.Struct):
    results: list[ProduceResult]


# Bound of the size of an answer beside its results; most of it is the schema of an Arrow stream.
_ENVELOPE_BYTES: Final = 1 << 10

_encoder = msgspec.json.Encoder()
ARROW_SCHEMA = pa.schema([pa.field("partition", pa.int32()), pa.field("offset", pa.int64()), pa.field("error", pa.string())])


def shared_error(found: Sequence[Outcome]) -> TidelogError | None:
    """Returns the error to answer the whole request with, where every batch met the same one."""
    errors = [outcome for outcome in found if isinstance(outcome, TidelogError)]
    if len(errors) == len(found) and len({type(error) for error in errors}) == 1:
        return errors[0]
    return None


def answer_bytes_max(plan: Plan, found: Sequence[Outcome], acks: Acks) -> int:
    """Returns an upper bound for the answer in any of its forms, from the longest result of each batch."""
    return _ENVELOPE_BYTES + sum(
        batch.header.record_count * (1 + len(_encoder.encode(_longest_result(batch.partition.partition, outcome, acks))))
        for batch, outcome in zip(plan.batches, found, strict=True)
    )


def _longest_result(partition: int, outcome: Outcome, acks: Acks) -> ProduceResult:
    if isinstance(outcome, TidelogError):
        return ProduceResult(partition, error=error_members(outcome))
    return ProduceResult(partition, None if acks is Acks.NONE else outcome.last_offset, duplicate=outcome.duplicate)


def results_as_json(plan: Plan, found: Sequence[Outcome], acks: Acks) -> bytes:
    return _encoder.encode(_Results(_results(plan, found, acks)))


def results_as_lines(plan: Plan, found: Sequence[Outcome], acks: Acks) -> bytes:
    return _encoder.encode_lines(_results(plan, found, acks))


def results_as_arrow(plan: Plan, found: Sequence[Outcome], acks: Acks) -> bytes:
    results = _results(plan, found, acks)
    columns = [
        pa.array([result.partition for result in results], pa.int32()),
        pa.array([result.offset for result in results], pa.int64()),
        pa.array([None if result.error is None else result.error["code"] for result in results], pa.string()),
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ARROW_SCHEMA) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA))
    return bytes(sink.getvalue())


def ready_batch_as_json(plan: Plan, found: Sequence[Outcome], acks: Acks) -> bytes:
    """Encodes the answer for a batch that the client has made. `found` holds no error, which would be that of the request."""
    batch, outcome = plan.batches[0], found[0]
    assert isinstance(outcome, Appended)
    result = ProduceResult(batch.partition.partition, count=batch.header.record_count)
    if acks is not Acks.NONE:
        result.offset, result.duplicate = outcome.base_offset, outcome.duplicate
    return _encoder.encode(_Results([result]))


def _results(plan: Plan, found: Sequence[Outcome], acks: Acks) -> list[ProduceResult]:
    fresh = [outcome for outcome in found if isinstance(outcome, Appended) and not outcome.duplicate]
    if acks is Acks.NONE or len(fresh) < len(found):
        return _unusual_results(plan, found, acks)
    if len(fresh) == 1:
        partition = plan.batches[0].partition.partition
        return [ProduceResult(partition, offset) for offset in range(fresh[0].base_offset, fresh[0].last_offset + 1)]
    partitions = np.asarray(plan.partitions)
    return list(map(ProduceResult, partitions.tolist(), _offsets(plan, partitions, fresh).tolist()))


def _offsets(plan: Plan, partitions: npt.NDArray[np.integer], found: Sequence[Appended]) -> npt.NDArray[np.int64]:
    """Returns the offset of each record: sorted by partition, the records lie as their batches do."""
    in_order = sorted(range(len(found)), key=lambda at: plan.batches[at].partition.partition)
    offsets = np.empty(len(partitions), np.int64)
    offsets[np.argsort(partitions, kind="stable")] = np.concatenate(
        [np.arange(found[at].base_offset, found[at].last_offset + 1) for at in in_order]
    )
    return offsets


def _unusual_results(plan: Plan, found: Sequence[Outcome], acks: Acks) -> list[ProduceResult]:
    results: list[ProduceResult] = []
    members: dict[int, dict[str, Member]] = {}
    for partition, outcome, index in outcome_by_record(plan, found):
        if isinstance(outcome, TidelogError):
            results.append(ProduceResult(partition, error=members.setdefault(id(outcome), error_members(outcome))))
        elif acks is Acks.NONE:
            results.append(ProduceResult(partition))
        else:
            results.append(ProduceResult(partition, outcome.base_offset + index, duplicate=outcome.duplicate))
    return results
