"""Groups whose members are no consumers: Kafka Connect, schema registries, Kafka Streams. Their metadata is opaque here."""

from __future__ import annotations

import pytest

from metadata.errors import InconsistentProtocol, TooLarge
from metadata.groups.classic.join import join
from metadata.groups.classic.rebalance_barrier import Step
from metadata.groups.classic.state_machine import check_commit, check_heartbeat, leave, sync
from metadata.groups.model import (
    Generation,
    Group,
    GroupPhase,
    InstanceId,
    Joined,
    JoinRequest,
    MemberId,
    Protocol,
    Synced,
    SyncRequest,
    Waiter,
)
from metadata.groups.record import decode_group, encode_group
from metadata.groups.settings import GroupSettings
from metadata.model import Revision, SessionId
from metadata.store.interface import KeyValue

SETTINGS = GroupSettings(group_initial_rebalance_delay_ms=0)
KINDS = ["connect", "sr", "streams", "anything else"]
# No version of a consumer's subscription, nor UTF-8.
OPAQUE = bytes(range(256))


def asked(kind: str, metadata: bytes = OPAQUE, member_id: str = "") -> JoinRequest:
    return JoinRequest(MemberId(member_id), InstanceId(""), "client", "10.0.0.7", kind, (Protocol("v1", metadata),), 10_000, 60_000)


def joined(kind: str, metadata: bytes = OPAQUE) -> tuple[Group, Joined]:
    step: Step = join(Group(), asked(kind, metadata), Waiter(1), new_member_id=MemberId("m"), now_ms=0, settings=SETTINGS)
    ((_, answer),) = step.answers
    assert isinstance(answer, Joined)
    return step.group, answer


def synced(group: Group, kind: str, assignment: bytes) -> Step:
    request = SyncRequest(MemberId("m"), InstanceId(""), group.generation, {MemberId("m"): assignment}, kind, "v1")
    return sync(group, request, Waiter(2), settings=SETTINGS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_group_of_any_protocol_type_joins_syncs_beats_commits_and_leaves(kind: str) -> None:
    group, answer = joined(kind)
    assert (answer.protocol_type, answer.protocol, answer.leader) == (kind, "v1", "m")
    assert [member.metadata for member in answer.members] == [OPAQUE]
    step = synced(group, kind, OPAQUE[::-1])
    assert step.answers == ((Waiter(2), Synced(kind, "v1", OPAQUE[::-1])),)
    check_heartbeat(step.group, MemberId("m"), InstanceId(""), Generation(1))
    check_commit(step.group, MemberId("m"), InstanceId(""), Generation(1))
    gone = leave(step.group, MemberId("m"), InstanceId(""), now_ms=0, settings=SETTINGS).group
    assert gone.members == {}


@pytest.mark.parametrize("kind", KINDS)
def test_the_bytes_of_a_member_of_any_protocol_type_are_stored_as_they_were(kind: str) -> None:
    stable = synced(joined(kind)[0], kind, OPAQUE).group
    assert stable.phase is GroupPhase.STABLE
    kept = KeyValue("/tidelog/groups/g", encode_group(stable, SessionId(1)), Revision(1), Revision(1), 1)
    (member,) = decode_group(kept, now_ms=0).members.values()
    assert (member.metadata("v1"), member.assignment) == (OPAQUE, OPAQUE)
    assert (member.client_id, member.client_host) == ("client", "10.0.0.7")


def test_a_sync_of_another_protocol_type_or_name_is_refused() -> None:
    group, _ = joined("connect")
    for kind, name in (("consumer", "v1"), ("connect", "v2")):
        request = SyncRequest(MemberId("m"), InstanceId(""), group.generation, {}, kind, name)
        with pytest.raises(InconsistentProtocol):
            sync(group, request, Waiter(2), settings=SETTINGS)


def test_metadata_and_assignments_of_256_kib_are_taken_and_no_more() -> None:
    most = 256 << 10
    group, _ = joined("streams", bytes(most - len("v1")))
    assert synced(group, "streams", bytes(most)).group.phase is GroupPhase.STABLE
    with pytest.raises(TooLarge):
        joined("streams", bytes(most))
    with pytest.raises(TooLarge):
        synced(group, "streams", bytes(most + 1))
