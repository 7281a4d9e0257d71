"""A manifest comes back as it was written; one that is torn, another's or of a later format is refused, with its key."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from metadata.errors import Corrupt
from metadata.model import LeaderEpoch, Offset, ProducerId
from segments.bucket.layout import manifest_key
from segments.history.manifest import (
    EpochStart,
    Manifest,
    RememberedBatch,
    RememberedProducer,
    Retired,
    Superseded,
    decode_manifest,
    encode_manifest,
)
from tests.kit.segments.batches import ORDERS, PAYMENTS, TIMESTAMP_MS, partition_of
from tests.kit.segments.manifests import TOPIC, compacted_to, file_of, writer_of

BATCH = RememberedBatch(2**31 - 1, 0, Offset(7), Offset(8))
FULL = msgspec.structs.replace(
    compacted_to(30),
    version=3,
    log_start_offset=Offset(5),
    files=(file_of(0, 9, groups=3), file_of(10, 29)),
    epochs=(EpochStart(LeaderEpoch(5), Offset(0)), EpochStart(LeaderEpoch(9), Offset(12))),
    producers=(RememberedProducer(ProducerId(2**62 + 1), 4, TIMESTAMP_MS, (BATCH,)),),
    retired=(Retired(file_of(0, 4).name, TIMESTAMP_MS),),
    superseded=(Superseded(2, TIMESTAMP_MS, writer_of(1)),),
)
KEY = manifest_key(TOPIC, ORDERS, 3)


def test_a_written_manifest_is_read_back() -> None:
    assert decode_manifest(encode_manifest(FULL), key=KEY) == FULL


def test_one_cut_short_anywhere_is_refused_with_its_key() -> None:
    body = encode_manifest(FULL)
    for length in range(len(body)):
        with pytest.raises(Corrupt, match="is no manifest") as error:
            decode_manifest(body[:length], key=KEY)
        assert error.value.details["key"] == KEY


@pytest.mark.parametrize(
    "key",
    [manifest_key(TOPIC, PAYMENTS, 3), manifest_key(TOPIC, partition_of(1), 3), manifest_key(TOPIC, ORDERS, 4), "cluster.json"],
)
def test_a_manifest_under_the_key_of_another_is_refused(key: str) -> None:
    with pytest.raises(Corrupt, match="contradicts itself"):
        decode_manifest(encode_manifest(FULL), key=key)


def test_a_manifest_of_a_later_format_is_refused() -> None:
    with pytest.raises(Corrupt, match="format 2; this version reads up to 1"):
        decode_manifest(encode_manifest(msgspec.structs.replace(FULL, format_version=2)), key=KEY)


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 0},
        {"log_start_offset": -1},
        {"compacted_to": Offset(29)},
        {"files": (file_of(10, 29), file_of(0, 9))},
        {"files": (file_of(0, 10), file_of(10, 29))},
        {"files": (msgspec.structs.replace(file_of(0, 9), record_count=11),)},
        {"files": (msgspec.structs.replace(file_of(0, 9), footer_start=50),)},
        {"files": (msgspec.structs.replace(file_of(0, 9), row_groups=()),)},
        {"epochs": (EpochStart(LeaderEpoch(5), Offset(0)), EpochStart(LeaderEpoch(5), Offset(1)))},
        {"epochs": (EpochStart(LeaderEpoch(5), Offset(3)), EpochStart(LeaderEpoch(6), Offset(3)))},
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(changes: dict[str, Any]) -> None:
    manifest: Manifest = msgspec.structs.replace(FULL, **changes)
    with pytest.raises(Corrupt, match="contradicts itself"):
        decode_manifest(encode_manifest(manifest), key=KEY)
