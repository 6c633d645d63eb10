"""The Helm chart: linted, rendered, held to the Kubernetes schemas, and equal to the kustomize base where both say the same."""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from sidecar.cli.dashboard import dashboard
from sidecar.runtime.settings import SettingsLoader

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
CHART = DEPLOY / "helm" / "liftpy"
HELM = shutil.which("helm")
KUBERNETES = "1.34.0"
ALL_ON = (
    "page.enabled=true",
    "page.hostnames={liftpy.example.com}",
    "serviceMonitor.enabled=true",
    "serviceMonitor.labels.team=data",
)
ALL_OFF = (
    "networkPolicy.enabled=false", "nats.credentials.secret=", "page.enabled=true", "page.secret=", "spreadHosts=false",
    "storage.className=fast", "settings.LIFTPY_REPLICATION_SESSION_S=5", "replicas=5", "controllers=5",
)  # fmt: skip

pytestmark = pytest.mark.skipif(HELM is None, reason="there is no helm to render the chart with")


def run_helm(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(HELM), *words], capture_output=True, text=True, timeout=60, check=False)


@cache
def rendered(*values: str) -> list[dict[str, Any]]:
    given = [word for value in values for word in ("--set", value)]
    done = run_helm("template", "liftpy", str(CHART), "--kube-version", KUBERNETES, *given)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def of_kind(kind: str, *values: str) -> list[dict[str, Any]]:
    return [document for document in rendered(*values) if document["kind"] == kind]


def node_of(*values: str) -> dict[str, Any]:
    (found,) = of_kind("StatefulSet", *values)
    (container,) = found["spec"]["template"]["spec"]["containers"]
    return dict(container)


def test_helm_chart_passes_lint() -> None:
    done = run_helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("values", [(), ALL_ON, ALL_OFF], ids=["default", "all-on", "all-off"])
def test_helm_chart_renders_valid_manifests(values: tuple[str, ...]) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    for document in rendered(*values):
        if not document["apiVersion"].startswith("monitoring.coreos.com/"):
            validate.validate(document, "1.36", strict=True)


def test_helm_chart_node_equals_the_kustomize_base() -> None:
    (base,) = yaml.safe_load_all((DEPLOY / "k8s" / "base" / "statefulset.yaml").read_text(encoding="utf-8"))
    (wanted,) = base["spec"]["template"]["spec"]["containers"]
    found = node_of()
    for name in (
        "args",
        "env",
        "ports",
        "startupProbe",
        "readinessProbe",
        "livenessProbe",
        "resources",
        "securityContext",
        "volumeMounts",
    ):
        assert found[name] == wanted[name], name
    (chart,) = of_kind("StatefulSet")
    for name in ("podManagementPolicy", "minReadySeconds", "persistentVolumeClaimRetentionPolicy", "volumeClaimTemplates"):
        assert chart["spec"][name] == base["spec"][name], name
    for name in ("terminationGracePeriodSeconds", "securityContext", "volumes"):
        assert chart["spec"]["template"]["spec"][name] == base["spec"]["template"]["spec"][name], name


def test_helm_chart_settings_are_settings_of_a_node() -> None:
    (settings,) = of_kind("ConfigMap", *ALL_OFF)
    assert settings["data"]["LIFTPY_CONTROLLERS"] == "liftpy-0,liftpy-1,liftpy-2,liftpy-3,liftpy-4"
    environment = {
        **settings["data"],
        "LIFTPY_NODE_ID": "liftpy-0",
        "LIFTPY_DATA": "/data",
        "LIFTPY_PROBE_LISTEN": "10.0.0.1:8224",
    }
    node = SettingsLoader(None, {}, environment).load()
    assert node.replication.session_s == 5
    assert node.controllers == tuple(f"liftpy-{number}" for number in range(5))


def test_helm_chart_page_runs_a_command_that_exists() -> None:
    (page,) = of_kind("Deployment", *ALL_ON)
    (container,) = page["spec"]["template"]["spec"]["containers"]
    command, *options = container["args"]
    assert command == dashboard.name
    context = dashboard.make_context("dashboard", list(options))
    assert context.params["listen"] == "0.0.0.0:8223"
    assert context.params["hosts"] == ("liftpy-page", "liftpy.example.com")


def test_helm_chart_selectors_match_their_pods() -> None:
    pods = {
        labels["app.kubernetes.io/component"]: labels
        for kind in ("StatefulSet", "Deployment")
        for document in of_kind(kind, *ALL_ON)
        for labels in (document["spec"]["template"]["metadata"]["labels"],)
    }
    for service in of_kind("Service", *ALL_ON):
        selector = service["spec"]["selector"]
        assert selector.items() <= pods[selector["app.kubernetes.io/component"]].items()
    for kind, field in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
        (found,) = of_kind(kind, *ALL_ON)
        assert found["spec"][field]["matchLabels"].items() <= pods["node"].items()
    (monitor,) = of_kind("ServiceMonitor", *ALL_ON)
    (nodes,) = [one for one in of_kind("Service", *ALL_ON) if one["spec"].get("clusterIP") == "None"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= nodes["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"][0]["relabelings"][0]["replacement"].startswith("liftpy"), "the alerts match this name"


def test_helm_chart_without_credentials_mounts_no_secret() -> None:
    text = yaml.safe_dump(rendered(*ALL_OFF))
    assert "secretName" not in text
    assert "LIFTPY_CREDS_FILE" not in text
    assert not of_kind("NetworkPolicy", *ALL_OFF)


@pytest.mark.parametrize(
    "value",
    [
        "replicas=0",
        "controllers=2",
        "nats.url=localhost:4222",
        "storage.size=big",
        "settings.PATH=x",
        "settings.LIFTPY_NATS=nats://x:4222",
        "unknown=1",
        "page.port=80",
    ],
)
def test_helm_chart_rejects_an_invalid_value(value: str) -> None:
    done = run_helm("template", "liftpy", str(CHART), "--kube-version", KUBERNETES, "--set", value)
    assert done.returncode != 0
    assert "values don't meet" in done.stderr


def test_helm_chart_rejects_more_controllers_than_nodes() -> None:
    done = run_helm("template", "liftpy", str(CHART), "--kube-version", KUBERNETES, "--set", "replicas=1")
    assert done.returncode != 0
    assert "controllers=3 is more than replicas=1" in done.stderr


def test_helm_chart_setting_replaces_the_log_format() -> None:
    (config,) = of_kind("ConfigMap", "settings.LIFTPY_LOG_FORMAT=text")
    assert config["data"]["LIFTPY_LOG_FORMAT"] == "text"
    assert of_kind("ConfigMap")[0]["data"]["LIFTPY_LOG_FORMAT"] == "json"


def test_helm_chart_schema_allows_further_settings_and_none_that_the_chart_sets() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    jsonschema.validate({"settings": {"LIFTPY_LOG_FORMAT": "text"}}, schema)
    (config,) = of_kind("ConfigMap")
    chart_sets = {*config["data"], *(one["name"] for one in node_of()["env"])} - {"LIFTPY_LOG_FORMAT", "POD_IP"}
    for name in chart_sets:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"settings": {name: "x"}}, schema)
