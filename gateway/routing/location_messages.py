"""Encodes record locations for answers of one broker to another, and decodes them. Pure."""

from __future__ import annotations

from gateway.proto import log_pb2
from metadata.model import LeaderEpoch, Offset, SegmentSeq, SessionId
from segments.read.record_locations import RecordLocations
from segments.wal.run_index import RunLocation


def encode_locations(located: RecordLocations) -> log_pb2.RecordLocations:
    return log_pb2.RecordLocations(
        manifest_version=located.manifest_version,
        runs=[log_pb2.SegmentRun(**run._asdict()) for run in located.runs],
    )


def decode_locations(message: log_pb2.RecordLocations) -> RecordLocations:
    runs = tuple(
        RunLocation(
            Offset(run.base_offset),
            Offset(run.last_offset),
            SessionId(run.session),
            SegmentSeq(run.seq),
            run.start,
            run.end,
            LeaderEpoch(run.leader_epoch),
            run.max_timestamp,
        )
        for run in message.runs
    )
    return RecordLocations(message.manifest_version, runs)
