"""The check of the tables against Apache's definitions finds what differs."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from gateway.kafka.protocol.schema import definitions
from tests.kafka.check_tables import differences

HEARTBEAT = next(definition for definition in definitions() if definition.name == "Heartbeat")
REQUEST: dict[str, Any] = {
    "apiKey": 12,
    "type": "request",
    "name": "HeartbeatRequest",
    "validVersions": "0-4",
    "flexibleVersions": "4+",
    "fields": [
        {"name": "GroupId", "type": "string", "versions": "0+"},
        {"name": "GenerationId", "type": "int32", "versions": "0+"},
        {"name": "MemberId", "type": "string", "versions": "0+"},
        {"name": "GroupInstanceId", "type": "string", "versions": "3+", "nullableVersions": "3+", "default": "null"},
    ],
}
RESPONSE: dict[str, Any] = {
    "apiKey": 12,
    "type": "response",
    "name": "HeartbeatResponse",
    "validVersions": "0-4",
    "flexibleVersions": "4+",
    "fields": [
        {"name": "ThrottleTimeMs", "type": "int32", "versions": "1+", "ignorable": True},
        {"name": "ErrorCode", "type": "int16", "versions": "0+"},
    ],
}


def _jar(folder: Path, *found: dict[str, Any]) -> Path:
    jar = folder / "kafka-clients.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        for each in found:
            archive.writestr(f"common/message/{each['name']}.json", "// A licence.\n" + json.dumps(each))
    return jar


def test_tables_that_agree_have_no_differences(tmp_path: Path) -> None:
    assert list(differences(_jar(tmp_path, REQUEST, RESPONSE), [HEARTBEAT])) == []


@pytest.mark.parametrize(
    ("index", "change", "found"),
    [
        (0, {"type": "bytes"}, "GroupId: type string, there bytes"),
        (1, {"default": "-1"}, "GenerationId: default 0, there -1"),
        (2, {"versions": "1+"}, "MemberId: versions"),
        (2, {"name": "Member"}, "fields"),
        (3, {"nullableVersions": "4+"}, "GroupInstanceId: null"),
        (3, {"tag": 1, "taggedVersions": "4+"}, "GroupInstanceId: tag None, there 1"),
    ],
)
def test_a_difference_of_a_field_is_named(tmp_path: Path, index: int, change: dict[str, Any], found: str) -> None:
    fields = [{**each, **change} if at == index else each for at, each in enumerate(REQUEST["fields"])]
    (first, *_) = differences(_jar(tmp_path, {**REQUEST, "fields": fields}, RESPONSE), [HEARTBEAT])
    assert found in first


def test_differences_of_versions_are_named(tmp_path: Path) -> None:
    changed = {**REQUEST, "validVersions": "1-4", "flexibleVersions": "3+", "latestVersionUnstable": True}
    found = "\n".join(differences(_jar(tmp_path, changed, RESPONSE), [HEARTBEAT]))
    assert "are not all within" in found
    assert "is not stable" in found
    assert "flexible" in found


def test_a_jar_without_the_api_is_named(tmp_path: Path) -> None:
    assert list(differences(_jar(tmp_path, RESPONSE), [HEARTBEAT])) == ["HeartbeatRequest: the jar has no request of API 12"]
