"""Writes docs/reference/settings.md from the comments above the fields of settings: `python -m docs.settings_page`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from gateway.memory_shares import MEMORY_BYTES_DEFAULT, PARTS, PROCESS_BYTES, shown_bytes
from gateway.settings import load_settings
from metadata.topics.settings import SETTINGS as TOPIC_SETTINGS
from tidelog.cli.broker.setting_list import AREAS, field_docs, settings_by_area, shown

PAGE = Path(__file__).parent / "reference" / "settings.md"
_ROWS = "| name | default | what it does |\n| --- | --- | --- |\n"

_INTRODUCTION = """\
# Settings

Every setting has one name: as a flag (`--linger-ms 250`), as a variable (`TIDELOG_LINGER_MS=250`) and in a TOML file
(`linger_ms = 250`, read with `--settings FILE`). Flags win over variables, variables over the file. An unknown name is refused.
Bytes may be written as `8MiB`; all times are in milliseconds. Where the bucket is a local directory, `linger_ms` is 5 and
`puts_per_second_max` 400 by default; `tidelog dev` compacts in its one process, after `compaction_due_age_ms` of one minute.
`tidelog compact` takes the same settings. `tidelog serve --list-settings` shows the values that are in force.
"""

_MEMORY = """\
`memory_bytes_max` is the one number to set: what the process may take. {process} of it are for the process itself, and its parts
get shares of the rest. A part that you set takes its bytes first. The others get their shares, or less where not enough is left. A
broker whose parts do not fit does not start, and its error says how much they need. A broker logs a warning where the machine or
container has less memory. The default does not depend on the machine, so that several brokers may run on one, and a broker behaves
the same on each; the chart sets `memory_bytes_max` to the memory limit of the container. Two parts can't be set by name: the cache
of footers (`footer_cache_bytes_max`), and produce requests over gRPC that wait for the buffer (`grpc_waiting_bytes_max`).
Compaction needs memory for its files as well: `compaction_threads` times `history_file_bytes_max`, and `merge_bytes_max` a merge.
Where a broker compacts, its parts get shares of what is left beside these, and at least those of the default.

"""

_OF_TOPICS = """\

## Of a topic

Each topic has its own: `tidelog topic create NAME --set retention.ms=86400000`, `tidelog topic alter NAME --set …`.

"""

_INERT = """
Kafka's tools set others as well, and read them back. A broker checks these as Kafka does, stores and returns them. They change
nothing.

"""


def page() -> str:
    """Returns the text of docs/reference/settings.md."""
    docs = {name: doc for kind in AREAS.values() for name, doc in field_docs(kind).items()}
    defaults = {field.name: field for kind in AREAS.values() for field in dataclasses.fields(kind)}
    areas = ""
    for title, names in settings_by_area().items():
        rows = "".join(f"| `{name}` | {_default(defaults[name])} | {docs[name]} |\n" for name in names)
        areas += f"\n## {title}\n\n{_memory() if title == 'Memory' else ''}{_ROWS}{rows}"
    return _INTRODUCTION + areas + _OF_TOPICS + _table_of_topics()


def _memory() -> str:
    """Returns how memory_bytes_max is divided, for a few sizes."""
    sizes = [MEMORY_BYTES_DEFAULT // 2, MEMORY_BYTES_DEFAULT, 2 * MEMORY_BYTES_DEFAULT, 4 * MEMORY_BYTES_DEFAULT]
    loaded = [load_settings({"data_dir": Path(), "memory_bytes_max": size}, {}) for size in sizes]
    shares = [
        dataclasses.asdict(each.segments) | dataclasses.asdict(each.gateway) | dataclasses.asdict(each.compaction)
        for each in loaded
    ]
    head = "| `memory_bytes_max` | " + " | ".join(shown_bytes(size) for size in sizes) + " |\n" + "| --- " * 5 + "|\n"
    rows = "".join(f"| `{name}` | " + " | ".join(shown_bytes(each[name]) for each in shares) + " |\n" for name in PARTS)
    return _MEMORY.format(process=shown_bytes(PROCESS_BYTES)) + head + rows + "\n"


def _table_of_topics() -> str:
    effective, inert = (
        "".join(
            f"| `{setting.name}` | {_code(setting.default)} | {setting.meaning} It is {setting.allowed}. |\n"
            for setting in TOPIC_SETTINGS.values()
            if setting.inert is is_inert
        )
        for is_inert in (False, True)
    )
    return f"{_ROWS}{effective}{_INERT}{_ROWS}{inert}"


def _default(field: dataclasses.Field[object]) -> str:
    text = "" if field.default is dataclasses.MISSING else shown(field.name, field.default)
    return _code(text)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
