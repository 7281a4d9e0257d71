"""The image, as the Dockerfile describes it: on what it builds, who runs in it, and that nothing slips in."""

from __future__ import annotations

import re

from tests.deploy.chart import NAME, render
from tests.deploy.dockerfile import DOCKERFILE, image_stages, instructions


def test_every_image_that_it_builds_on_is_named_with_a_version() -> None:
    for stage in image_stages():
        image = stage[0].text.split()[0]
        assert re.fullmatch(r"[\w./-]+:\d[\w.-]*", image), image
        assert "latest" not in image
    assert "slim" in image_stages()[-1][0].text


def test_the_image_runs_as_a_numeric_user_without_privileges() -> None:
    (user,) = (each.text for each in image_stages()[-1] if each.name == "USER")
    assert re.fullmatch(r"\d+:\d+", user), "Kubernetes can check that a number is not root"
    made = render()
    of_pod = dict(made.pods)[NAME]["securityContext"]
    assert user == f"{of_pod['runAsUser']}:{of_pod['runAsGroup']}"


def test_the_last_stage_copies_and_runs_nothing() -> None:
    """So it has no compiler, no cache of a package manager, and no layer in which something was removed too late."""
    assert {each.name for each in image_stages()[-1]} == {"FROM", "COPY", "ENV", "USER", "WORKDIR", "EXPOSE", "ENTRYPOINT", "CMD"}
    assert [each.text for each in image_stages()[-1] if each.name == "COPY"] == ["--from=build /opt/tidelog /opt/tidelog"]


def test_nothing_is_fetched_but_by_pip_with_the_pinned_versions() -> None:
    assert not [each for each in instructions() if each.name == "ADD"]
    for each in instructions():
        if each.name == "RUN":
            assert not re.search(r"\b(curl|wget|git|sudo|apt-get)\b", each.text)
            for command in each.text.split("&&"):
                if re.search(r"pip install", command):
                    assert "-c /src/constraints.txt" in command
                    assert "--no-cache-dir" in command


def test_programs_are_started_without_a_shell_between() -> None:
    """Which would not pass SIGTERM on."""
    last = {each.name: each.text for each in image_stages()[-1]}
    assert last["ENTRYPOINT"] == '["tidelog"]'
    assert last["CMD"].startswith("[")


def test_the_ports_are_those_of_the_chart() -> None:
    (exposed,) = (each.text.split() for each in image_stages()[-1] if each.name == "EXPOSE")
    assert {int(port) for port in exposed} == {each["containerPort"] for each in render().container()["ports"]}


def test_lines_are_read_as_docker_reads_them() -> None:
    joined = [each.text for each in instructions() if each.name == "RUN"]
    assert len(joined) == DOCKERFILE.read_text(encoding="utf-8").count("\nRUN ")
    assert not [text for text in joined if "\\" in text]
