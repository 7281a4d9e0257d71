"""Writes docs/settings.md from the comments above the fields of settings: `python -m docs.settings_page`. A test compares them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from compaction.settings import CompactionSettings
from gateway.access.settings import AccessSettings
from gateway.cluster.settings import ClusterSettings
from gateway.net.tls.settings import TlsSettings
from gateway.settings import BrokerSettings, GatewaySettings
from gateway.telemetry.settings import ObservabilitySettings
from metadata.groups.settings import GroupSettings
from metadata.setting_fields import is_fixed
from metadata.store.etcd.settings import EtcdSettings
from metadata.topics.settings import SETTINGS as TOPIC_SETTINGS
from metadata.topics.settings import TopicSettings
from segments.object_store.s3_settings import S3Settings
from segments.settings import SegmentSettings
from tidelog.cli.broker.setting_list import field_docs, shown

PAGE = Path(__file__).with_name("settings.md")
SECTIONS = {
    "The broker": BrokerSettings,
    "The log": SegmentSettings,
    "Compaction": CompactionSettings,
    "The doors": GatewaySettings,
    "S3": S3Settings,
    "The cluster": ClusterSettings,
    "Consumer groups": GroupSettings,
    "etcd": EtcdSettings,
    "TLS": TlsSettings,
    "Who may do what": AccessSettings,
    "Logs, traces and metrics": ObservabilitySettings,
}

_INTRODUCTION = """\
# Settings

Every setting has one name: as a flag (`--linger-ms 250`), as a variable (`TIDELOG_LINGER_MS=250`) and in a TOML file
(`linger_ms = 250`, read with `--settings FILE`). Flags win over variables, variables over the file. An unknown name is refused.
Bytes may be written as `8MiB`. Where the bucket is a local directory, `linger_ms` is 5 and `puts_per_second_max` 400 by default;
`tidelog dev` compacts in its one process, after `compaction_due_age_ms` of one minute. `tidelog compact` takes the same settings.
"""


_OF_TOPICS = """\

## Of a topic

Each topic has its own: `tidelog topic create NAME --set retention.ms=86400000`, `tidelog topic alter NAME --set …`.

"""


def page() -> str:
    of_brokers = "".join(f"\n## {title}\n\n{_table(settings)}" for title, settings in SECTIONS.items())
    return _INTRODUCTION + of_brokers + _OF_TOPICS + _table_of_topics()


def _table_of_topics() -> str:
    defaults = TopicSettings()
    rows = [
        f"| `{setting.name}` | `{getattr(defaults, setting.attribute)}` | {setting.meaning} It is {setting.allowed}. |"
        for setting in TOPIC_SETTINGS.values()
    ]
    return "\n".join(["| name | default | what it does |", "| --- | --- | --- |", *rows]) + "\n"


def _table(settings: type[Any]) -> str:
    docs = field_docs(settings)
    rows = [
        f"| `{field.name}` | {_default(field)} | {docs.get(field.name, '')} |"
        for field in dataclasses.fields(settings)
        if not dataclasses.is_dataclass(field.default_factory) and not is_fixed(field)
    ]
    return "\n".join(["| name | default | what it does |", "| --- | --- | --- |", *rows]) + "\n"


def _default(field: dataclasses.Field[Any]) -> str:
    text = "" if field.default is dataclasses.MISSING else shown(field.name, field.default)
    return f"`{text}`" if text else ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
