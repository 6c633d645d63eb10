"""What is in deploy/, without a cluster to apply it to: built, held to the schemas, and to what nodes answer, ask and exit with."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from liftpy import __version__
from liftpy.core.observe.node_health import HealthInput, live, ready
from liftpy.core.wire.permissions import AccessRole, Scope, as_nats_conf, rights_of
from sidecar.cli.sidecar import sidecar as command
from sidecar.dev.nats_server import find_nats_server
from sidecar.node.node import HARD_STOP_S
from sidecar.runtime.restarts import EXIT_NO_RESTART, EXIT_TO_REPAIR
from sidecar.runtime.settings import NodeSettings, SettingsLoader

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
OVERLAYS = sorted(path.name for path in (DEPLOY / "k8s" / "overlays").iterdir())
KUBECTL = shutil.which("kubectl")
SYSTEMD = shutil.which("systemd-analyze")
SYSTEMCTL = shutil.which("systemctl")
UNIT = DEPLOY / "systemd" / "liftpy@.service"

needs_kubectl = pytest.mark.skipif(KUBECTL is None, reason="there is no kubectl to build the manifests with")
needs_systemd = pytest.mark.skipif(SYSTEMD is None, reason="there is no systemd-analyze")
needs_systemctl = pytest.mark.skipif(SYSTEMCTL is None, reason="there is no systemctl")


@cache
def built(overlay: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [str(KUBECTL), "kustomize", str(DEPLOY / "k8s" / "overlays" / overlay)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def of_kind(overlay: str, kind: str) -> list[dict[str, Any]]:
    return [document for document in built(overlay) if document["kind"] == kind]


def stored_by(overlay: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The StatefulSet, and in it the container that is a node."""
    (found,) = of_kind(overlay, "StatefulSet")
    spec = found["spec"]["template"]["spec"]
    (node,) = [c for c in [*spec["containers"], *spec.get("initContainers", [])] if c["name"] == "liftpy"]
    return found, node


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubernetes_manifests_are_valid(overlay: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    for document in built(overlay):
        validate.validate(document, "1.36", strict=True)


def test_kubernetes_validation_finds_an_unknown_field() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    document = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {"prots": []}}
    with pytest.raises(validate.ValidationError):
        validate.validate(document, "1.36", strict=True)


@needs_kubectl
@pytest.mark.parametrize("overlay", [name for name in OVERLAYS if name != "with-application"])
def test_kubernetes_network_policy_allows_only_metrics(overlay: str) -> None:
    (policy,) = of_kind(overlay, "NetworkPolicy")
    found, _ = stored_by(overlay)
    labels = found["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    (rule,) = policy["spec"]["ingress"]
    assert [port["port"] for port in rule["ports"]] == ["probes"]
    assert all("namespaceSelector" in source for source in rule["from"])


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubernetes_probes_use_the_probe_port_and_known_paths(overlay: str) -> None:
    found, node = stored_by(overlay)
    (port,) = [port["containerPort"] for port in node["ports"] if port["name"] == "probes"]
    environment = {one["name"]: one.get("value", "") for one in node["env"]}
    assert environment["LIFTPY_PROBE_LISTEN"] == f"$(POD_IP):{port}"
    asked = {kind: node[kind]["httpGet"] for kind in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert {probe["port"] for probe in asked.values()} == {"probes"}
    paths = {kind: probe["path"] for kind, probe in asked.items()}
    assert paths["readinessProbe"] == "/readyz?synced"
    waits = HealthInput(nats=False, registered=False, opened=False, opening=900, stopped_for_space=1)
    for kind in ("startupProbe", "livenessProbe"):
        checks = {"/livez": live, "/readyz": ready}[paths[kind]](waits)
        assert all(check.ok for check in checks), f"{kind} kills a node that recovers, waits for NATS or has a full disk"
    names = [one["name"] for one in node["env"]]
    assert names.index("POD_IP") < names.index("LIFTPY_PROBE_LISTEN"), "a variable is put in where it is known already"
    assert found["spec"]["template"]["metadata"]["annotations"]["prometheus.io/port"] == str(port)


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubernetes_environment_gives_valid_node_settings(overlay: str) -> None:
    found, node = stored_by(overlay)
    (config,) = [
        c for c in of_kind(overlay, "ConfigMap") if c["metadata"]["name"] == node["envFrom"][0]["configMapRef"]["name"]
    ]
    environment = {**config["data"]}
    for ordinal in range(3):
        pod = f"{found['metadata']['name']}-{ordinal}"
        known = {"metadata.name": pod, "status.podIP": "10.0.0.7", "metadata.labels['topology.kubernetes.io/zone']": "zone-a"}
        for one in node["env"]:
            value = known[one["valueFrom"]["fieldRef"]["fieldPath"]] if "valueFrom" in one else one["value"]
            environment[one["name"]] = value.replace("$(POD_IP)", "10.0.0.7")
        flags = command.make_context("sidecar", list(node["args"][1:])).params
        flags = {name: value for name, value in flags.items() if name not in ("config", "as_json")}
        settings = SettingsLoader(None, flags, environment).load()
        assert settings.node_id == pod
        assert settings.is_controller
        assert len(settings.controllers) == 3
        mounts = {mount["mountPath"]: mount["name"] for mount in node["volumeMounts"]}
        assert any(settings.data.is_relative_to(path) for path in mounts)
    fields = {"LIFTPY_" + name.upper() for name in NodeSettings.__dataclass_fields__} | {"LIFTPY_CREDS_FILE"}
    assert {name for name in environment if name.startswith("LIFTPY_")} <= fields


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_kubernetes_statefulset_has_the_settings_that_a_node_needs(overlay: str) -> None:
    found, node = stored_by(overlay)
    spec = found["spec"]["template"]["spec"]
    assert node["image"] == f"liftpy:{__version__}"
    assert spec["terminationGracePeriodSeconds"] > HARD_STOP_S
    assert found["spec"]["podManagementPolicy"] == "Parallel", "one after another, the first waits for a majority for ever"
    volumes = {volume["name"] for volume in spec.get("volumes", [])}
    volumes |= {claim["metadata"]["name"] for claim in found["spec"].get("volumeClaimTemplates") or []}
    mounted = {mount["name"] for mount in node["volumeMounts"]}
    assert mounted <= volumes
    security = {**spec["securityContext"], **node["securityContext"]}
    assert (security["runAsNonRoot"], security["readOnlyRootFilesystem"]) == (True, True)
    assert (security["allowPrivilegeEscalation"], security["capabilities"]) == (False, {"drop": ["ALL"]})
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert f"useradd --system --uid {security['runAsUser']} " in (DEPLOY.parent / "Dockerfile").read_text(encoding="utf-8")
    (budget,) = of_kind(overlay, "PodDisruptionBudget")
    assert (budget["spec"]["maxUnavailable"], budget["spec"]["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")
    labels = found["spec"]["template"]["metadata"]["labels"]
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert found["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert found["spec"]["serviceName"] in {service["metadata"]["name"] for service in of_kind(overlay, "Service")}
    if node in spec.get("initContainers", []):
        assert spec["terminationGracePeriodSeconds"] >= 30 + HARD_STOP_S, "the application stops first, in the same time"
        assert node["restartPolicy"] == "Always", "else the application would wait for its end"


@needs_kubectl
@pytest.mark.parametrize("overlay", [name for name in OVERLAYS if name != "dev"])
def test_kubernetes_two_nodes_never_share_a_host(overlay: str) -> None:
    template = stored_by(overlay)[0]["spec"]["template"]
    rules = template["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (rule,) = [rule for rule in rules if rule["topologyKey"] == "kubernetes.io/hostname"]
    assert rule["labelSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items()


def test_kubernetes_steps_to_shrink_remove_the_node_after_its_pod_and_before_its_volume() -> None:
    text = (DEPLOY.parent / "docs" / "deploying.md").read_text(encoding="utf-8")
    (found,) = yaml.safe_load_all((DEPLOY / "k8s" / "base" / "statefulset.yaml").read_text(encoding="utf-8"))
    (claim,) = found["spec"]["volumeClaimTemplates"]
    node = f"{found['metadata']['name']}-3"
    steps = (
        f"liftpy node drain {node} --wait", f"kubectl scale statefulset {found['metadata']['name']} --replicas 3",
        f"kubectl wait --for=delete pod/{node}", f"liftpy node remove {node}",
        f"kubectl delete pvc {claim['metadata']['name']}-{node}",
    )  # fmt: skip
    positions = [text.find(f"\n{step}") for step in steps]
    assert -1 not in positions
    assert positions == sorted(positions)


def unit() -> dict[str, list[str]]:
    lines = UNIT.read_text(encoding="utf-8").splitlines()
    settings: dict[str, list[str]] = {}
    for name, _, value in (line.partition("=") for line in lines if "=" in line and not line.startswith("#")):
        settings.setdefault(name, []).append(value)
    return settings


def test_systemd_unit_starts_a_node_and_knows_its_exit_codes() -> None:
    found = unit()
    program, name, *words = shlex.split(found["ExecStart"][0].replace("%i", "n1").replace("%S", "/var/lib"))
    assert (program, name) == ("/opt/liftpy/bin/liftpy", "sidecar")
    flags = command.make_context("sidecar", words, resilient_parsing=True).params
    assert (flags["node_id"], flags["data"]) == ("n1", "/var/lib/liftpy/n1")
    assert f"/var/lib/{found['StateDirectory'][0].replace('%i', 'n1')}" == flags["data"]
    assert found["RestartForceExitStatus"] == [str(EXIT_TO_REPAIR)]
    assert found["RestartPreventExitStatus"] == [f"2 {EXIT_NO_RESTART}"]
    assert float(found["TimeoutStopSec"][0]) > HARD_STOP_S
    assert found["Type"] == ["notify"]
    assert float(found["WatchdogSec"][0]) >= 10
    credential, _, _ = found["LoadCredential"][0].partition(":")
    assert f"LIFTPY_CREDS_FILE=%d/{credential}" in found["Environment"]
    readme = (DEPLOY.parent / "docs" / "deploying.md").read_text(encoding="utf-8")
    assert "LoadCredential=" in readme, "how to run without"


@needs_systemctl
def test_systemd_unit_that_is_enabled_alone_starts_at_boot(tmp_path: Path) -> None:
    folder = tmp_path / "etc" / "systemd" / "system"
    shutil.copytree(DEPLOY / "systemd", folder)
    words = [str(SYSTEMCTL), f"--root={tmp_path}", "enable", "liftpy@n1.service"]
    subprocess.run(words, capture_output=True, timeout=60, check=True)
    assert (folder / "multi-user.target.wants" / "liftpy@n1.service").is_symlink()


@needs_systemd
def test_systemd_unit_is_valid_and_sandboxed(tmp_path: Path) -> None:
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text(encoding="utf-8").replace("/opt/liftpy/bin/liftpy", "/bin/true"), encoding="utf-8")
    target = shutil.copy(DEPLOY / "systemd" / "liftpy.target", tmp_path)
    done = subprocess.run(
        [str(SYSTEMD), "verify", "--man=no", copy, target], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout, done.stderr) == ("", ""), "it prints what is wrong, and exits with 0"
    done = subprocess.run(
        [str(SYSTEMD), "security", "--offline=true", copy], capture_output=True, text=True, timeout=120, check=False
    )
    exposure = re.search(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert exposure is not None, done.stdout + done.stderr
    assert float(exposure[1]) <= 2.0


ROLES = {
    AccessRole.NODE: Scope("liftpy", data_subjects=("shop.>",), replies=("_INBOX_reader",)),
    AccessRole.PUBLISHER: Scope("liftpy", data_subjects=("shop.>",), inbox_prefix="_INBOX_publisher"),
    AccessRole.READER: Scope("liftpy", inbox_prefix="_INBOX_reader"),
    AccessRole.OPERATOR: Scope("liftpy", inbox_prefix="_INBOX_operator", principal="operator"),
    AccessRole.STATUS: Scope("liftpy", inbox_prefix="_INBOX_status"),
}


def test_nats_server_config_users_have_exactly_the_printed_permissions() -> None:
    text = (DEPLOY / "nats" / "server.conf").read_text(encoding="utf-8")
    flat = re.sub(r"\s+", " ", text)
    for role, scope in ROLES.items():
        rights = re.sub(r"\s+", " ", as_nats_conf(rights_of(role, scope))).strip()
        assert f"{{ user: {role.value}, password: $LIFTPY_{role.value.upper()}_PASSWORD, {rights} }}" in flat
    assert flat.count("user: ") == flat.count("permissions:") == len(ROLES)
    environment = {f"LIFTPY_{role.value.upper()}_PASSWORD": f"secret-{role.value}" for role in ROLES}
    server = str(find_nats_server())
    done = subprocess.run(
        [server, "-t", "-c", str(DEPLOY / "nats" / "server.conf")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_compose_observability_files_exist() -> None:
    compose = yaml.safe_load((DEPLOY.parent / "compose.yaml").read_text(encoding="utf-8"))
    observed = [service for service in compose["services"].values() if "observe" in service.get("profiles", [])]
    assert len(observed) == 2
    for service in observed:
        for volume in service["volumes"]:
            assert (DEPLOY.parent / volume.split(":")[0]).exists(), volume
    scraped = yaml.safe_load((DEPLOY / "compose" / "prometheus.yml").read_text(encoding="utf-8"))
    (job,) = scraped["scrape_configs"]
    port = compose["x-environment"]["LIFTPY_PROBE_LISTEN"].rpartition(":")[2]
    sidecars = [name for name in compose["services"] if name.startswith("sidecar")]
    assert job["static_configs"] == [{"targets": [f"{name}:{port}" for name in sidecars]}]
    for path in scraped["rule_files"]:
        assert (DEPLOY / "prometheus" / Path(path).name).exists()
