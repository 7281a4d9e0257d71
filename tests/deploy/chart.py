"""The chart, rendered by Helm itself in this process: no cluster, no helm on the PATH.

values ─▶ Helm (its Go library) ─▶ manifests ─▶ objects, by kind and name ─▶ the pods that Kubernetes would start
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import helm_python as helm
import yaml
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

from tests.kit.servers import ROOT

CHART = ROOT / "deploy" / "helm"
RELEASE, NAMESPACE = "logs", "streams"
# Of the brokers' objects in this release.
NAME = "logs-tidelog"
# What every install has to name.
LEAST: Mapping[str, Any] = {"bucket": "s3://my-bucket/tidelog", "etcd": {"endpoints": ["http://etcd-0:2379", "http://etcd-1:2379"]}}
# The oldest that Chart.yaml admits, one between, the newest whose schemas are known.
KUBERNETES = ("1.27", "1.32", "1.37")

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Rendered:
    objects: tuple[Object, ...]
    notes: str

    def one(self, kind: str, name: str = NAME) -> Object:
        (found,) = (each for each in self.objects if each["kind"] == kind and each["metadata"]["name"] == name)
        return found

    def kinds(self) -> set[tuple[str, str]]:
        return {(each["kind"], each["metadata"]["name"]) for each in self.objects}

    @property
    def pods(self) -> Iterator[tuple[str, Object]]:
        """The spec of each pod that is started, by the name of what starts it."""
        for each in self.objects:
            if each["kind"] in {"Deployment", "StatefulSet"}:
                yield each["metadata"]["name"], each["spec"]["template"]["spec"]
            elif each["kind"] == "Pod":
                yield each["metadata"]["name"], each["spec"]

    def container(self, owner: str = NAME) -> Object:
        """The first of a pod: what it is there for."""
        spec = dict(self.pods)[owner]
        first: Object = spec["containers"][0]
        return first

    def variables(self, owner: str = NAME) -> dict[str, str]:
        """Those whose value stands in the manifest."""
        return {each["name"]: each["value"] for each in self.container(owner)["env"] if "value" in each}


@cache
def _chart() -> helm.Chart:
    return helm.Chart.load(CHART)


def render(values: Mapping[str, Any] | None = None, *, with_least: bool = True) -> Rendered:
    """Of LEAST and `values`, which win. Raises HelmError as `helm install` would fail."""
    given = merged(LEAST, values or {}) if with_least else dict(values or {})
    manifests = _chart().render(given, name=RELEASE, namespace=NAMESPACE)
    notes = next(text for path, text in manifests.items() if path.endswith("NOTES.txt"))
    rendered = (yaml.load_all(text, yaml.CSafeLoader) for path, text in sorted(manifests.items()) if path.endswith(".yaml"))
    return Rendered(tuple(each for documents in rendered for each in documents if each), notes)


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """As Helm merges values: maps deeply, everything else whole."""
    both = {name: merged(under[name], value) if _are_maps(under.get(name), value) else value for name, value in over.items()}
    return {**under, **both}


def _are_maps(*values: object) -> bool:
    return all(isinstance(value, Mapping) for value in values)


def refusal(values: Mapping[str, Any], *, with_least: bool = True) -> str:
    """What Helm says of values that it refuses."""
    try:
        render(values, with_least=with_least)
    except helm.HelmError as error:
        return str(error)
    raise AssertionError(f"these values were taken: {values}")


def faults(each: Object, version: str) -> list[str]:
    """What the schemas of this version of Kubernetes say against an object; of CRDs, those beside this file."""
    return [f"{'.'.join(map(str, found.path))}: {found.message[:300]}" for found in _validator(each, version).iter_errors(each)]


def _validator(each: Object, version: str) -> Draft202012Validator:
    return _validator_of(each["kind"], each["apiVersion"], version)


@cache
def _validator_of(kind: str, api_version: str, version: str) -> Draft202012Validator:
    group, _, number = api_version.rpartition("/")
    if group == "monitoring.coreos.com":
        return Draft202012Validator(_json(resources.files("tests.deploy") / "crds" / f"{kind.lower()}-{number}.json"))
    folder = resources.files("kubernetes_validate") / "kubernetes-json-schema" / f"v{version}.0-local-strict"
    name = "-".join(part for part in (kind.lower(), group.partition(".")[0], number) if part)
    return Draft202012Validator(_json(folder / f"{name}.json"), registry=_definitions(version))


@cache
def _definitions(version: str) -> Registry[Any]:
    folder = resources.files("kubernetes_validate") / "kubernetes-json-schema" / f"v{version}.0-local-strict"
    return Resource.from_contents(_json(folder / "_definitions.json")) @ Registry()


def _json(path: Any) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))
