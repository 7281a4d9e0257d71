"""Apache Kafka from Maven Central: its broker, tools, Connect, MirrorMaker and Streams, and how their main classes are run.

The POM names the artefacts. `java_jars.sha256` names every jar that it brings, with its hash; other jars are refused.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.kafka_suites.cache import CannotPrepare, cached, check_hash, run

VERSION = "4.3.1"
HASHES = Path(__file__).with_name("java_jars.sha256")
KAFKA = "org.apache.kafka"
# Group, artefact, version, classifier.
ARTEFACTS = (
    *((KAFKA, name, VERSION, "") for name in ("kafka_2.13", "kafka-tools", "kafka-streams")),
    *((KAFKA, name, VERSION, "") for name in ("connect-runtime", "connect-file", "connect-mirror")),
    *((KAFKA, name, VERSION, "test") for name in ("kafka-streams", "kafka-clients")),
    ("org.slf4j", "slf4j-simple", "1.7.36", ""),
)
TOOL_TIMEOUT_S = 120.0
# Kafka's own libraries warn of nothing that a test would act on.
LOG_LEVEL = "error"


def pom(artefacts: Sequence[tuple[str, str, str, str]]) -> str:
    def dependency(group: str, name: str, version: str, classifier: str) -> str:
        of_class = f"<classifier>{classifier}</classifier>" if classifier else ""
        named = f"<groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"
        return f"<dependency>{named}{of_class}</dependency>"

    itself = "<modelVersion>4.0.0</modelVersion><groupId>tidelog</groupId><artifactId>suites</artifactId><version>1</version>"
    dependencies = "\n".join(dependency(*artefact) for artefact in artefacts)
    return f'<project xmlns="http://maven.apache.org/POM/4.0.0">{itself}<dependencies>\n{dependencies}\n</dependencies></project>\n'


def copy_jars(artefacts: Sequence[tuple[str, str, str, str]], hashes: Path, folder: Path) -> None:
    """Copies the artefacts and all they need into `folder`. Raises CannotPrepare unless the jars are exactly those of `hashes`."""
    (folder / "pom.xml").write_text(pom(artefacts), encoding="utf-8")
    run(["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={folder}"], cwd=folder)
    lines = [line.split() for line in hashes.read_text(encoding="ascii").splitlines()]
    known = {name: sha256 for sha256, name in lines}
    found = {jar.name for jar in folder.glob("*.jar")}
    if found != known.keys():
        raise CannotPrepare(f"{hashes.name} and Maven name other jars: {', '.join(sorted(found ^ known.keys()))}")
    for name, sha256 in known.items():
        check_hash(folder / name, sha256)


def jars() -> Path:
    """Returns the folder with all jars of Apache Kafka."""
    return cached(f"kafka-{VERSION}", lambda folder: copy_jars(ARTEFACTS, HASHES, folder))


def java(main: str, *arguments: str, heap: str = "256m", warm: bool = False) -> list[str]:
    """Returns the command that runs a main class of Apache Kafka. `warm`: compile for speed, as a broker under load needs it."""
    tuning = [] if warm else ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
    log = f"-Dorg.slf4j.simpleLogger.defaultLogLevel={LOG_LEVEL}"
    return ["java", f"-Xmx{heap}", *tuning, log, "-cp", f"{jars()}/*", main, *arguments]


class ToolFailed(Exception):
    """A tool ended with an error; the message is the last of what it said."""


def tool(
    main: str,
    *arguments: str,
    stdin: str = "",
    timeout_s: float = TOOL_TIMEOUT_S,
    environment: Mapping[str, str] | None = None,
    expect_failure: bool = False,
    warm: bool = False,
) -> str:
    """Runs a main class to its end and returns what it prints. ToolFailed where its exit code is not 0, or it takes too long."""
    try:
        done = subprocess.run(
            java(main, *arguments, warm=warm),
            input=stdin,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired as late:
        said = (late.stdout or b"").decode(errors="replace") if isinstance(late.stdout, bytes) else ""
        raise ToolFailed(f"{main} did not end within {timeout_s:g} s: {said[-300:]}") from None
    said = (done.stdout + done.stderr).strip()
    if (done.returncode == 0) is expect_failure:
        raise ToolFailed(f"{main} ended with {done.returncode}: {said[-600:]}")
    return said if expect_failure else done.stdout


def kafka_scripts(folder: Path) -> Path:
    """Writes `bin/kafka-NAME.sh` for the tools that test suites call by these names. Returns what they know as KAFKA_PATH."""
    mains = {
        "kafka-topics": "org.apache.kafka.tools.TopicCommand",
        "kafka-configs": "kafka.admin.ConfigCommand",
        "kafka-acls": "org.apache.kafka.tools.AclCommand",
        "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    }
    scripts = folder / "bin"
    scripts.mkdir(exist_ok=True)
    for name, main in mains.items():
        script = scripts / f"{name}.sh"
        words = " ".join(f"'{word}'" for word in java(main))
        script.write_text(f'#!/bin/sh\nexec {words} "$@"\n', encoding="utf-8")
        script.chmod(0o755)
    return folder


def major_version() -> int:
    """Returns the major version of the Java on the PATH."""
    said = subprocess.run(["java", "-version"], capture_output=True, text=True).stderr
    found = re.search(r'version "(\d+)', said)
    return int(found[1]) if found else 0


if __name__ == "__main__":  # prints the hashes of what Maven brings, to be compared and committed when VERSION changes
    import hashlib

    for jar in sorted(Path(sys.argv[1]).glob("*.jar")):
        print(f"{hashlib.sha256(jar.read_bytes()).hexdigest()}  {jar.name}")
