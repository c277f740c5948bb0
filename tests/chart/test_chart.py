"""The helm chart: what it makes of its values, and which values it refuses. Needs neither a cluster nor helm."""

import copy
import functools
import json
import operator
import re
import tomllib
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any, cast

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from app.settings import Settings

helm = pytest.importorskip("helm_python", reason="no wheel for this machine")
from helm_python import Chart  # noqa: E402

Manifest = dict[str, Any]

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm/leasebeat"
DEFAULTS: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
EXAMPLES: dict[str, dict[str, Any]] = {path.stem: yaml.safe_load(path.read_text()) for path in sorted(CHART.glob("ci/*.yaml"))}
MINIMAL, FULL = EXAMPLES["minimal-values"], EXAMPLES["full-values"]
OLDEST, NEWEST = "1.30", kubernetes_validate.latest_version()

# Kubernetes checks what is in these, the chart only what is around them.
OPEN = {
    "affinity.podAntiAffinity",
    "extraEnv.1.valueFrom",
    "extraEnvFrom.0",
    "extraVolumeMounts.0",
    "extraVolumes.0",
    "migration.resources.limits",
    "migration.resources.requests",
    "networkPolicy.from.0.namespaceSelector",
    "networkPolicy.from.1.ipBlock",
    "nodeSelector",
    "podAnnotations",
    "podLabels",
    "resources.limits",
    "resources.requests",
    "service.annotations",
    "serviceAccount.annotations",
    "tolerations.0",
}


class StrictLoader(yaml.SafeLoader):
    """Refuses a key that is there twice, as Kubernetes does."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"a key is there twice: {keys}"
        return super().construct_mapping(node, deep)


@pytest.fixture(scope="module")
def chart() -> Iterator[Chart]:
    with Chart.load(CHART) as chart:
        yield chart


def render(chart: Chart, values: dict[str, Any], name: str = "demo", **release: bool) -> list[Manifest]:
    files = chart.render(values, name=name, namespace="jobs", **release)
    documents = [yaml.load(text, StrictLoader) for path, text in files.items() if path.endswith(".yaml")]
    return [document for document in documents if document]


def kinds(manifests: list[Manifest], kind: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def only(manifests: list[Manifest], kind: str) -> Manifest:
    (manifest,) = kinds(manifests, kind)
    return manifest


def pods(manifests: list[Manifest]) -> dict[str, Manifest]:
    """The pods that the manifests lead to, by the kind that makes them."""
    return {m["kind"]: m if m["kind"] == "Pod" else m["spec"]["template"] for m in manifests if m["kind"] in {"Deployment", "Job", "Pod"}}


def server(manifests: list[Manifest]) -> Manifest:
    (container,) = only(manifests, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert isinstance(container, dict)
    return container


def changed(values: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    values = copy.deepcopy(values)
    *parents, last = path.split(".")
    inner: Any = values
    for key in parents:
        inner = inner[int(key)] if isinstance(inner, list) else inner.setdefault(key, {})
    inner[int(last) if isinstance(inner, list) else last] = value
    return values


def nodes(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, object]]:
    """Everything inside, by its path; but nothing inside what Kubernetes checks."""
    name = ".".join(path)
    yield name, value
    if name not in OPEN and isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from nodes(inner, (*path, str(key)))


def leaves(values: dict[str, Any], path: str = "") -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}"


@pytest.mark.parametrize("values", EXAMPLES.values(), ids=EXAMPLES)
class TestEveryExample:
    @pytest.mark.parametrize("kubernetes", [OLDEST, NEWEST])
    def test_lints(self, values: dict[str, Any], kubernetes: str) -> None:
        report = helm.lint(CHART, values, strict=True, kube_version=f"v{kubernetes}")
        assert [message for message in report["messages"] if message["error"] != "icon is recommended"] == []
        assert report["errors"] == []

    @pytest.mark.parametrize("kubernetes", [OLDEST, NEWEST])
    def test_is_valid_kubernetes(self, chart: Chart, values: dict[str, Any], kubernetes: str) -> None:
        manifests = render(chart, values)
        assert {"Deployment", "Job", "Pod", "Service"} <= {manifest["kind"] for manifest in manifests}
        for manifest in manifests:
            kubernetes_validate.validate(manifest, kubernetes, strict=True)

    def test_selects_the_server_and_nothing_else(self, chart: Chart, values: dict[str, Any]) -> None:
        manifests = render(chart, values)
        selectors = [only(manifests, "Service")["spec"]["selector"]]
        selectors += [
            m["spec"]["selector"]["matchLabels"] for kind in ("Deployment", "PodDisruptionBudget") for m in kinds(manifests, kind)
        ]
        selectors += [m["spec"]["podSelector"]["matchLabels"] for m in kinds(manifests, "NetworkPolicy")]
        spread = only(manifests, "Deployment")["spec"]["template"]["spec"].get("topologySpreadConstraints", [])
        selectors += [constraint["labelSelector"]["matchLabels"] for constraint in spread]
        for selector in selectors:
            found = {kind for kind, pod in pods(manifests).items() if selector.items() <= pod["metadata"]["labels"].items()}
            assert found == {"Deployment"}

    def test_every_container_is_locked_down(self, chart: Chart, values: dict[str, Any]) -> None:
        manifests = render(chart, values)
        assert pods(manifests).keys() == {"Deployment", "Job", "Pod"}
        for pod in pods(manifests).values():
            spec = pod["spec"]
            assert spec["automountServiceAccountToken"] is False
            assert spec["enableServiceLinks"] is False
            assert spec["securityContext"]["runAsNonRoot"] is True
            assert spec["securityContext"]["runAsUser"] >= 10001
            assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            for container in [*spec.get("initContainers", []), *spec["containers"]]:
                assert container["securityContext"] == {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                    "readOnlyRootFilesystem": True,
                }

    def test_holds_no_secret(self, chart: Chart, values: dict[str, Any]) -> None:
        manifests = render(chart, values)
        assert kinds(manifests, "Secret") == []
        assert "postgres://" not in json.dumps(manifests)
        assert "postgresql://" not in json.dumps(manifests)
        database = {"existingSecret": "", **DEFAULTS["database"], **values["database"]}
        for kind in ("Deployment", "Job"):
            (container,) = pods(manifests)[kind]["spec"]["containers"]
            address = [entry for entry in container["env"] if entry["name"] == "DATABASE_URL"]
            reference = {"name": database["existingSecret"], "key": database["secretKey"]}
            assert address == [{"name": "DATABASE_URL", "valueFrom": {"secretKeyRef": reference}}]

    def test_migrates_before_anything_else_exists(self, chart: Chart, values: dict[str, Any]) -> None:
        manifests = render(chart, values, is_install=True, is_upgrade=False)
        job = only(manifests, "Job")
        assert job["metadata"]["annotations"] == {
            "helm.sh/hook": "pre-install,pre-upgrade",
            "helm.sh/hook-delete-policy": "before-hook-creation",
        }
        assert job == only(render(chart, values, is_install=False, is_upgrade=True), "Job")

        ours = {manifest["metadata"]["name"] for manifest in manifests if manifest["kind"] in {"ServiceAccount", "ConfigMap", "Secret"}}
        pod = job["spec"]["template"]["spec"]
        assert "serviceAccountName" not in pod
        assert not [name for name in ours if f'"name": "{name}"' in json.dumps(pod)]

        (container,) = pod["containers"]
        assert container["args"] == ["migrate"]
        assert pod["restartPolicy"] == "Never"
        assert job["spec"]["activeDeadlineSeconds"] > 0
        assert job["spec"]["backoffLimit"] <= 2

    def test_can_write_to_tmp(self, chart: Chart, values: dict[str, Any]) -> None:
        for kind in ("Deployment", "Job"):
            pod = pods(render(chart, values))[kind]["spec"]
            assert {"name": "tmp", "emptyDir": {}} in pod["volumes"]
            assert {"name": "tmp", "mountPath": "/tmp"} in pod["containers"][0]["volumeMounts"]

    def test_outlives_its_own_shutdown(self, chart: Chart, values: dict[str, Any]) -> None:
        manifests = render(chart, values)
        pod = only(manifests, "Deployment")["spec"]["template"]["spec"]
        sleep = server(manifests).get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        assert sleep == values.get("preStopSleepSeconds", DEFAULTS["preStopSleepSeconds"])
        assert pod["terminationGracePeriodSeconds"] > sleep + 60
        assert pod["terminationGracePeriodSeconds"] > sleep + values.get("shutdownGraceSeconds", DEFAULTS["shutdownGraceSeconds"]) + 30

    def test_is_understood_by_the_server(self, chart: Chart, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
        container = server(render(chart, values))
        for entry in container["env"]:
            monkeypatch.setenv(entry["name"], entry.get("value", "postgresql://secret"))
        settings = Settings.model_validate({})
        assert settings.database_url is not None
        assert settings.port == container["ports"][0]["containerPort"]
        assert settings.log_level == values.get("log", DEFAULTS["log"])["level"]
        assert settings.log_format == values.get("log", DEFAULTS["log"])["format"]
        assert settings.shutdown_grace == values.get("shutdownGraceSeconds", DEFAULTS["shutdownGraceSeconds"])

    def test_is_probed(self, chart: Chart, values: dict[str, Any]) -> None:
        container = server(render(chart, values))
        paths = {name: container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
        assert paths == {"startup": "/healthz", "liveness": "/healthz", "readiness": "/readyz"}
        assert container["args"] == ["serve"]

    def test_rolls_without_a_gap(self, chart: Chart, values: dict[str, Any]) -> None:
        strategy = only(render(chart, values), "Deployment")["spec"]["strategy"]
        assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}

    def test_stays_inside_the_cluster(self, chart: Chart, values: dict[str, Any]) -> None:
        assert only(render(chart, values), "Service")["spec"]["type"] == "ClusterIP"

    def test_helm_test_asks_the_service(self, chart: Chart, values: dict[str, Any]) -> None:
        manifests = render(chart, values)
        service, pod = only(manifests, "Service"), only(manifests, "Pod")
        assert pod["metadata"]["annotations"] == {"helm.sh/hook": "test", "helm.sh/hook-delete-policy": "before-hook-creation"}
        assert (
            pod["spec"]["containers"][0]["command"][-1]
            == f"http://{service['metadata']['name']}:{service['spec']['ports'][0]['port']}/readyz"
        )

    @pytest.mark.parametrize("release", ["a", "r" * 53, "leasebeat-" + "r" * 43])
    def test_every_name_fits(self, chart: Chart, values: dict[str, Any], release: str) -> None:
        manifests = render(chart, values, name=release)
        names = [manifest["metadata"]["name"] for manifest in manifests]
        labels = [label for manifest in manifests for label in manifest["metadata"]["labels"].values()]
        assert [name for name in names + labels if not re.fullmatch(r"[a-zA-Z0-9]([-._a-zA-Z0-9]{0,61}[a-zA-Z0-9])?", name)] == []


@pytest.mark.parametrize(("replicas", "budgets"), [(0, 0), (1, 0), (2, 1), (3, 1)])
def test_a_budget_needs_more_than_one_pod(chart: Chart, replicas: int, budgets: int) -> None:
    found = kinds(render(chart, changed(MINIMAL, "replicaCount", replicas)), "PodDisruptionBudget")
    assert [budget["spec"]["maxUnavailable"] for budget in found] == [1] * budgets


def test_only_its_own_namespace_reaches_it_by_default(chart: Chart) -> None:
    (rule,) = only(render(chart, MINIMAL), "NetworkPolicy")["spec"]["ingress"]
    assert rule == {"from": [{"podSelector": {}}], "ports": [{"port": "http"}]}


def test_further_peers_are_added(chart: Chart) -> None:
    (rule,) = only(render(chart, FULL), "NetworkPolicy")["spec"]["ingress"]
    assert rule["from"] == [{"podSelector": {}}, *FULL["networkPolicy"]["from"]]


def test_network_policy_can_be_left_out(chart: Chart) -> None:
    assert kinds(render(chart, changed(MINIMAL, "networkPolicy.enabled", value=False)), "NetworkPolicy") == []


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ({}, "leasebeat-server:{appVersion}"),
        ({"tag": "edge"}, "leasebeat-server:edge"),
        ({"tag": "edge", "digest": "sha256:" + "0" * 64}, "leasebeat-server@sha256:" + "0" * 64),
    ],
)
def test_digest_wins_over_tag(chart: Chart, image: dict[str, str], expected: str) -> None:
    expected = expected.format(**chart.metadata)
    manifests = render(chart, changed(MINIMAL, "image", image))
    assert {pod["spec"]["containers"][0]["image"] for pod in pods(manifests).values()} == {expected}


@pytest.mark.parametrize(
    ("account", "expected"),
    [
        ({}, "demo-leasebeat"),
        ({"name": "mine"}, "mine"),
        ({"create": False}, "default"),
        ({"create": False, "name": "theirs"}, "theirs"),
    ],
)
def test_service_account(chart: Chart, account: dict[str, Any], expected: str) -> None:
    manifests = render(chart, changed(MINIMAL, "serviceAccount", account))
    assert only(manifests, "Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == expected
    assert [made["metadata"]["name"] for made in kinds(manifests, "ServiceAccount")] == ([expected] if account.get("create", True) else [])


def test_the_platform_may_pick_the_user(chart: Chart) -> None:
    free = {"runAsUser": None, "runAsGroup": None, "fsGroup": None}
    for pod in pods(render(chart, changed(MINIMAL, "podSecurityContext", free))).values():
        assert pod["spec"]["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def test_own_labels_win(chart: Chart) -> None:
    labels = only(render(chart, FULL), "Deployment")["spec"]["template"]["metadata"]["labels"]
    assert labels["example.com/team"] == "platform"
    assert labels["app.kubernetes.io/component"] == "server"


@pytest.mark.parametrize("path", sorted(set(leaves(DEFAULTS)) - {"database.existingSecret"}))
def test_every_value_makes_a_difference(chart: Chart, path: str) -> None:
    default = functools.reduce(operator.getitem, path.split("."), cast("Any", DEFAULTS))
    reset = [(example, changed(example, path, default)) for example in EXAMPLES.values()]
    assert any(chart.render(example) != chart.render(without) for example, without in reset)


NODES = dict(nodes(DEFAULTS)) | dict(nodes(FULL))


@pytest.mark.parametrize("path", [path for path, value in NODES.items() if isinstance(value, dict) and path not in OPEN])
def test_a_typo_is_refused(chart: Chart, path: str) -> None:
    values = FULL if path in dict(nodes(FULL)) else DEFAULTS
    with pytest.raises(helm.HelmValuesError, match="'tpyo' not allowed"):
        chart.render(changed(values, f"{path}.tpyo".lstrip("."), {}))


@pytest.mark.parametrize("path", [path for path in NODES if path])
def test_a_wrong_type_is_refused(chart: Chart, path: str) -> None:
    values = FULL if path in dict(nodes(FULL)) else DEFAULTS
    with pytest.raises(helm.HelmValuesError, match="/" + path.replace(".", "/")):
        chart.render(changed(values, path, [] if isinstance(NODES[path], str) else "text"))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("replicaCount", -1),
        ("replicaCount", None),
        ("nameOverride", "Not-A-Name"),
        ("fullnameOverride", "n" * 54),
        ("image.pullPolicy", "Sometimes"),
        ("image.digest", "latest"),
        ("image.repository", ""),
        ("image.repository", None),
        ("imagePullSecrets", [{}]),
        ("imagePullSecrets", [{"name": ""}]),
        ("database.secretKey", ""),
        ("database.secretKey", None),
        ("log.level", "trace"),
        ("log.level", None),
        ("log.format", "logfmt"),
        ("extraEnv", [{"name": ""}]),
        ("extraEnv", [{"value": "b"}]),
        ("extraEnv", [{"name": "A", "value": 1}]),
        ("extraEnv", [{"name": "A", "valueFrom": {}}]),
        ("extraVolumes", [{}]),
        ("migration.activeDeadlineSeconds", 0),
        ("migration.activeDeadlineSeconds", 86401),
        ("migration.backoffLimit", -1),
        ("migration.backoffLimit", 7),
        ("migration.backoffLimit", None),
        ("service.port", 0),
        ("service.port", 65536),
        ("service.port", None),
        ("service.type", "LoadBalancer"),
        ("networkPolicy.enabled", None),
        ("networkPolicy.from", [{}]),
        ("networkPolicy.from", [{"podSelector": "workers"}]),
        ("serviceAccount.create", None),
        ("podLabels.team", 1),
        ("podSecurityContext.runAsUser", 0),
        ("podSecurityContext.runAsNonRoot", False),
        ("resources.limits.memory", []),
        ("probes.liveness.periodSeconds", 0),
        ("probes.liveness.failureThreshold", 0),
        ("probes.liveness.timeoutSeconds", None),
        ("probes.startup", None),
        ("preStopSleepSeconds", -1),
        ("preStopSleepSeconds", 601),
        ("shutdownGraceSeconds", 0),
        ("shutdownGraceSeconds", 601),
        ("affinity.nodeAffinity", "zone"),
        ("affinity.podAffinity", "zone"),
        ("topologySpreadConstraints", [{"maxSkew": 1}]),
        ("topologySpreadConstraints", [{**DEFAULTS["topologySpreadConstraints"][0], "maxSkew": 0}]),
        ("topologySpreadConstraints", [{**DEFAULTS["topologySpreadConstraints"][0], "minDomains": 0}]),
        ("topologySpreadConstraints", [{**DEFAULTS["topologySpreadConstraints"][0], "topologyKey": ""}]),
    ],
)
def test_a_bad_value_is_refused(chart: Chart, path: str, value: object) -> None:
    with pytest.raises(helm.HelmValuesError, match=path.split(".", maxsplit=1)[0]):
        chart.render(changed(MINIMAL, path, value))


def test_extra_environment_cannot_override_the_chart(chart: Chart) -> None:
    own = [entry["name"] for entry in server(render(chart, MINIMAL))["env"]]
    assert "DATABASE_URL" in own
    for name in own:
        with pytest.raises(helm.HelmValuesError, match="/extraEnv/0/name"):
            chart.render(changed(MINIMAL, "extraEnv", [{"name": name, "value": "x"}]))


@pytest.mark.parametrize("values", [{}, {"database": {"existingSecret": ""}}])
def test_the_database_is_required(chart: Chart, values: dict[str, Any]) -> None:
    with pytest.raises(helm.HelmRenderError, match=r"database\.existingSecret is required"):
        chart.render(values)


@pytest.mark.parametrize("values", EXAMPLES.values(), ids=EXAMPLES)
def test_notes_say_that_there_is_no_access_control(chart: Chart, values: dict[str, Any]) -> None:
    notes = chart.render(values)["leasebeat/templates/NOTES.txt"]
    assert "NO ACCESS CONTROL" in notes
    assert ("every pod in the cluster can reach it" in notes) is not values.get("networkPolicy", DEFAULTS["networkPolicy"])["enabled"]
    assert "**No access control.**" in (CHART / "README.md").read_text()


def test_schema_has_the_keys_of_the_values() -> None:
    def compare(values: dict[str, Any], schema: dict[str, Any], path: str = "") -> None:
        if "$ref" in schema:
            schema = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]]
        if "properties" in schema and values:
            assert schema["additionalProperties"] is False, path
            assert schema["properties"].keys() - {"global"} == values.keys(), path
            for key, value in values.items():
                if isinstance(value, dict):
                    compare(value, schema["properties"][key], f"{path}.{key}")

    compare(DEFAULTS, SCHEMA)


def test_readme_has_every_value_and_its_default() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| `(.*?)` \| .*\|$", (CHART / "README.md").read_text(), re.MULTILINE)
    documented = {key: json.loads(default) for key, default in rows}
    assert len(documented) == len(rows)

    nested: dict[str, Any] = {}
    for key, default in documented.items():
        nested = changed(nested, key, default)
    assert nested == DEFAULTS


def test_versions_agree(chart: Chart) -> None:
    server_version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert chart.metadata["appVersion"] == server_version
    assert f"ARG VERSION={server_version}\n" in (ROOT / "Dockerfile").read_text()


def test_oldest_kubernetes_is_the_one_tested(chart: Chart) -> None:
    assert chart.metadata["kubeVersion"] == f">={OLDEST}.0-0"
