"""docs/guides/kubernetes.md is true: its commands install what they name, and its policy is that of `tidelog doctor`."""

from __future__ import annotations

import json
import re
import shlex
from itertools import pairwise
from pathlib import Path

import helm_python as helm
import pytest
import yaml

from tests.deploy.chart import KUBERNETES, NAME, faults, render
from tests.kit.servers import ROOT
from tidelog.cli.doctor.checks import least_iam_policy

PAGE = ROOT / "docs" / "guides" / "kubernetes.md"
TEXT = PAGE.read_text(encoding="utf-8")
RECOVER = (PAGE.parent / "recover.md").read_text(encoding="utf-8")


def commands() -> list[list[str]]:
    blocks = re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines() if line.startswith("$ ")]
    return [shlex.split(line.removeprefix("$ "), comments=True) for line in lines]


INSTALLS = [words for words in commands() if words[:2] == ["helm", "install"]]
UPGRADES = [words for words in commands() if words[:2] == ["helm", "upgrade"]]


def values_of(words: list[str]) -> list[str]:
    return [value for flag, value in pairwise(words) if flag == "--set"]


@pytest.mark.parametrize("words", INSTALLS, ids=" ".join)
def test_the_chart_accepts_the_installs_of_the_page(words: list[str]) -> None:
    assert words[3] == "deploy/helm"
    assert render(_parsed(values_of(words)), with_least=False).objects


@pytest.mark.parametrize("words", UPGRADES, ids=" ".join)
def test_the_chart_accepts_the_upgrades_of_the_page(words: list[str]) -> None:
    assert "--reuse-values" in words
    assert render(_parsed(values_of(words))).objects


def _parsed(values: list[str]) -> dict[str, object]:
    found: dict[str, object] = helm.parse_set_string(",".join(values))
    return found


def test_there_are_installs_to_try() -> None:
    assert len(INSTALLS) >= 3
    assert len(UPGRADES) >= 1


def test_the_policy_is_that_of_doctor() -> None:
    (block,) = re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)
    assert json.loads(block) == least_iam_policy("s3://my-bucket/tidelog")


def test_the_pod_that_restores_is_one_that_restricted_pod_security_admits() -> None:
    """A pod of `kubectl run` is not. The labels are those by which the chart's own etcd admits the pods of its release."""
    (block,) = re.findall(r"```yaml\n(.*?)```", RECOVER, re.DOTALL)
    pod = yaml.safe_load(block)
    assert [fault for version in KUBERNETES for fault in faults(pod, version)] == []
    (container,) = pod["spec"]["containers"]
    assert pod["spec"]["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    policy = render({"etcd": {"enabled": True, "endpoints": []}}).one("NetworkPolicy", f"{NAME}-etcd")
    admitted = policy["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"]
    assert set(pod["metadata"]["labels"]) == set(admitted)


def test_the_documented_grace_period_is_that_of_the_chart() -> None:
    (reported,) = re.findall(r"\((\d+) s by default", TEXT)
    assert dict(render().pods)["logs-tidelog"]["terminationGracePeriodSeconds"] == int(reported)


def test_files_that_are_named_are_there() -> None:
    for path in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", TEXT):
        assert (PAGE.parent / path).exists(), path
    for path in re.findall(r"`((?:tests|deploy|bench)/[\w./-]+)`", TEXT):
        assert (ROOT / path).exists(), path


def test_values_that_are_named_are_values() -> None:
    values = json.loads(Path(ROOT / "deploy/helm/values.schema.json").read_text(encoding="utf-8"))["properties"]
    for name in re.findall(r"`([a-z3]\w*(?:\.\w+)+)`", TEXT):
        first, second = name.split(".")[:2]
        if first in values and name not in {"tls.crt", "tls.key"}:
            assert second in values[first]["properties"], name
