"""Whatever is done to a partition in whatever order, each version keeps what the one before promised."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metadata.model import LeaderEpoch, Offset
from segments.bucket.layout import manifest_key
from segments.history.manifest import EpochStart, HistoryFile, Manifest, decode_manifest, encode_manifest, no_manifest
from segments.history.manifest_edits import with_collected, with_compacted, with_log_start, with_replaced
from tests.kit.segments.batches import ORDERS
from tests.kit.segments.manifests import TOPIC, compacted_to, file_of, writer_of


def some_step(manifest: Manifest, chance: random.Random, step: int) -> Manifest:
    """What a compactor, a leader or a collector might do next."""
    version, writer, now_ms = manifest.version + 1, writer_of(step), step
    kind = chance.choice(("compacted", "compacted", "merged", "raised", "collected"))
    if kind == "merged" and manifest.files:
        first = chance.randrange(len(manifest.files))
        old = manifest.files[first : first + chance.randint(1, 3)]
        new = [file_of(old[0].base_offset, old[-1].last_offset, version=version, nonce=step)] if chance.random() < 0.8 else []
        return with_replaced(manifest, old={file.name for file in old}, new=new, cause="merge", writer=writer, now_ms=now_ms)
    if kind == "raised":
        offset = Offset(manifest.log_start_offset + chance.randint(1, 20))
        return with_log_start(manifest, offset, cause=chance.choice(("retention", "delete-records")), writer=writer, now_ms=now_ms)
    if kind == "collected":
        files = [retired.name for retired in manifest.retired if chance.random() < 0.5]
        versions = [old.version for old in manifest.superseded if chance.random() < 0.5]
        return with_collected(manifest, files=files, versions=versions, writer=writer, now_ms=now_ms)
    end = manifest.compacted_to + chance.randint(1, 30)
    epoch = (manifest.epochs[-1].leader_epoch if manifest.epochs else 0) + chance.randint(0, 2)
    base = max(manifest.compacted_to, manifest.log_start_offset)
    return with_compacted(
        manifest,
        files=[file_of(base, end - 1, version=version, nonce=step)] if base < end else [],
        compacted_to=Offset(end),
        epochs=[EpochStart(LeaderEpoch(epoch), manifest.compacted_to)],
        producers=(),
        writer=writer,
        now_ms=now_ms,
    )


@given(st.randoms(use_true_random=False))
def test_from_version_to_version_nothing_falls_and_nothing_is_forgotten(chance: random.Random) -> None:
    manifest = no_manifest(ORDERS)
    deleted_files, deleted_versions = set[str](), set[int]()
    for step in range(chance.randint(1, 30)):
        before, manifest = manifest, some_step(manifest, chance, step)
        assert manifest.version == before.version + 1
        assert manifest.log_start_offset >= before.log_start_offset
        assert manifest.compacted_to >= before.compacted_to
        assert decode_manifest(encode_manifest(manifest), key=manifest_key(TOPIC, ORDERS, manifest.version)) == manifest

        named, retired = {file.name for file in manifest.files}, {one.name for one in manifest.retired}
        assert not named & (retired | deleted_files), "what is retired comes never back"
        deleted_files |= {one.name for one in before.retired} - retired
        assert {file.name for file in before.files} <= named | retired, "what is named no more is there to be deleted"
        assert all(file.last_offset >= manifest.log_start_offset for file in manifest.files), "whole files below are gone"

        versions = {one.version for one in manifest.superseded}
        deleted_versions |= {one.version for one in before.superseded} - versions
        assert versions | deleted_versions == set(range(1, manifest.version))

        if manifest.epochs:
            asked = manifest.epochs[-1].leader_epoch
            assert asked == max(asked, *(epoch.leader_epoch for epoch in before.epochs), 0), "the newest epoch stays"


def test_a_superseded_version_is_recorded_with_its_writer() -> None:
    first = compacted_to(10, writer=1)
    second = compacted_to(20, before=first, writer=2)
    assert [(one.version, one.writer) for one in second.superseded] == [(1, writer_of(1))]


def test_the_log_start_may_lie_above_what_was_compacted_and_compaction_goes_on_from_there() -> None:
    raised = with_log_start(compacted_to(10), Offset(25), writer=writer_of(2), now_ms=5)
    assert (raised.files, raised.compacted_to, raised.log_start_offset) == ((), 10, 25)
    assert [retired.at_ms for retired in raised.retired] == [5]
    beyond = compacted_to(40, before=raised)
    assert [(file.base_offset, file.last_offset) for file in beyond.files] == [(25, 39)]
    nothing = compacted_to(20, before=raised)
    assert (nothing.files, nothing.compacted_to) == ((), 20)


def test_an_epoch_is_forgotten_once_its_records_are_gone_but_not_where_the_next_one_begins() -> None:
    manifest = compacted_to(30, epochs=[(1, 0), (4, 10), (6, 20)])
    for log_start_offset, left in ((9, [1, 4, 6]), (10, [4, 6]), (29, [6]), (30, [6]), (99, [6])):
        raised = with_log_start(manifest, Offset(log_start_offset), writer=writer_of(1), now_ms=0)
        assert [epoch.leader_epoch for epoch in raised.epochs] == left


def test_an_epoch_that_goes_on_begins_where_it_began() -> None:
    manifest = compacted_to(20, before=compacted_to(10, epochs=[(5, 0)]), epochs=[(5, 10), (7, 15)])
    assert [(epoch.leader_epoch, epoch.start_offset) for epoch in manifest.epochs] == [(5, 0), (7, 15)]


def test_an_edit_that_would_contradict_the_version_before_is_refused() -> None:
    manifest = compacted_to(20, before=compacted_to(10))
    how = {"writer": writer_of(9), "now_ms": 0}
    nothing: dict[str, tuple[()]] = {"epochs": (), "producers": ()}
    names = [file.name for file in manifest.files]

    def files(*new: HistoryFile, to: int) -> Manifest:
        return with_compacted(manifest, files=new, compacted_to=Offset(to), **nothing, **how)  # type: ignore[arg-type]

    with pytest.raises(ValueError, match="reached already"):
        files(to=20)
    with pytest.raises(ValueError, match="begins below 20"):
        files(file_of(19, 25), to=30)
    with pytest.raises(ValueError, match="contradict itself"):
        files(file_of(20, 30), to=30)
    with pytest.raises(ValueError, match="not all there"):
        with_replaced(manifest, old={"another"}, new=(), cause="merge", **how)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="between 0 and 9"):
        with_replaced(manifest, old={names[0]}, new=[file_of(0, 10)], cause="merge", **how)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="starts at 0 already"):
        with_log_start(manifest, Offset(0), **how)  # type: ignore[arg-type]
