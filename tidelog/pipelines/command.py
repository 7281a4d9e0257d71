"""Runs a pipeline from the command line: the topic from its bucket, through the recipe, to the terminal or to Parquet.

    batch     (no option)                       all that is in the topic now; the first rows are shown
              --into DIR                        written as Parquet
    stream    --into DIR --checkpoint DIR       what came since the last run with this checkpoint, appended; then it ends

Exit codes are those of `tidelog`, and NO_SPARK where Spark can't be started, so that a caller may go on without.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from metadata.errors import InvalidArgument, NotFound
from tidelog.cli.app.errors import guarded, register, say_error
from tidelog.spark import check_spark, spark_session

# EX_UNAVAILABLE of sysexits.h: something that is needed is not installed, or Spark does not start.
NO_SPARK: Final = 69
ROWS_SHOWN: Final = 20
FAILED: Final = 1

Show = Callable[[DataFrame, argparse.Namespace], None]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A recipe with its command line: what it reads, computes and shows."""

    about: str
    # From records, as the source gives them, to what is written.
    recipe: Callable[[DataFrame], DataFrame]
    # Prints a batch on the terminal.
    show: Show
    # None: the user has to name it.
    topic: str | None = "flights"
    writes: bool = True
    # Whether the recipe can be a stream that appends.
    streams: bool = True
    add_arguments: Callable[[argparse.ArgumentParser], None] = lambda _parser: None
    # The module that each argument needs.
    modules: Mapping[str, str] = field(default_factory=dict)


def ordered_by(*columns: str) -> Show:
    """Shows the first rows in the order of these columns, as in "delay desc"."""

    def show(result: DataFrame, _arguments: argparse.Namespace) -> None:
        names = [column.removesuffix(" desc") for column in columns]
        ordered = result.orderBy(names, ascending=[not column.endswith(" desc") for column in columns])
        as_text = {name: ordered[name].cast("string") for name, kind in ordered.dtypes if kind == "binary"}
        ordered.withColumns(as_text).show(ROWS_SHOWN, truncate=60)

    return show


def show_whole(result: DataFrame) -> None:
    result.show(result.count(), truncate=60)


def say(text: str) -> None:
    sys.stderr.write(text + "\n")


def run_pipeline(pipeline: Pipeline, argv: Sequence[str] | None = None) -> int:
    """Runs one command line and returns the exit code. Prints errors on stderr."""
    arguments = parser(pipeline).parse_args(argv)

    def run() -> int:
        try:
            _check(pipeline, arguments)
            check_spark()
            spark = spark_session(f"tidelog {Path(sys.argv[0]).stem}", master=arguments.master)
        except NotFound as missing:
            register(missing)
            return NO_SPARK
        except (PySparkException, Py4JError) as error:
            cause = str(error).strip().split("\n\tat ")[0]  # without the stack of Java
            say_error(f"Spark can't be started: {cause}", ["The output of Java stands above."])
            return NO_SPARK
        try:
            execute(spark, pipeline, arguments)
        except PySparkException as error:
            say_error(shown_spark_error(str(error)), [])
            return FAILED
        finally:
            spark.stop()
        return 0

    return guarded(run)


def shown_spark_error(message: str) -> str:
    """Extracts the message of a Python source from Spark's traceback."""
    said = re.findall(r"PySparkException: (.*)", message)
    return said[-1].strip() if said else message.strip()


def execute(spark: SparkSession, pipeline: Pipeline, arguments: argparse.Namespace) -> None:
    """`arguments`: of `parser(pipeline)`. Raises what Spark raises."""
    source = {"bucket": arguments.bucket, "subscribe": arguments.topic, **dict(arguments.option)}
    if arguments.checkpoint is None:
        result = pipeline.recipe(spark.read.format("tidelog").options(**source).load())
        if arguments.into is None:
            pipeline.show(result, arguments)
        else:
            result.write.parquet(arguments.into)
        return
    source.setdefault("startingOffsets", "earliest")
    stream = pipeline.recipe(spark.readStream.format("tidelog").options(**source).load()).writeStream
    stream = stream.format("parquet").option("path", arguments.into).option("checkpointLocation", arguments.checkpoint)
    stream.trigger(availableNow=True).start().awaitTermination()


def _check(pipeline: Pipeline, arguments: argparse.Namespace) -> None:
    """Checks the arguments before the slow start of Spark."""
    if arguments.checkpoint is not None and arguments.into is None:
        raise InvalidArgument("--checkpoint is given without --into", hint="A stream is written: say where to, by --into DIR.")
    for argument, module in pipeline.modules.items():
        if getattr(arguments, argument) and importlib.util.find_spec(module) is None:
            raise NotFound(f"--{argument} needs {module}", hint="Install it: pip install 'tidelog[demo]'")


def parser(pipeline: Pipeline) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=pipeline.about)
    made.add_argument(
        "--bucket", required=True, metavar="URL", help="s3://BUCKET/PREFIX or file:///DIRECTORY, as its brokers have it"
    )
    default = f" ({pipeline.topic})" if pipeline.topic else ""
    made.add_argument("--topic", default=pipeline.topic, required=pipeline.topic is None, help=f"the topic that is read{default}")
    made.add_argument(
        "--option", action="append", default=[], type=_option, metavar="NAME=VALUE", help="of the source, as startingTimestamp=…"
    )
    made.add_argument("--master", default="local[*]", metavar="URL", help="where Spark runs, without spark-submit (local[*])")
    made.set_defaults(into=None, checkpoint=None)
    if pipeline.writes:
        made.add_argument("--into", metavar="DIR", help="write Parquet there, a path or a URL")
    if pipeline.streams and pipeline.writes:
        made.add_argument("--checkpoint", metavar="DIR", help="read a stream: what came since the last run with this checkpoint")
    pipeline.add_arguments(made)
    return made


def _option(given: str) -> tuple[str, str]:
    name, equals, value = given.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"{given!r} is not NAME=VALUE")
    return name, value
