"""The files of deploy/ are valid as far as that shows without an engine, and run commands that exist."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

import click
import pytest
import yaml  # type: ignore[import-untyped]

from taskharbor import __version__
from taskharbor.api.responses import Scaling
from taskharbor.api.routes.stats import READY_TIMEOUT_SECONDS
from taskharbor.health.checks import STORE_ANSWER_SECONDS
from taskharbor.settings import VARIABLES
from tests.support.commands import check_words
from tests.support.deploy_files import (
    COMPOSE,
    DEPLOY,
    MANIFESTS,
    ROOT,
    UNITS,
    commands,
    dockerfile,
    pods,
    resources,
    unit,
)
from tools.sqs_endpoints import EMULATORS

if TYPE_CHECKING:
    from pathlib import Path

KINDS: Final = {
    "Deployment": ("apps/v1", {"replicas", "selector", "strategy", "template"}),
    "Job": ("batch/v1", {"backoffLimit", "template", "ttlSecondsAfterFinished"}),
    "PodDisruptionBudget": ("policy/v1", {"maxUnavailable", "selector"}),
    "ScaledObject": (
        "keda.sh/v1alpha1",
        {
            "cooldownPeriod",
            "fallback",
            "maxReplicaCount",
            "minReplicaCount",
            "pollingInterval",
            "scaleTargetRef",
            "triggers",
        },
    ),
    "Service": ("v1", {"ports", "selector"}),
    "TriggerAuthentication": ("keda.sh/v1alpha1", {"podIdentity", "secretTargetRef"}),
}
"""The API version of each kind, and the fields of its spec that are used."""
GRACE_SECONDS: Final = 25


@pytest.fixture(autouse=True)
def _store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the URL that every service gets from its environment."""
    monkeypatch.setenv("TASKHARBOR_URL", "postgresql://localhost/app")


@pytest.mark.parametrize("place", commands())
def test_every_command_parses_with_the_command_line(place: str) -> None:
    check_words(commands()[place])


def test_a_wrong_command_is_found() -> None:
    for words in (["work"], ["worker", "--grace", "soon"], ["worker", "--gracious"], ["migrate"], ["keys", "create"]):
        with pytest.raises(click.ClickException):
            check_words(words)


def test_there_are_commands_in_each_kind_of_file() -> None:
    places = " ".join(commands())

    assert len(commands()) > 15
    assert all(word in places for word in ("compose worker", "kubernetes", "systemd", "docker", "setup.sh"))


def test_the_image_runs_without_rights_and_has_a_health_check() -> None:
    names = [name for name, _ in dockerfile()]
    last = dict(dockerfile()[names.index("FROM", names.index("FROM") + 1) :])

    assert set(names) <= {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "LABEL", "ENV", "USER", "EXPOSE", "STOPSIGNAL"} | {
        "HEALTHCHECK",
        "ENTRYPOINT",
        "CMD",
    }
    assert last["USER"] == "10001:10001"
    assert last["HEALTHCHECK"].endswith('CMD ["taskharbor", "doctor", "--container"]')
    assert last["ENTRYPOINT"] == '["taskharbor"]'
    assert "RUN" not in last  # the second stage only copies, so it stays small


def test_what_the_image_copies_exists_and_is_not_ignored() -> None:
    ignored = (DEPLOY / "docker" / "Dockerfile.dockerignore").read_text("utf-8").split()
    copied = [
        word for name, rest in dockerfile() if name == "COPY" and "--from" not in rest for word in rest.split()[:-1]
    ]

    assert copied
    assert all((ROOT / word).exists() and f"!{word}" in ignored for word in copied)


def test_files_that_compose_mounts_exist() -> None:
    mounted = [
        volume.split(":")[0]
        for service in COMPOSE["services"].values()
        for volume in service.get("volumes", [])
        if volume.startswith(".")
    ]

    assert len(mounted) > 5
    assert [path for path in mounted if not (DEPLOY / path).is_file()] == []


def test_compose_has_every_service_and_its_conditions_name_services() -> None:
    services = COMPOSE["services"]
    waited = {name for each in services.values() for name in each.get("depends_on", {})}

    assert {"postgres", "sqs", "api", "worker", "enqueuer", "prometheus", "grafana"} <= {*services}
    assert services["worker"]["deploy"]["replicas"] == 2
    assert waited <= {*services}


def test_the_sqs_endpoint_of_compose_is_the_one_that_the_tests_use() -> None:
    image, _, version = COMPOSE["services"]["sqs"]["image"].partition(":")

    assert image == "localstack/localstack"
    assert f"localstack-core[base-runtime]=={version}" in EMULATORS["localstack"].packages


def test_services_of_compose_are_read_only_and_have_time_to_stop() -> None:
    ours = {name: COMPOSE["services"][name] for name in ("api", "worker", "enqueuer", "setup")}

    assert all(each["read_only"] and each["cap_drop"] == ["ALL"] for each in ours.values())
    assert int(ours["worker"]["stop_grace_period"].removesuffix("s")) >= GRACE_SECONDS + 10


def test_prometheus_of_compose_scrapes_services_that_exist() -> None:
    scrapes = yaml.safe_load((DEPLOY / "compose" / "prometheus.yml").read_text("utf-8"))["scrape_configs"]
    targets = {
        target.split(":")[0]
        for each in scrapes
        for config in each.get("static_configs", []) + each.get("dns_sd_configs", [])
        for target in config.get("targets", []) + config.get("names", [])
    }

    assert targets == {"worker", "enqueuer", "api"}


def test_the_version_of_the_image_is_that_of_the_package() -> None:
    texts = [path.read_text("utf-8") for path in sorted(DEPLOY.rglob("*")) if path.is_file()]
    texts.append((ROOT / "docs" / "deployment.md").read_text("utf-8"))
    named = {version for text in texts for version in re.findall(r"taskharbor:(\d+\.\d+\.\d+)", text)}

    assert named == {__version__}
    kustomization = yaml.safe_load((DEPLOY / "kubernetes" / "kustomization.yaml").read_text("utf-8"))
    assert kustomization["images"] == [{"name": "taskharbor", "newTag": __version__}]


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_every_resource_has_a_known_kind_and_known_fields(path: Path) -> None:
    for resource in resources(path):
        version, fields = KINDS[resource["kind"]]

        assert resource["apiVersion"] == version
        assert {*resource} == {"apiVersion", "kind", "metadata", "spec"}
        assert {*resource["spec"]} <= fields
        assert re.fullmatch(r"[a-z0-9-]+", resource["metadata"]["name"])


def test_every_selector_selects_pods_of_its_manifest() -> None:
    for path in MANIFESTS:
        labels = [
            each["spec"]["template"]["metadata"]["labels"] for each in resources(path) if "template" in each["spec"]
        ]
        for resource in resources(path):
            selector = resource["spec"].get("selector", {})
            wanted = selector.get("matchLabels", selector)
            assert not wanted or any(wanted.items() <= each.items() for each in labels), resource["metadata"]


@pytest.mark.parametrize(("name", "pod"), [*pods()], ids=[name for name, _ in pods()])
def test_a_pod_runs_without_rights(name: str, pod: dict[str, Any]) -> None:
    [container] = pod["containers"]

    assert pod["securityContext"]["runAsNonRoot"] is True, name
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {*container["resources"]} == {"requests", "limits"}


@pytest.mark.parametrize(("name", "pod"), [*pods()], ids=[name for name, _ in pods()])
def test_a_pod_of_a_service_has_probes_on_a_port_that_it_opens(name: str, pod: dict[str, Any]) -> None:
    [container] = pod["containers"]
    if container["args"][0] == "migrate":
        assert pod["restartPolicy"] == "OnFailure"
        return
    [port] = container["ports"]
    paths = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}

    assert {each["port"] for each in paths.values()} == {port["name"]}
    assert [each["path"] for each in paths.values()] == ["/livez", "/livez", "/readyz"]
    assert str(port["containerPort"]) in container["args"], name
    assert container["readinessProbe"]["timeoutSeconds"] > max(READY_TIMEOUT_SECONDS, STORE_ANSWER_SECONDS)
    if "--grace" in container["args"]:
        assert pod["terminationGracePeriodSeconds"] >= GRACE_SECONDS + 10


def test_the_scaled_queue_has_the_concurrency_of_the_worker() -> None:
    [scaled] = [each for each in resources(DEPLOY / "kubernetes" / "scaling.yaml") if each["kind"] == "ScaledObject"]
    worker = dict(pods())["taskharbor-worker"]["containers"][0]["args"]
    [trigger] = scaled["spec"]["triggers"]

    assert f"jobs_per_worker={worker[worker.index('--concurrency') + 1]}" in trigger["metadata"]["url"]
    assert trigger["metadata"]["valueLocation"] in Scaling.model_fields


def test_variables_of_ours_that_the_files_set_exist() -> None:
    texts = [path.read_text("utf-8") for path in sorted(DEPLOY.rglob("*")) if path.is_file()]
    named = {name for text in texts for name in re.findall(r"\bTASKHARBOR_[A-Z_]+\b", text)}

    assert named
    assert named <= {*VARIABLES}


@pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="NOT RUN: this machine has no kubectl to build the manifests"
)
def test_kustomize_builds_the_manifests() -> None:
    built = subprocess.run(
        ["kubectl", "kustomize", str(DEPLOY / "kubernetes")], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    images = {pod["spec"]["template"]["spec"]["containers"][0]["image"] for pod in with_pods(built)}

    assert images == {f"taskharbor:{__version__}"}


def with_pods(text: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(text) if "template" in each.get("spec", {})]


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_has_what_its_service_needs(path: Path) -> None:
    service = unit(path)["Service"]

    assert service["User"] == "taskharbor"
    assert service["ProtectSystem"] == "strict"
    if "worker" in path.name:
        assert service["Type"] == "notify"
        assert int(service["TimeoutStopSec"]) >= GRACE_SECONDS + 10
        assert int(service["WatchdogSec"]) > 0


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="NOT RUN: this machine has no systemd-analyze to verify the units"
)
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for path in UNITS:
        text = path.read_text("utf-8").replace("/opt/taskharbor/bin/taskharbor", sys.executable)
        (tmp_path / path.name).write_text(text)

    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, sorted(tmp_path.iterdir()))],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    problems = [line for line in verified.stderr.splitlines() if "taskharbor" in line]
    assert (verified.returncode, problems) == (0, [])
