"""Reads and creates small files through Spark's file systems: a folder of this machine, `s3a://`, or whatever else it has."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from metadata.errors import InvalidArgument, Rejected

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DRAFT: Final = re.compile(r"\..+\.draft")
# Of a local file, which Hadoop does not list.
_CHECKSUM: Final = re.compile(r"\..+\.crc")
# Variables that may give Spark another file system for what has no scheme.
CONFIGURED_BY: Final = frozenset({"PYSPARK_GATEWAY_PORT", "HADOOP_CONF_DIR", "SPARK_CONF_DIR", "SPARK_HOME"})

# Hadoop takes them for letters of a name, where others decode an address or cut it off.
_OF_ADDRESSES: Final = frozenset("%#?")


class HadoopFolder:
    """A folder on a file system that Hadoop reaches through Spark's JVM."""

    def __init__(self, spark: SparkSession, uri: str) -> None:
        """Raises InvalidArgument where this Spark has no such file system."""
        from py4j.protocol import Py4JJavaError

        self.uri = uri.rstrip("/")
        jvm: Any = spark._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        try:
            self._files = self._path(uri).getFileSystem(spark._jsc.hadoopConfiguration())
        except Py4JJavaError as error:
            raise InvalidArgument(
                f"Spark can't reach {uri}: {error.java_exception.getMessage()}",
                hint="Give a folder, or a URI that this Spark knows: s3a:// needs --packages org.apache.hadoop:hadoop-aws.",
            ) from None

    def is_empty(self, *, but: str = "") -> bool:
        """Returns whether the folder is empty, except for the entry `but` and drafts of interrupted `create` calls."""
        path = self._path(self.uri)
        names = [found.getPath().getName() for found in self._files.listStatus(path)] if self._files.exists(path) else []
        return all(name == but or _DRAFT.fullmatch(name) for name in names)

    def names(self, folder: str) -> list[str]:
        """Lists the names in a subfolder; empty if it does not exist."""
        path = self._path(f"{self.uri}/{folder}")
        return [found.getPath().getName() for found in self._files.listStatus(path)] if self._files.exists(path) else []

    def read(self, name: str) -> bytes | None:
        """Reads a file; None if it does not exist."""
        path = self._path(f"{self.uri}/{name}")
        if not self._files.exists(path):
            return None
        stream = self._files.open(path)
        try:
            return bytes(stream.readAllBytes())
        finally:
            stream.close()

    def create(self, name: str, body: bytes) -> None:
        """Creates the file whole, or not at all where the file system can rename. Raises Rejected where it exists.

        Of two at the same moment both may think that they were first, where a rename writes over, as that of local files does.
        """
        path, draft = self._path(f"{self.uri}/{name}"), self._path(f"{self.uri}/.{name}.draft")
        stream = self._files.create(draft, True)
        try:
            stream.write(bytearray(body))
        finally:
            stream.close()
        if self._files.exists(path) or not self._files.rename(draft, path):
            raise Rejected(f"{self.uri}/{name} is there already", hint="Is the same command running elsewhere?")


def local_folder(uri: str, *, master: str, config: Mapping[str, str]) -> Path | None:
    """Returns the local folder that this Spark configuration means by the URI; None if it is not local, or only Spark knows."""
    parts = urlsplit(uri)
    if parts.scheme == "file" and parts.netloc in {"", "localhost"}:
        return None if _OF_ADDRESSES & set(uri) else Path(parts.path)
    is_plain = master.startswith("local") and not CONFIGURED_BY & os.environ.keys()
    if parts.scheme or not is_plain or any(name.endswith("fs.defaultFS") for name in config):
        return None
    return Path(uri)


def is_empty_here(folder: Path, *, but: str = "") -> bool:
    """Does the same as `HadoopFolder.is_empty`, without Spark."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return True
    except NotADirectoryError:
        return False
    return all(name == but or _DRAFT.fullmatch(name) or _CHECKSUM.fullmatch(name) for name in names)
