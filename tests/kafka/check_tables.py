"""Compares the tables of Kafka's protocol, field by field, with the message definitions inside Apache's kafka-clients jar.

    python -m tests.kafka.check_tables kafka-clients-4.3.1.jar

`mvn dependency:copy -Dartifact=org.apache.kafka:kafka-clients:4.3.1 -DoutputDirectory=.` fetches the jar from Maven Central.
Prints each difference, and ends with exit code 1 where there is one. Nothing of the jar is kept.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gateway.kafka.protocol.schema import Definition, Field, Message, Struct, Versions, definitions

_NEWEST = 32_767
# What a type is where its definition names no default.
_ZEROS = {"bool": "false", "string": "", "uuid": "0", "bytes": "", "records": "", "float64": "0"}


def differences(jar: Path, tables: Sequence[Definition]) -> Iterator[str]:
    """One sentence for each difference."""
    apaches = dict(_definitions(jar))
    for definition in tables:
        for kind, message in (("request", definition.request), ("response", definition.response)):
            theirs = apaches.get((definition.key, kind))
            if theirs is None:
                yield f"{message.name}: the jar has no {kind} of API {definition.key}"
            else:
                yield from _message(message, theirs)


def _definitions(jar: Path) -> Iterator[tuple[tuple[int, str], dict[str, Any]]]:
    with zipfile.ZipFile(jar) as archive:
        for name in archive.namelist():
            if re.fullmatch(r"common/message/\w+(Request|Response)\.json", name):
                text = re.sub(r"^\s*//.*$", "", archive.read(name).decode(), flags=re.MULTILINE)
                found = json.loads(text)
                if "apiKey" in found:
                    yield (found["apiKey"], found["type"]), found


def _message(message: Message, theirs: Mapping[str, Any]) -> Iterator[str]:
    if message.name != theirs["name"]:
        yield f"{message.name}: is called {theirs['name']}"
    valid = _versions(theirs["validVersions"])
    if valid is None or not message.versions.within(valid):
        yield f"{message.name}: versions {message.versions} are not all within {valid}"
    if theirs.get("latestVersionUnstable") and valid is not None and message.versions.last == valid.last:
        yield f"{message.name}: version {valid.last} is not stable"
    flexible = _meet(_versions(theirs["flexibleVersions"]), message.versions)
    if flexible != message.flexible:
        yield f"{message.name}: flexible {message.flexible}, there {flexible}"
    common = {struct["name"]: struct["fields"] for struct in theirs.get("commonStructs", ())}
    named = _named(theirs["fields"], common)
    yield from _struct(message.name, message, message.root, theirs["fields"], named, message.versions)
    if extra := message.structs.keys() - named.keys():
        yield f"{message.name}: has structs of its own: {sorted(extra)}"


def _named(fields: Sequence[Mapping[str, Any]], common: dict[str, Any]) -> dict[str, Any]:
    """The fields of each struct of a message, by its name."""
    found = dict(common)
    for each in [*fields, *(inner for struct in common.values() for inner in struct)]:
        if "fields" in each:
            found[each["type"].removeprefix("[]")] = each["fields"]
            found.update(_named(each["fields"], {}))
    return found


def _struct(
    path: str, message: Message, ours: Struct, theirs: Sequence[Mapping[str, Any]], named: Mapping[str, Any], parent: Versions
) -> Iterator[str]:
    expected = {each["name"]: each for each in theirs if _meet(_versions(each["versions"]), parent) is not None}
    if [each.name for each in ours.fields] != list(expected):
        yield f"{path}: fields {[each.name for each in ours.fields]}, there {list(expected)}"
    for each in ours.fields:
        there = expected.get(each.name)
        if there is None:
            continue
        here = _facts_of(each)
        facts = _facts_there(there, parent)
        for fact, value in facts.items():
            if here[fact] != value:
                yield f"{path}.{each.name}: {fact} {here[fact]}, there {value}"
        if each.is_struct and each.type in named:
            yield from _struct(f"{path}.{each.name}", message, message.structs[each.type], named[each.type], named, each.versions)


def _facts_of(each: Field) -> dict[str, object]:
    default = each.default if each.default is not None else _zero(each.type, each.is_array)
    return {
        "type": ("[]" if each.is_array else "") + each.type,
        "versions": each.versions,
        "null": each.nullable,
        "tag": each.tag,
        "tagged": each.tagged,
        "default": _normal(default.strip('"'), each.type),
    }


def _facts_there(there: Mapping[str, Any], parent: Versions) -> dict[str, object]:
    versions = _meet(_versions(there["versions"]), parent)
    assert versions is not None
    kind = there["type"].removeprefix("[]")
    default = str(there.get("default", _zero(kind, there["type"] != kind)))
    if there.get("flexibleVersions") is not None:
        raise ValueError(f"{there['name']} overrides its message's flexible versions, which the tables cannot say")
    return {
        "type": there["type"],
        "versions": versions,
        "null": _meet(_versions(there.get("nullableVersions", "none")), versions),
        "tag": there.get("tag"),
        "tagged": _meet(_versions(there.get("taggedVersions", "none")), versions),
        "default": _normal(default, kind),
    }


def _zero(kind: str, is_array: bool) -> str:
    return "" if is_array else _ZEROS.get(kind, "" if kind[0].isupper() else "0")


def _normal(default: str, kind: str) -> str:
    if default == "null" or kind in ("string", "bytes", "records", "float64") or kind[0].isupper():
        return default
    return default.lower() if kind == "bool" else str(int(default, 0)) if default else default


def _versions(text: str) -> Versions | None:
    if text == "none":
        return None
    if text.endswith("+"):
        return Versions(int(text[:-1]), _NEWEST)
    first, _, last = text.partition("-")
    return Versions(int(first), int(last or first))


def _meet(one: Versions | None, other: Versions) -> Versions | None:
    if one is None or one.first > other.last or one.last < other.first:
        return None
    return Versions(max(one.first, other.first), min(one.last, other.last))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jar", type=Path)
    tables = definitions()
    found = list(differences(parser.parse_args().jar, tables))
    for difference in found:
        print(difference)
    fields = sum(len(s.fields) for each in tables for m in (each.request, each.response) for s in (m.root, *m.structs.values()))
    print(f"{len(tables)} APIs, {fields} fields, {len(found)} differences")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
