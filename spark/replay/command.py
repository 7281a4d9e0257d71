"""`tidelog replay`: history of topics into another topic, Parquet files or a table, by Spark; replay.py does it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from metadata.errors import InvalidArgument
from tidelog.cli.app.contexts import UrlOption, cluster_access
from tidelog.cli.app.credential_options import NAMES, given_credentials
from tidelog.cli.app.errors import FAILED
from tidelog.cli.app.output import Output, OutputOption, say, show_one

if TYPE_CHECKING:
    from spark.replay.plan import ReplayRequest
    from tidelog.settings import SettingChanges


def replay(
    topic: Annotated[list[str], typer.Argument(metavar="TOPIC", help="Topics to read.", show_default=False)],
    bucket: Annotated[
        str, typer.Option("--bucket", metavar="URL", help="Bucket of the log, as its brokers name it.", show_default=False)
    ],
    into_topic: Annotated[
        str, typer.Option("--into-topic", metavar="NAME", help="Write into this topic, through its brokers.", show_default=False)
    ] = "",
    into_parquet: Annotated[
        str, typer.Option("--into-parquet", metavar="PATH", help="Write Parquet files: a new folder, or a URI.", show_default=False)
    ] = "",
    into_table: Annotated[
        str, typer.Option("--into-table", metavar="NAME", help="Append to a table of Spark's catalog.", show_default=False)
    ] = "",
    start: Annotated[
        str,
        typer.Option("--from", metavar="PLACE", help="earliest, 1h (ago), 2026-01-31T12:00:00Z, an offset, or JSON of offsets."),
    ] = "earliest",
    end: Annotated[
        str,
        typer.Option(
            "--to", metavar="PLACE", help="latest, resolved when the replay begins, or as --from. This offset itself is left out."
        ),
    ] = "latest",
    where: Annotated[
        str,
        typer.Option(
            "--where",
            metavar="SQL",
            help="Only records that meet this condition of Spark SQL over the columns.",
            show_default=False,
        ),
    ] = "",
    checkpoint: Annotated[
        str,
        typer.Option(
            "--checkpoint",
            metavar="PATH",
            help="A folder or URI that stores the progress. The same command line continues from there. "
            "[default with --into-parquet: _checkpoint in it]",
            show_default=False,
        ),
    ] = "",
    keep_partitions: Annotated[
        bool | None,
        typer.Option(
            "--keep-partitions/--by-key",
            help="Each record into the partition that it has, or by its key. [default: keep where the counts are equal]",
            show_default=False,
        ),
    ] = None,
    url: UrlOption = "",
    staging: Annotated[
        str,
        typer.Option(
            "--staging",
            metavar="URL",
            help="With --into-topic: the bucket of its brokers, where it is another one than --bucket.",
            show_default=False,
        ),
    ] = "",
    batch_offsets: Annotated[
        int, typer.Option("--batch-offsets", metavar="COUNT", min=1, help="Most offsets that are repeated after a crash.")
    ] = 2_000_000,
    master: Annotated[
        str, typer.Option("--master", metavar="URL", help="Master of Spark. Inside spark-submit, its own applies.")
    ] = "local[*]",
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark. Repeatable.", show_default=False),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Reads topics over a range of offsets or time, and writes each record once into a topic, Parquet or a table.

    \b
    tidelog replay orders --bucket s3://lake/log \\
        --from 2026-01-01 --to 2026-02-01 --into-parquet s3a://lake/january
    tidelog replay orders --bucket s3://lake/log --into-topic orders-eu \\
        --checkpoint ./to-eu \\
        --where "get_json_object(cast(value as string), '$.region') = 'eu'"

    It keeps keys, values, headers and timestamps, and the order within a partition. If it ends early, the same command line
    continues it. At the end it counts both sides: exit code 1 if they differ.
    """
    from spark.replay.plan import PartitionChoice, ReplayRequest, ReplayTarget

    given = {ReplayTarget.TOPIC: into_topic, ReplayTarget.PARQUET: into_parquet, ReplayTarget.TABLE: into_table}
    targets = [target for target, name in given.items() if name]
    if len(targets) != 1:
        raise InvalidArgument(
            "where to? " + ("Two targets are given" if targets else "No target is given"),
            hint="Give one of --into-topic, --into-parquet and --into-table.",
        )
    (target,) = targets
    if not checkpoint and target is not ReplayTarget.PARQUET:
        raise InvalidArgument(
            "--checkpoint is missing: it remembers how far the replay is, so that nothing is written twice",
            hint="Give a folder, or a URI that Spark can write, of its own to each replay.",
        )
    if target is not ReplayTarget.TOPIC and (staging or keep_partitions is not None):
        raise InvalidArgument("--staging, --keep-partitions and --by-key are of --into-topic", hint="Leave them out.")
    for one in conf or []:
        if "=" not in one:
            raise InvalidArgument(f"--conf {one} has no value", hint="Give --conf NAME=VALUE.")
    placement = {None: PartitionChoice.AUTO, True: PartitionChoice.KEEP, False: PartitionChoice.BY_KEY}[keep_partitions]
    asked = ReplayRequest(tuple(dict.fromkeys(topic)), bucket, start, end, target, given[target], where, placement)
    raise typer.Exit(_run(asked, checkpoint, url, staging, batch_offsets, master, conf or [], output))


def _run(
    asked: ReplayRequest,
    checkpoint: str,
    url: str,
    staging: str,
    batch_offsets: int,
    master: str,
    conf: list[str],
    output: Output,
) -> int:
    from spark.runtime.session import check_spark, spark_session

    check_spark()  # before the modules that need it
    from spark.replay import replay as replays
    from spark.replay.plan import PLAN_FILE, ReplayPlan, ReplayTarget
    from spark.runtime.hadoop_files import local_folder
    from tidelog.cli.app.progress import offset_progress

    is_topic = asked.target is ReplayTarget.TOPIC
    access = cluster_access(url, os.environ, given_credentials()) if is_topic else None
    running = replays.Running(
        checkpoint=checkpoint or f"{asked.into.rstrip('/')}/{replays.CHECKPOINT}",
        brokers=access.url if access is not None else "",
        credentials=_files_of(access.credentials) if access is not None else {},
        staging=staging,
        batch_offsets=batch_offsets,
    )
    config = dict(one.split("=", 1) for one in conf)
    checkpoint_here = local_folder(running.checkpoint, master=master, config=config)
    begins = checkpoint_here is not None and not (checkpoint_here / PLAN_FILE).exists()
    replays.check_source(asked, begins=begins)
    if checkpoint_here is not None and begins:
        replays.check_target_here(asked, checkpoint_here, local_folder(asked.into, master=master, config=config))
    into = replays.target_topic(asked, running)
    say(f"starting Spark ({master})")
    spark = spark_session("tidelog replay", master=master, config=config)
    try:
        with offset_progress(f"replay into {asked.into}") as show:
            total = 0

            def began(plan: ReplayPlan, done: int) -> None:
                nonlocal total
                total = plan.offset_count
                goes_on = f"goes on at {100 * done // max(1, total)} %: " if done else ""
                how = {True: ", each in its partition", False: ", partitioned by key"}[plan.keeps_partitions] if is_topic else ""
                say(f"{goes_on}{total:,} offsets of {', '.join(plan.ranges)} into {asked.into}{how}")
                show(done, total, 0)

            verdict = replays.replay(
                spark,
                asked,
                running,
                into=into,
                began=began,
                report=lambda progress: show(progress.offsets, total, progress.records),
            )
    except KeyboardInterrupt:
        say(f"interrupted: what is written stays. {replays.RUN_AGAIN}")
        raise
    finally:
        spark.stop()
    if output is not Output.TABLE:
        show_one({"expected": verdict.expected, "written": verdict.written, "target": asked.into}, output)
    if verdict.agrees:
        say(f"{verdict.written:,} records are in {asked.into}, as many as there are in the range; both sides were counted")
        return 0
    say(
        f"Error: {verdict.written:,} records are in {asked.into}, and {verdict.expected:,} in the range\n"
        "  Has key compaction run meanwhile, or does another program write to the target? Else it is a fault: do not rely on it,"
        "\n  replay into a new target with a new --checkpoint, and report it."
    )
    return FAILED


def _files_of(credentials: SettingChanges) -> dict[str, str]:
    """Returns the credential settings that hold file paths. Spark may show these in its plans; keys stay in the environment."""
    return {name: str(value) for name, value in credentials.items() if name in NAMES and value}
