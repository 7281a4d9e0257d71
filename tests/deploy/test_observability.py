"""Dashboard, rules and runbook: every expression finds what it names on a real cluster, every alert can fire, and has its page."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Iterator
from math import isnan
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from metadata.errors import TidelogError
from tests.deploy.observed_cluster import Scrape, Series, observed
from tests.kit.etcd_server import end_shared_etcd
from tests.kit.promtool import promtool
from tests.kit.tidelog.command_line import fault_of_command

__all__ = ["end_shared_etcd"]

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "observability"
RULES = ROOT / "deploy" / "helm" / "files" / "rules.yaml"
RULE_TESTS = FOLDER / "tidelog-rules-test.yaml"
DASHBOARD = ROOT / "deploy" / "helm" / "files" / "dashboard.json"
RUNBOOK = ROOT / "docs" / "runbook"
HEADINGS = ["What it means", "What users see", "How to find the cause", "What to do", "When to worry about data"]
STEP_S = 30


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def recorded() -> dict[str, str]:
    return {rule["record"]: rule["expr"] for rule in rules() if "record" in rule}


def panels() -> list[dict[str, Any]]:
    return [panel for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"] if panel["type"] != "row"]


def filled(expression: str) -> str:
    """As Grafana sends it, with all clusters and jobs chosen."""
    chosen = {"$cluster": ".*", "$job": ".*", "$__rate_interval": "2m"}
    for name, value in chosen.items():
        expression = expression.replace(name, value)
    assert "$" not in expression, expression
    return expression


def dashboard_expressions() -> dict[str, str]:
    """By panel and letter."""
    return {f"{panel['title']} {target['refId']}": filled(target["expr"]) for panel in panels() for target in panel["targets"]}


def selectors(expression: str) -> Iterator[promql_parser.VectorSelector]:
    """All that it looks up."""
    found: list[promql_parser.VectorSelector] = []

    def note(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.MatrixSelector):
            found.append(node.vector_selector)
        elif isinstance(node, promql_parser.VectorSelector):
            found.append(node)

    promql_parser.walk(promql_parser.parse(expression), pre_visit=note)
    return iter(found)


def matching(selector: promql_parser.VectorSelector, scrape: Scrape) -> list[Series]:
    """Prometheus' rule: a label that is missing is an empty one, and a pattern matches whole values."""
    matchers = re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"((?:[^"\\]|\\.)*)"', str(selector.matchers))
    return [series for series in scrape if series.name == selector.name and _fits(dict(series.labels), matchers)]


def _fits(labels: dict[str, str], matchers: list[tuple[str, str, str]]) -> bool:
    for name, operator, wanted in matchers:
        value = labels.get(name, "")
        fits = bool(re.fullmatch(wanted, value)) if "~" in operator else value == wanted
        if fits == operator.startswith("!"):
            return False
    return True


@pytest.fixture(scope="module")
def scrapes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Scrape, Scrape]:
    return observed(tmp_path_factory.mktemp("observed"))


# ── the files themselves ────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_dashboard_is_what_its_script_writes() -> None:
    assert runpy.run_path(str(FOLDER / "dashboard.py"))["page"]() == DASHBOARD.read_text(encoding="utf-8")


def test_the_dashboard_has_its_twelve_panels_and_each_is_of_the_chosen_cluster_and_job() -> None:
    assert len(panels()) >= 12
    for name, expression in dashboard_expressions().items():
        for selector in selectors(expression):
            assert {"cluster", "job"} <= set(re.findall(r"(\w+)=~", str(selector.matchers))), name


def test_every_expression_is_promql() -> None:
    for expression in (*dashboard_expressions().values(), *(rule["expr"] for rule in rules())):
        promql_parser.parse(expression)


def test_every_alert_says_how_bad_it_is_and_has_its_page_and_every_page_its_alert() -> None:
    for name, alert in alerts().items():
        assert alert["labels"]["severity"] in {"critical", "warning"}, name
        assert alert["annotations"].keys() == {"summary", "description", "runbook_url"}, name
        assert alert["annotations"]["runbook_url"] == f"docs/runbook/{name}.md"
    pages = {path.stem for path in RUNBOOK.glob("*.md")} - {"README"}
    assert pages == alerts().keys()


@pytest.mark.parametrize("name", alerts())
def test_a_page_of_the_runbook_answers_the_five_questions(name: str) -> None:
    text = (RUNBOOK / f"{name}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {name}\n")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == HEADINGS
    assert all(len(part.strip()) > 40 for part in re.split(r"^## .*$", text, flags=re.MULTILINE)[1:])


def test_the_index_of_the_runbook_names_every_page() -> None:
    index = (RUNBOOK / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\]\((\w+)\.md\)", index)) == alerts().keys()


def commands_of(text: str) -> set[str]:
    """What of a page is typed into a shell, and begins with tidelog."""
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    typed = re.findall(r"^\$ (tidelog .*)$", "".join(blocks), re.MULTILINE)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return {" ".join(found.split()) for found in (*typed, *re.findall(r"`(tidelog [^`]*)`", prose))}


@pytest.mark.slow
def test_the_commands_of_the_runbook_are_commands() -> None:
    typed = {command for path in RUNBOOK.glob("*.md") for command in commands_of(path.read_text(encoding="utf-8"))}
    assert len(typed) > 15
    assert [fault for command in typed if (fault := fault_of_command(command))] == []


def test_the_codes_of_the_runbook_are_codes_of_errors() -> None:
    codes = {kind.code for kind in subclasses(TidelogError)} | {TidelogError.code, "NOSPACE"}
    for path in RUNBOOK.glob("*.md"):
        assert set(re.findall(r"`([A-Z]+(?:_[A-Z]+)*)`", path.read_text(encoding="utf-8"))) <= codes, path


def subclasses(kind: type[TidelogError]) -> Iterator[type[TidelogError]]:
    for below in kind.__subclasses__():
        yield below
        yield from subclasses(below)


def test_every_alert_has_a_series_that_fires_it() -> None:
    tests = yaml.safe_load(RULE_TESTS.read_text(encoding="utf-8"))["tests"]
    fired = {check["alertname"] for test in tests for check in test["alert_rule_test"] if check["exp_alerts"]}
    silent = {check["alertname"] for test in tests for check in test["alert_rule_test"] if not check.get("exp_alerts")}
    assert fired == alerts().keys()
    assert silent == alerts().keys(), "and one that does not"


# ── on a real cluster ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_every_selector_of_the_dashboard_and_the_rules_finds_series(scrapes: tuple[Scrape, Scrape]) -> None:
    expressions = dashboard_expressions() | {rule.get("alert") or rule["record"]: rule["expr"] for rule in rules()}
    missing = [
        f"{name}: {selector}"
        for name, expression in expressions.items()
        for selector in selectors(expression)
        if selector.name not in recorded() and not matching(selector, scrapes[1])
    ]
    assert not missing


@pytest.mark.slow
def test_every_selector_that_is_rated_finds_series_that_are_there_before_anything_happens(scrapes: tuple[Scrape, Scrape]) -> None:
    """A counter that appears with its first event has no rate for that event: so alerts must find it before."""
    missing = [
        f"{name}: {selector}"
        for name, alert in alerts().items()
        for selector in selectors(alert["expr"])
        if selector.name not in recorded() and not matching(selector, scrapes[0])
    ]
    assert not missing


@pytest.mark.slow
def test_prometheus_computes_every_panel_and_every_rule_from_these_metrics(scrapes: tuple[Scrape, Scrape], tmp_path: Path) -> None:
    """All panels have a number, and no alert fires: on a cluster that is well."""
    series = [{"series": str(at), "values": f"{_number(scrapes[0].get(at))} {_number(value)}"} for at, value in scrapes[1].items()]
    named = dashboard_expressions() | recorded()
    checks = [
        {"expr": f"(count(({expression}) > -1) or vector(0)) > bool 0", "eval_time": f"{STEP_S}s", "exp_samples": [{"value": 1}]}
        for expression in named.values()
    ]
    alert_checks = [{"eval_time": f"{STEP_S}s", "alertname": name, "exp_alerts": []} for name in alerts()]
    test = {
        "rule_files": [str(RULES)],
        "evaluation_interval": f"{STEP_S}s",
        "tests": [
            {
                "interval": f"{STEP_S}s",
                "input_series": series,
                "promql_expr_test": [{**check, "exp_samples": [{"labels": "{}", "value": 1}]} for check in checks],
                "alert_rule_test": alert_checks,
            }
        ],
    }
    file = tmp_path / "observed.yaml"
    file.write_text(yaml.safe_dump(test), encoding="utf-8")
    done = promtool("test", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


def _number(value: float | None) -> str:
    return "_" if value is None or isnan(value) else repr(value)


# ── by Prometheus' own tool ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_promtool_finds_nothing_wrong_with_the_rules() -> None:
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_each_alert_fires_by_its_series_and_is_silent_by_another() -> None:
    done = promtool("test", "rules", str(RULE_TESTS))
    assert done.returncode == 0, done.stdout + done.stderr
