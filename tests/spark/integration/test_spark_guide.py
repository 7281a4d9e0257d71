"""docs/guides/spark.md and deploy/spark say what is there: options, columns, recipes, versions, files and arguments."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyspark import __file__ as pyspark_file

from spark.sink.options import COLUMNS as SINK_COLUMNS
from spark.source.options import parse_source_options
from spark.source.schema import ARROW_TYPES
from tidelog.pipelines.command import parser

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs" / "guides" / "spark.md").read_text()
DEPLOY = ROOT / "deploy" / "spark"
APPLICATION: dict[str, Any] = yaml.safe_load((DEPLOY / "hourly-delays.yaml").read_text())
SPEC: dict[str, Any] = APPLICATION["spec"]
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()


def hadoop_version() -> str:
    """Of the Hadoop that this PySpark brings."""
    (jar,) = (Path(pyspark_file).parent / "jars").glob("hadoop-client-api-*.jar")
    return jar.stem.removeprefix("hadoop-client-api-")


def options_in_sources() -> set[str]:
    """The names that the source asks its options for."""
    code = (ROOT / "spark" / "source" / "options.py").read_text()
    found = set(re.findall(r'options\.(?:text|parsed)\(\s*"(\w+)"', code)) | {"subscribe", "subscribePattern", "assign"}
    return found | {f"{which}{what}" for which in ("starting", "ending") for what in ("Offsets", "Timestamp", "OffsetsByTimestamp")}


def test_the_guide_has_every_option_and_column_of_the_source() -> None:
    assert len(options_in_sources()) >= 15
    assert [name for name in sorted(options_in_sources() | set(ARROW_TYPES)) if f"`{name}`" not in GUIDE] == []


def test_the_guide_has_every_option_and_column_of_the_sink() -> None:
    code = (ROOT / "spark" / "sink" / "options.py").read_text()
    options = set(re.findall(r'options\.(?:text|parsed)\(\s*"([\w.]+)"', code)) - {"compression"}  # which means the same
    assert options >= {"brokers", "bucket", "topic", "compression.type"}
    written = GUIDE.partition("## Writing into topics")[2].partition("\n## ")[0]
    assert [name for name in sorted(options | set(SINK_COLUMNS)) if f"`{name}`" not in written] == []


@pytest.mark.parametrize("example", re.findall(r'`(\{"orders".*?\})`', GUIDE))
def test_values_in_the_guide_are_taken(example: str) -> None:
    which = "assign" if "[" in example else "startingOffsets"
    given = {"bucket": "file:///b", which: example}
    parse_source_options(given if which == "assign" else given | {"subscribe": "orders"})


def test_the_guide_names_every_recipe_and_files_that_are_there() -> None:
    recipes = set(re.findall(r"tidelog/pipelines/(\w+)\.py", GUIDE))
    there = {path.stem for path in (ROOT / "tidelog" / "pipelines").glob("*.py") if "PIPELINE: Final" in path.read_text()}
    assert recipes == there
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", GUIDE):
        assert (ROOT / "docs" / "guides" / link).exists(), link


def test_the_policies_of_the_guide_are_json_and_allow_nothing_beyond_the_prefix() -> None:
    policies = [json.loads(found) for found in re.findall(r"```json\n(.*?)```", GUIDE, re.DOTALL)]
    assert policies
    for statement in (statement for policy in policies for statement in policy["Statement"]):
        within = statement["Resource"].startswith("arn:aws:s3:::my-bucket/tidelog/")
        assert within or statement["Condition"] == {"StringLike": {"s3:prefix": ["tidelog/*"]}}


def test_versions_are_those_that_are_installed() -> None:
    (spark_version,) = re.findall(r"^pyspark==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert SPEC["sparkVersion"] == spark_version
    assert SPEC["image"].endswith(f":{spark_version}")
    assert f"FROM spark:{spark_version}-" in DOCKERFILE
    wanted = f"org.apache.hadoop:hadoop-aws:{hadoop_version()}"
    assert SPEC["deps"]["packages"] == [wanted]
    assert set(re.findall(r"org\.apache\.hadoop:hadoop-aws:[\d.]+", GUIDE)) == {wanted}


def test_the_application_is_one_for_the_operator_and_its_parts_fit_together() -> None:
    assert (APPLICATION["apiVersion"], APPLICATION["kind"]) == ("sparkoperator.k8s.io/v1beta2", "SparkApplication")
    assert re.fullmatch(r"[a-z0-9-]{1,63}", APPLICATION["metadata"]["name"])
    assert (SPEC["type"], SPEC["mode"]) == ("Python", "cluster")
    assert SPEC["driver"]["serviceAccount"]
    assert SPEC["executor"]["instances"] > 0
    assert all(isinstance(value, str) for value in SPEC["sparkConf"].values()), "the operator takes text alone"
    assert SPEC["restartPolicy"]["type"] in {"Never", "OnFailure", "Always"}


def test_the_application_that_the_guide_runs_is_in_the_image_and_takes_its_arguments() -> None:
    assert "COPY . /opt/tidelog" in DOCKERFILE
    path = SPEC["mainApplicationFile"].removeprefix("local:///opt/tidelog/")
    assert (ROOT / path).is_file()
    pipeline = importlib.import_module(path.removesuffix(".py").replace("/", ".")).PIPELINE
    arguments = parser(pipeline).parse_args(SPEC["arguments"])
    assert arguments.bucket.startswith("s3://"), "Tidelog's own client"
    assert {arguments.into[:6], arguments.checkpoint[:6]} == {"s3a://"}, "Hadoop's"
    for line in (line for line in DOCKERFILE.splitlines() if line.startswith("COPY --from")):
        assert line.split()[1] == "--from=spark"
