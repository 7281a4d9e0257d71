"""What of the command needs no cluster: what is missing, which modules are built, what is read of pods, and what the steps name."""

from __future__ import annotations

import pytest
import yaml

from tests.deploy.chart import CHART, render
from tests.real_cluster.images import IMAGE, etcd_image
from tests.real_cluster.missing import PACKAGES, lacks
from tests.real_cluster.pod_watch import PodWatch, objects_of
from tests.real_cluster.programs import MAIN, NAMES, module_of
from tests.real_cluster.proof import OWN_ETCD, SECURED, VALUES, steps

GO_MOD = """module k8s.io/kubernetes

go 1.24.0

require (
	k8s.io/api v0.0.0
	k8s.io/client-go v0.0.0
	k8s.io/klog/v2 v2.130.1
)

replace (
	k8s.io/api => ./staging/src/k8s.io/api
)
"""


def test_a_machine_that_has_all_lacks_nothing() -> None:
    assert lacks(str, platform="linux", is_root=True) == ""


def test_all_missing_programs_are_reported_in_one_line_with_their_packages() -> None:
    reported = lacks({"buildah": "b", "unshare": "u"}.get, platform="linux", is_root=True)
    assert "\n" not in reported
    assert "Go" in reported
    assert {package for package in PACKAGES.values() if package in reported} == set(PACKAGES.values()) - {"buildah", "util-linux"}


@pytest.mark.parametrize(("platform", "is_root", "reported"), [("darwin", True, "Linux"), ("linux", False, "root")])
def test_elsewhere_it_says_what_it_needs(platform: str, is_root: bool, reported: str) -> None:
    assert reported in lacks(str, platform=platform, is_root=is_root)


def test_kubernetes_staged_parts_are_taken_from_their_own_modules() -> None:
    made = module_of(GO_MOD)
    assert "\tk8s.io/api => k8s.io/api v0.34.1\n" in made
    assert "\tk8s.io/client-go => k8s.io/client-go v0.34.1\n" in made
    assert "klog" not in made
    assert "\ngo 1.24.0\n" in made


def test_the_built_program_knows_each_name_that_it_is_given() -> None:
    source = MAIN.read_text(encoding="utf-8")
    assert [name for name in NAMES if f'"{name}"' not in source] == []


def test_the_etcd_image_is_the_one_that_the_chart_asks_for() -> None:
    made = render(OWN_ETCD, with_least=False)
    assert made.container("logs-tidelog-etcd")["image"] == etcd_image()


@pytest.mark.parametrize("values", [VALUES, SECURED, OWN_ETCD])
def test_the_values_of_the_proof_are_taken_and_name_the_built_image(values: dict[str, object]) -> None:
    assert render(values, with_least=False).container()["image"] == IMAGE


def test_the_image_is_called_after_the_chart_s_version() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    assert IMAGE.endswith(f":{about['appVersion']}")


def test_objects_are_read_one_after_the_other_and_the_last_may_be_broken_off() -> None:
    assert list(objects_of('{"a": 1}\n{\n "b": 2}\n{"c":')) == [{"a": 1}, {"b": 2}]
    assert list(objects_of(" \n")) == []


def test_of_a_container_the_latest_exit_code_counts() -> None:
    watch = PodWatch()
    states: list[dict[str, object]] = [{"running": {}}, {"terminated": {"exitCode": 137}}, {"terminated": {"exitCode": 0}}]
    for state in states:
        status = {"name": "broker", "restartCount": 1, "state": state, "lastState": {}}
        watch.take({"metadata": {"name": "a"}, "status": {"containerStatuses": [status]}})
    assert watch.exit_codes == {("a", "broker"): 0}
    assert watch.restarts == {("a", "broker"): 1}


def test_each_step_says_what_it_shows() -> None:
    assert len({step.__name__ for step in steps()}) == len(steps()) > 5
