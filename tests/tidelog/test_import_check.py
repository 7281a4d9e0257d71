"""A user's own file that has the name of a package of Tidelog: it is named in one sentence, or does no harm."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.kit.spark.topics_on_disk import Bucket, records
from tidelog import import_check
from tidelog.import_check import ALL, SDK, PackageHidden, check_packages, hidden_by

ROOT = Path(__file__).parents[2]
OWN = "raise SystemExit('the user\\'s own file was run')\n"
FORMS = ("{}.py", "{}/__init__.py")


def put(folder: Path, name: str, form: str = FORMS[0]) -> Path:
    path = folder / form.format(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(OWN)
    return path


# ── the decision ──


@pytest.fixture
def in_front(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The first folder on the path of a Python that has imported none of the packages."""
    for name in ALL:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("form", FORMS)
def test_a_module_in_front_of_a_package_is_named_with_what_to_do(in_front: Path, name: str, form: str) -> None:
    path = put(in_front, name, form)
    with pytest.raises(PackageHidden, match="rename it") as caught:
        check_packages(*ALL)
    said = str(caught.value)
    assert said.startswith(f"{path} hides the package `{name}` of Tidelog: ")
    assert (said.count(". "), said[-1], "\n" in said) == (0, ".", False), "one sentence"
    assert (caught.value.name, caught.value.path) == (name, str(path))


@pytest.mark.parametrize("name", ALL)
def test_a_folder_without_code_of_its_own_hides_nothing(in_front: Path, name: str) -> None:
    (in_front / name).mkdir()
    (in_front / name / "orders.csv").touch()
    assert hidden_by(name) is None


def test_a_folder_that_is_found_before_an_editable_install_is_named(in_front: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An editable install whose packages a finder brings, which is asked after the path."""
    folder = in_front / "metadata"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [str(in_front)])
    assert hidden_by("metadata") == str(folder)


def test_a_module_that_is_imported_already_is_named(in_front: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = in_front / "metadata.py"
    path.touch()
    __import__("metadata")
    monkeypatch.setattr(sys, "path", sys.path[1:])
    assert hidden_by("metadata") == str(path)


def test_the_packages_themselves_hide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [hidden_by(name) for name in ALL] == [None] * len(ALL)
    for name in ALL:
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert [hidden_by(name) for name in ALL] == [None] * len(ALL)


def test_a_link_to_the_folder_of_the_packages_is_no_other_folder(in_front: Path) -> None:
    (in_front / "spark").symlink_to(ROOT / "spark")
    assert hidden_by("spark") is None


def test_packages_in_a_zip_file_are_found_there(in_front: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = in_front / "shipped.zip"
    with zipfile.ZipFile(archive, "w") as shipped:
        shipped.writestr("metadata/__init__.py", "")
    monkeypatch.setattr(import_check, "_HERE", str(archive))
    monkeypatch.syspath_prepend(str(archive))
    assert hidden_by("metadata") is None
    (in_front / "own").mkdir()
    monkeypatch.syspath_prepend(str(in_front / "own"))
    assert hidden_by("metadata") is None
    path = put(in_front / "own", "metadata")
    assert hidden_by("metadata") == str(path)


def test_packages_in_several_folders_are_left_to_the_import(in_front: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_check, "_HERE", str(in_front))
    assert hidden_by("metadata") is None


# ── the processes ──


def ran(command: Sequence[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PYTHONSAFEPATH", "PYTEST_ADDOPTS"}}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=kept | environment, capture_output=True, text=True, timeout=250, check=False
    )


COMMAND = ["-c", "import sys; sys.argv[0] = 'tidelog'; from tidelog.cli.main import main; main()"]
IN_SENTENCE = "hides the package `{}` of Tidelog: rename it"


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_commands_end_with_one_sentence(name: str, tmp_path: Path) -> None:
    path = put(tmp_path, name)
    broker = ["-m", "tidelog.cli.main", "dev", "--data-dir", str(tmp_path / "data")]
    for command in (["-m", "tidelog.cli.main", "topic", "list"], broker, ["-m", "tidelog.pipelines.hot_keys"]):
        done = ran(command, tmp_path)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"Error: {path} {IN_SENTENCE.format(name)}"), done.stderr
        assert done.stderr.count("\n") == 1
    installed = ran([*COMMAND, "--version"], Path("/"), PYTHONPATH=str(tmp_path))
    assert (installed.returncode, installed.stderr.count("\n")) == (1, 1)
    assert IN_SENTENCE.format(name) in installed.stderr


@pytest.mark.slow
def test_the_installed_command_and_what_it_starts_import_nothing_from_the_current_folder(tmp_path: Path) -> None:
    for name in ALL:
        put(tmp_path, name)
    code = (
        "import subprocess, sys; from tidelog.cli import main; main.run = lambda _: subprocess.call({!r}); sys.argv[0] = 'tidelog'"
    )
    child = [sys.executable, "-m", "tidelog.cli.main", "--version"]
    done = ran(["-P", "-c", code.format(child) + "; main.main()"], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("tidelog ")


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_the_sdk_ends_with_one_sentence_or_does_not_need_the_package(name: str, tmp_path: Path) -> None:
    path = put(tmp_path, name)
    done = ran(["-c", "import tidelog; print(tidelog.connect.__name__, tidelog.connect_sync.__name__)"], tmp_path)
    if name in SDK:
        assert done.stderr.splitlines()[-1].startswith(f"tidelog.import_check.PackageHidden: {path} {IN_SENTENCE.format(name)}")
    else:
        assert (done.stdout, done.stderr) == ("connect connect_sync\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_the_packages_for_spark_end_with_one_sentence(name: str, tmp_path: Path) -> None:
    put(tmp_path, name)
    by_name = ["import spark.source.task_reader"] if name != "spark" else []  # as an executor does
    for code in ("import pyspark_tidelog", "from tidelog.spark import spark_session", *by_name):
        done = ran(["-c", code], tmp_path)
        assert IN_SENTENCE.format(name) in done.stderr.splitlines()[-1], done.stderr


USERS_TESTS = """
import metadata, tidelog

def test_of_something_else():
    assert metadata.OWN

def test_of_the_sdk():
    tidelog.connect

def test_of_a_broker(tidelog_broker):
    pass
"""


@pytest.mark.slow
def test_the_tests_of_a_project_run_and_those_that_need_the_package_name_the_file(tmp_path: Path) -> None:
    """pytest loads Tidelog's fixtures in every project of a Python that has Tidelog."""
    (tmp_path / "metadata.py").write_text("OWN = True\n")
    (tmp_path / "test_of_user.py").write_text(USERS_TESTS)
    done = ran(["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:schemathesis", "test_of_user.py"], tmp_path)
    assert done.stdout.splitlines()[-1].startswith("1 failed, 1 passed, 1 error"), done.stdout + done.stderr
    assert done.stdout.count(f"PackageHidden: {tmp_path / 'metadata.py'} {IN_SENTENCE.format('metadata')}") >= 2


QUERY = """
import sys
from pyspark.errors import PySparkException
from tidelog.spark import spark_session

spark = spark_session("in the way", master="local[1]", config={"spark.ui.enabled": "false"})
try:
    print(spark.read.format("tidelog").option("bucket", sys.argv[1]).option("subscribe", "orders").load().count())
except PySparkException as error:
    print(error)
spark.stop()
"""


@pytest.mark.slow
@pytest.mark.own_spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ALL)
def test_a_query_of_spark_whose_workers_start_beside_such_a_file_names_it(java: None, name: str, tmp_path: Path) -> None:
    """The driver's program lies elsewhere, and so imports Tidelog; Spark starts Python workers in the current folder."""
    script = tmp_path / "elsewhere" / "query.py"
    script.parent.mkdir()
    script.write_text(QUERY)
    folder = tmp_path / "here"
    path = put(folder, name)
    done = ran([str(script), "file:///nowhere"], folder)
    assert f"PySparkException: {path} {IN_SENTENCE.format(name)}" in done.stdout, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.own_spark
@pytest.mark.timeout(600)
def test_the_installed_command_runs_spark_beside_such_files(java: None, tmp_path: Path) -> None:
    bucket = Bucket(tmp_path / "bucket")
    bucket.produce(records(0, 40))
    folder = tmp_path / "here"
    for name in ALL:
        put(folder, name)
    done = ran(["-P", *COMMAND, "backfill", "--bucket", bucket.url, "--master", "local[1]", "-o", "json"], folder)
    assert done.returncode == 0, done.stderr
    assert '"records": 40' in done.stdout


# ── the pages ──


def test_no_page_and_no_recipe_shows_an_import_of_another_package_than_those_of_users() -> None:
    shown = re.compile(
        rf"^\W*(?:\$ )?(?:\S*python\S* -m|from|import)\s+({'|'.join(ALL)})(?:\.\w+)*(?: import |\s*$| --)", re.MULTILINE
    )
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    deployed = [path for path in (ROOT / "deploy").rglob("*") if path.suffix in {".md", ".yaml", ".txt"}]
    recipes = [path for path in (ROOT / "tidelog" / "pipelines").glob("*.py") if "PIPELINE: Final" in path.read_text()]
    assert len(recipes) == 6
    assert {str(path): found for path in (*pages, *deployed, *recipes) if (found := shown.findall(path.read_text()))} == {}
    assert shown.findall("$ .venv/bin/python -m spark.pipelines.hot_keys --bucket b\nfrom metadata import errors") == [
        "spark",
        "metadata",
    ]
