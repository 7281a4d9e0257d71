"""`tidelog key|acl|quota` against a real broker with authentication on, and the SDK with the keys that they make."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import tidelog
from metadata.errors import Denied, InvalidArgument, NotAuthorized
from tests.kit.gateway.access.guarded_broker import ADMIN_KEY, guarded
from tidelog.cli.app import progress
from tidelog.cli.keys import expiry_ms, parse_scope
from tidelog.cli.main import run
from tidelog.cli.quotas import parse_bytes

NOW_MS = 1_767_225_600_000


class Commands:
    def __init__(self, capsys: pytest.CaptureFixture[str], url: str, audit_file: Path) -> None:
        self._capsys = capsys
        self.url = url
        self.audit_file = audit_file

    def __call__(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        found = run(arguments)
        shown = self._capsys.readouterr()
        assert found == code, (arguments, shown)
        return shown.out, shown.err

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "-o", "json")[0])


@pytest.fixture
def commands(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Commands]:
    """A broker in a thread of its own; who runs a command is its administrator."""
    ready, stop = threading.Event(), threading.Event()
    found: list[tuple[str, Path]] = []

    async def broker() -> None:
        async with guarded(tmp_path) as at:
            found.append((f"http://{at.broker.http_address}", at.audit_file))
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(broker()))
    thread.start()
    try:
        assert ready.wait(60)
        url, audit_file = found[0]
        monkeypatch.setenv("TIDELOG_URL", url)
        monkeypatch.setenv("TIDELOG_API_KEY", ADMIN_KEY)
        yield Commands(capsys, url, audit_file)
    finally:
        stop.set()
        thread.join(60)


@pytest.mark.slow
def test_a_principal_from_its_first_key_to_the_revocation(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    commands("topic", "create", "orders", "-p", "1")
    made = commands.json("key", "create", "billing", "--expires", "90d", "--description", "nightly", "--scope", "all:topic:ord*")
    assert made["key"].startswith(f"tlk_{made['key_id']}_")
    assert made["scopes"] == ["all:topic:ord*"]
    listed, _ = commands("key", "list")
    assert made["key_id"] in listed
    assert made["key"] not in listed
    assert "nightly" in listed
    acl = commands.json("acl", "add", "billing", "write", "--topic", "orders")
    assert commands.json("acl", "add", "billing", "write", "--topic", "orders") == acl
    _, reported = commands("acl", "list", "--principal", "others")
    assert "there are no ACLs of others; they count where `authentication` is on" in reported

    with tidelog.connect_sync(commands.url, api_key=made["key"]) as log:
        assert log.produce("orders", {"id": 7}).offset == 0
        with pytest.raises(NotAuthorized) as why:
            log.access.keys()
        assert "billing has no right to admin the cluster" in why.value.message
        with pytest.raises(NotAuthorized):
            list(log.consume("orders", follow=False))
    commands("acl", "add", "billing", "read", "--topic", "ord", "--prefix")
    monkeypatch.setenv("TIDELOG_API_KEY", made["key"])
    assert '"id":7' in commands("consume", "orders")[0].replace(" ", "")
    _, reported = commands("topic", "create", "another", code=1)
    assert "billing has no right to create topic another" in reported
    assert "tidelog acl add billing create --topic another" in reported

    monkeypatch.setenv("TIDELOG_API_KEY", ADMIN_KEY)
    assert "would be revoked" in commands("key", "revoke", made["key_id"], "--dry-run")[1]
    assert commands.json("key", "revoke", made["key_id"])["state"] == "revoked"
    with pytest.raises(Denied, match="was revoked"), tidelog.connect_sync(commands.url, api_key=made["key"]) as log:
        log.topics.list()
    removed = commands("acl", "remove", acl["acl_id"])[1]
    assert "billing is no longer allowed to write topic orders" in removed
    assert ADMIN_KEY.split("_")[2] not in commands.audit_file.read_text()


@pytest.mark.slow
def test_a_refused_command_names_the_acl_to_ask_for(commands: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    commands("topic", "list")
    assert "no topics, or none that these credentials may see" in commands("topic", "list")[1]
    commands("topic", "create", "orders", "-p", "1")
    made = commands.json("key", "create", "billing", "--expires", "1d")
    monkeypatch.setenv("TIDELOG_API_KEY", made["key"])
    _, reported = commands("topic", "list")
    assert "tidelog acl add PRINCIPAL describe --topic NAME" in reported
    records = tmp_path / "records"
    records.write_text("hi\n")
    _, reported = commands("produce", "orders", "--file", str(records), code=1)
    assert (
        "To write: tidelog acl add billing write --topic orders; to read: tidelog acl add billing read --topic orders" in reported
    )
    _, reported = commands("group", "describe", "billing", code=1)
    assert "To be a member: tidelog acl add billing read --group billing" in reported

    monkeypatch.setenv("TIDELOG_API_KEY", ADMIN_KEY)
    commands("acl", "add", "billing", "write", "--topic", "orders")
    monkeypatch.setenv("TIDELOG_API_KEY", made["key"])
    commands("produce", "orders", "--file", str(records))


@pytest.mark.slow
def test_an_empty_topic_that_may_not_be_read_is_refused_as_one_with_records(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands("topic", "create", "orders", "-p", "2")
    commands("acl", "add", "watcher", "describe", "--topic", "orders")
    commands("acl", "add", "reader", "read", "--topic", "orders")
    keys = {who: commands.json("key", "create", who, "--expires", "1d")["key"] for who in ("watcher", "reader")}
    monkeypatch.setenv("TIDELOG_API_KEY", keys["watcher"])
    _, reported = commands("consume", "orders", code=1)
    assert "watcher has no right to read topic orders" in reported
    monkeypatch.setenv("TIDELOG_API_KEY", keys["reader"])
    assert commands("consume", "orders")[1] == "no records in orders from earliest on\n"


@pytest.mark.slow
def test_a_producer_that_is_throttled_says_by_what(commands: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    commands("topic", "create", "orders", "-p", "1")
    commands("acl", "add", "billing", "all", "--topic", "orders")
    commands("quota", "set", "billing", "--bytes-in", "128KiB")
    monkeypatch.setenv("TIDELOG_API_KEY", commands.json("key", "create", "billing")["key"])
    records = tmp_path / "records"
    records.write_text(("x" * 1023 + "\n") * 1024)
    monkeypatch.setattr(progress, "THROTTLED_SHOWN_S", 0.0)  # a busy machine may not look eight times while it holds
    _, reported = commands("produce", "orders", "--file", str(records))
    assert reported.count("throttled: ") == 1
    assert "billing has used up its bytes_in_per_second of 131072 at this broker; this goes on by itself" in reported


@pytest.mark.slow
def test_quotas_are_set_listed_and_removed_in_all_forms(commands: Commands) -> None:
    commands("quota", "set", "billing", "--bytes-in", "10MiB", "--requests", "5")
    assert commands.json("quota", "list") == [
        {
            "principal": "billing",
            "bytes_in_per_second": 10 << 20,
            "bytes_out_per_second": None,
            "requests_per_second": 5,
        }
    ]
    for form, read in (("yaml", yaml.safe_load), ("ndjson", json.loads)):
        reported = read(commands("quota", "list", "-o", form)[0])
        assert (reported[0] if isinstance(reported, list) else reported)["requests_per_second"] == 5
    for command in (("key", "list"), ("acl", "list")):
        for form in ("table", "json", "yaml", "ndjson"):
            commands(*command, "-o", form)
    commands("quota", "set", "billing", code=2)
    commands("quota", "remove", "billing")
    assert "there are no quotas" in commands("quota", "list")[1]
    commands("quota", "remove", "billing", code=1)
    commands("acl", "add", "billing", "read", code=2)
    commands("acl", "add", "billing", "fly", "--cluster", code=2)
    assert "the first member creates the group" in commands("acl", "add", "billing", "create", "--group", "g", code=2)[1]


@pytest.mark.slow
def test_a_team_that_may_create_its_topics_may_not_delete_them(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    acl = commands.json("acl", "add", "team", "create", "--topic", "team-", "--prefix")
    assert (acl["operation"], acl["name"], acl["pattern"]) == ("create", "team-", "prefix")
    commands("acl", "add", "owner", "all", "--topic", "*")
    narrow = commands.json("key", "create", "owner", "--scope", "create:topic:team-*")
    assert narrow["scopes"] == ["create:topic:team-*"]
    keys = {"team": commands.json("key", "create", "team")["key"], "owner": narrow["key"]}
    for who, why in (("team", "team has no right to"), ("owner", "this API key of owner is narrowed")):
        monkeypatch.setenv("TIDELOG_API_KEY", keys[who])
        commands("topic", "create", f"team-{who}", "-p", "1")
        assert why in commands("topic", "create", "orders", code=1)[1]
        assert why in commands("topic", "delete", f"team-{who}", "--yes", code=1)[1]


def test_a_key_for_a_file_is_made_without_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(("key", "generate")) == 0
    first = capsys.readouterr().out
    assert run(("key", "generate")) == 0
    assert first.startswith("tlk_")
    assert first != capsys.readouterr().out


def test_the_time_that_a_key_counts_begins_when_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[int] = []
    clock_ns = [NOW_MS * 1_000_000]

    async def create_key(principal: str, *, expires_at_ms: int, **rest: Any) -> Any:
        asked.append(expires_at_ms)
        raise InvalidArgument("that is enough")

    def with_client(url: str, command: Any, **rest: Any) -> Any:
        clock_ns[0] += 5_000_000_000  # it took long to connect
        return asyncio.run(command(SimpleNamespace(access=SimpleNamespace(create_key=create_key))))

    monkeypatch.setattr("tidelog.cli.keys.with_client", with_client)
    monkeypatch.setattr("time.time_ns", lambda: clock_ns[0])
    assert run(("key", "create", "billing", "--expires", "soon")) == 2
    assert not asked
    assert run(("key", "create", "billing", "--expires", "1s")) == 2
    assert asked == [NOW_MS + 6_000]
    assert "that is enough" in capsys.readouterr().err


def test_times_scopes_and_bytes_are_read_as_people_write_them() -> None:
    assert expiry_ms("", NOW_MS) == 0
    assert expiry_ms("90d", NOW_MS) == NOW_MS + 90 * 86_400_000
    assert expiry_ms("2026-01-01T00:00:01Z", NOW_MS) == NOW_MS + 1000
    for wrong in ("soon", "2026-01-01T00:00:01", "d", "-1d"):
        with pytest.raises(InvalidArgument):
            expiry_ms(wrong, NOW_MS)
    assert parse_scope("read:topic:ord*").pattern == "prefix"
    assert parse_scope("read:topic").name == "*"
    assert parse_scope("admin:cluster").resource == "cluster"
    with pytest.raises(InvalidArgument):
        parse_scope("read")
    assert [parse_bytes("--bytes-in", text) for text in ("0", "512KiB", "1 GiB")] == [0, 512 << 10, 1 << 30]
    with pytest.raises(InvalidArgument):
        parse_bytes("--bytes-in", "ten")
