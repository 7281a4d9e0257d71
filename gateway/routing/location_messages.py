"""Encodes record locations for answers of one broker to another, and decodes them. Pure."""

from __future__ import annotations

from gateway.proto import log_pb2
from metadata.model import LeaderEpoch, Offset, SegmentSeq, SessionId
from segments.read.record_locations import RecordLocations
from segments.wal.run_index import RunPlace


def encode_places(located: RecordLocations) -> log_pb2.RecordPlaces:
    return log_pb2.RecordPlaces(
        manifest_version=located.manifest_version,
        runs=[log_pb2.SegmentRun(**run._asdict()) for run in located.runs],
    )


def decode_places(places: log_pb2.RecordPlaces) -> RecordLocations:
    runs = tuple(
        RunPlace(
            Offset(run.base_offset),
            Offset(run.last_offset),
            SessionId(run.session),
            SegmentSeq(run.seq),
            run.start,
            run.end,
            LeaderEpoch(run.leader_epoch),
            run.max_timestamp,
        )
        for run in places.runs
    )
    return RecordLocations(places.manifest_version, runs)
