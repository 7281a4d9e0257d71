"""`tidelog bucket`: verify and usage, from the bucket alone. No broker need run, and nothing is written."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metadata.errors import InvalidArgument, NotFound
from tidelog.cli.app.errors import UNHEALTHY
from tidelog.cli.app.help_page import CommandPage, GroupPage
from tidelog.cli.app.output import Output, OutputOption, say, show_one, show_rows

if TYPE_CHECKING:
    from compaction.audit.bucket_audit import Audit

TABLE_COLUMNS = [
    *("topic", "partitions", "records", "stored_bytes", "parquet_files", "parquet_bytes"),
    *("segments", "batch_bytes", "writes", "reads", "usd_per_month"),
]

NARROW_COLUMNS = ["topic", "records", "stored_bytes", "parquet_bytes", "batch_bytes", "usd_per_month"]

app = typer.Typer(cls=GroupPage, help="Check and measure a bucket, without a broker.")

BucketOption = Annotated[
    str,
    typer.Option(
        "--bucket", metavar="URL", help="s3://BUCKET/PREFIX or file:///DIRECTORY. [default: TIDELOG_BUCKET]", show_default=False
    ),
]
DataDirOption = Annotated[
    str, typer.Option("--data-dir", metavar="DIR", help="Of a broker whose bucket is a directory in it.", show_default=False)
]


@app.command(cls=CommandPage)
def verify(
    bucket: BucketOption = "",
    data_dir: DataDirOption = "",
    deep: Annotated[bool, typer.Option("--deep", help="Read every byte: every CRC-32C, every record, every checksum.")] = False,
    output: OutputOption = Output.TABLE,
) -> int:
    """Checks sessions, segments, manifests and Parquet, and that no offset is missing.

    Exit code 0: every rule holds that was checked; 3: something is damaged; 1: the bucket could not be read.

    \b
    tidelog bucket verify --data-dir ./tidelog-data
    tidelog bucket verify --bucket s3://my-bucket/prefix --deep
    """
    audit = _audit(bucket, data_dir, deep=deep)
    summary = {
        "bucket": audit.url,
        "cluster_id": audit.cluster_id,
        "sound": audit.is_sound,
        "records_read": deep,
        "sessions": audit.sessions,
        "sealed_sessions": audit.sealed_sessions,
        "segments": audit.segments,
        "records": audit.records,
        "batches_checked": audit.batches_read,
        "partitions_with_history": audit.partitions_compacted,
        "files": sum(used.files for used in audit.topics.values()),
        "files_checked": audit.files_read,
        "invisible_objects": audit.invisible_objects,
        "collectable_objects": audit.collectable_objects,
        "collectable_bytes": audit.collectable_bytes,
    }
    findings = [{"severity": found.severity, "where": found.where, "what": found.what} for found in audit.findings]
    if output is Output.TABLE:
        if audit.is_sound and not deep:
            summary["sound"] = "yes, as far as it was read"
            summary["records_read"] = "no; --deep reads them, and checks every CRC and checksum"
        show_one(summary, output)
        if findings:
            sys.stdout.write("\n")
            table = [{"severity": found.severity, "found": f"{found.where}\n{found.what}"} for found in audit.findings]
            show_rows(table, output, styles={"damage": "bold red", "note": "yellow"})
    else:
        show_one(summary | {"findings": findings}, output)
    damaged = sum(found.severity == "damage" for found in audit.findings)
    say(f"damage in {damaged} places" if damaged > 1 else "damage in one place" if damaged else "every rule that was checked holds")
    return 0 if audit.is_sound else UNHEALTHY


@app.command(cls=CommandPage)
def usage(bucket: BucketOption = "", data_dir: DataDirOption = "", output: OutputOption = Output.TABLE) -> None:
    """Shows what lies on the bucket by topic: bytes, objects, requests, and what S3 asks for it.

    \b
    stored bytes   Parquet, manifests, and the topic's share of segments
    writes         requests that wrote what lies here, about
    reads          requests to read all of it once, about
    prices         S3 Standard in us-east-1
    collectable    what a compactor deletes once delete_grace_ms is over
    """
    audit = _audit(bucket, data_dir, deep=False)
    rows: list[dict[str, Any]] = [
        {
            "topic": used.name,
            "topic_id": topic_id,
            "deleted": used.is_deleted,
            "partitions": len(used.partitions),
            "records": used.records + used.file_records,
            "stored_bytes": round(used.stored_bytes),
            "objects": used.objects,
            "parquet_files": used.files,
            "parquet_bytes": used.file_bytes,
            "parquet_records": used.file_records,
            "parquet_uncompressed_bytes": used.record_bytes,
            "segments": used.segments,
            "batch_bytes": used.batch_bytes,
            "writes": round(used.writes),
            "reads": used.reads,
            "usd_per_month": round(used.usd_per_month, 6),
            "usd_written": round(used.usd_written, 6),
            "usd_per_reading": round(used.usd_per_reading, 6),
        }
        for topic_id, used in sorted(audit.topics.items(), key=lambda item: (item[1].name, item[0]))
    ]
    topics = audit.topics.values()
    totals = {
        "bucket": audit.url,
        "objects": audit.objects,
        "segments": audit.segments,
        "bytes": audit.segment_bytes + sum(used.bytes for used in topics),
        "batch_bytes": sum(used.batch_bytes for used in topics),
        "parquet_bytes": sum(used.file_bytes for used in topics),
        "records": audit.records,
        "invisible_objects": audit.invisible_objects,
        "invisible_bytes": audit.invisible_bytes,
        "collectable_objects": audit.collectable_objects,
        "collectable_bytes": audit.collectable_bytes,
        "usd_per_month": round(sum(used.usd_per_month for used in topics), 6),
    }
    if output is Output.TABLE:
        show_one(totals, output)
        sys.stdout.write("\n")
        shown = [row | {"topic": (row["topic"] or row["topic_id"]) + (" (deleted)" if row["deleted"] else "")} for row in rows]
        show_rows(shown, output, columns=TABLE_COLUMNS, narrow=NARROW_COLUMNS)
    else:
        show_one(totals | {"topics": rows}, output)


def _audit(bucket: str, data_dir: str, *, deep: bool) -> Audit:
    import uvloop

    from compaction.audit.bucket_audit import audit_bucket
    from gateway.settings import load_settings
    from segments.object_store.open import open_store

    if not bucket and not data_dir and not {"TIDELOG_BUCKET", "TIDELOG_DATA_DIR"} & os.environ.keys():
        raise InvalidArgument(
            "no bucket is named", hint="Give --bucket s3://BUCKET/PREFIX, or --data-dir DIR of a broker on this machine."
        )
    flags = {"bucket": bucket or None, "data_dir": data_dir or os.environ.get("TIDELOG_DATA_DIR") or "."}
    settings = load_settings(flags, os.environ)
    if not settings.bucket and not (settings.data_dir / "bucket").is_dir():
        raise NotFound(
            f"{settings.data_dir} holds no bucket",
            hint="Name the --data-dir of a broker whose bucket is a directory in it, or the --bucket itself.",
        )

    async def run() -> Audit:
        store = await open_store(settings.bucket_url, settings.s3)
        try:
            with _progress() as advance:
                return await audit_bucket(store, deep=deep, advance=advance)
        finally:
            await store.close()

    audit = uvloop.run(run())
    if not audit.cluster_id and not audit.objects and audit.is_sound:
        raise NotFound(
            f"no cluster lies at {audit.url}: there is no cluster.json, and nothing under wal/ or topics/",
            hint="Check the bucket and its prefix: a broker names its bucket when it starts.",
        )
    return audit


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    if not sys.stderr.isatty():
        yield lambda what, done, of: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        tasks = {what: progress.add_task(what, total=None) for what in ("segments", "files")}
        yield lambda what, done, of: progress.update(tasks[what], completed=done, total=of)
