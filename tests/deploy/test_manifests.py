"""Compose files and Kubernetes manifests: they fit their schemas, the image, and the commands that they run."""

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import click
import jsonschema
import kubernetes_validate
import pytest
import yaml

from fabric.cli import main
from fabric.cli.support.variables import OTHERS
from tests.deploy.image import Image
from tests.test_house import ROOT

COMPOSE_SCHEMA: Final = "builtin_schemas/vendor/compose-spec.json"  # of the package check-jsonschema
KUBERNETES_VERSION: Final = "1.36"
COMPOSE: Final = sorted((ROOT / "deploy/compose").glob("*.yml"))
KUBERNETES: Final = sorted((ROOT / "deploy/kubernetes").glob("*.yaml"))
DATA: Final = "/var/lib/fabric"
OF_CLIENTS: Final = {*OTHERS, "FABRIC_CREDENTIALS"}
Manifest = dict[str, Any]


def named(path: Path) -> str:
    return path.name


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """What the Containerfile says, without its steps."""
    image = Image(ROOT / "deploy/container/Containerfile", ROOT, tmp_path_factory.mktemp("image"))
    image.read()
    return image


def compose(path: Path) -> Manifest:
    """A compose file with the defaults of its variables."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", path.read_text(encoding="utf-8"))
    assert "${" not in text
    loaded: Manifest = yaml.safe_load(text)
    return loaded


def resources(path: Path) -> list[Manifest]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", COMPOSE, ids=named)
def test_a_compose_file_fits_its_schema(path: Path) -> None:
    text = (files("check_jsonschema") / COMPOSE_SCHEMA).read_text(encoding="utf-8")
    schema = json.loads(text)
    manifest = compose(path)
    jsonschema.validate(manifest, schema)
    manifest["services"]["hub"]["restarts"] = "always"
    with pytest.raises(jsonschema.ValidationError, match="restarts"):
        jsonschema.validate(manifest, schema)


@pytest.mark.parametrize("path", KUBERNETES, ids=named)
def test_a_manifest_fits_its_schema(path: Path) -> None:
    for resource in resources(path):
        kubernetes_validate.validate(resource, KUBERNETES_VERSION, strict=True)
    wrong = next(one for one in resources(path) if "spec" in one)
    wrong["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="readynessProbe"):
        kubernetes_validate.validate(wrong, KUBERNETES_VERSION, strict=True)


def services() -> Iterator[tuple[str, Manifest]]:
    for path in COMPOSE:
        for name, service in compose(path)["services"].items():
            if "extends" not in service:
                yield f"{path.name} {name}", service


def pods() -> Iterator[tuple[str, Manifest]]:
    for path in KUBERNETES:
        for resource in resources(path):
            if "template" in resource.get("spec", {}):
                yield f"{path.name} {resource['metadata']['name']}", resource["spec"]["template"]["spec"]


def understood(words: list[str]) -> None:
    """The command line reads these words; nothing is run."""
    assert words[0] == "fabric"
    command: click.Command | None = main.get_command(click.Context(main), words[1])
    assert command is not None
    command.make_context(words[1], list(words[2:]))


def check_variables(names: set[str]) -> None:
    hub = main.get_command(click.Context(main), "hub")
    assert hub is not None
    known = {str(name) for option in hub.params for name in (option.envvar or ())}
    assert names <= known | OF_CLIENTS


@pytest.mark.parametrize(("name", "service"), [pytest.param(*one, id=one[0]) for one in services()])
def test_a_service_can_run_the_image(name: str, service: Manifest, image: Image) -> None:
    understood(service.get("command") or image.command)
    check_variables(set(service["environment"]))
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    if "command" not in service:
        assert service["healthcheck"]["test"] == ["CMD", *image.health]
        assert service["stop_signal"] == image.stop_signal
        assert [mount.partition(":")[2] for mount in service["volumes"]] == image.volumes == [DATA]


def test_workers_of_compose_have_their_secrets() -> None:
    manifest = compose(ROOT / "deploy/compose/hub-and-workers.yml")
    workers = {name: service for name, service in manifest["services"].items() if name != "hub"}
    assert len(workers) == 2
    for service in workers.values():
        (secret,) = service["secrets"]
        assert manifest["secrets"][secret]["file"].endswith(f"{secret}.cred")
        assert service["environment"]["FABRIC_CREDENTIALS"] == f"/run/secrets/{secret}"
    hub = compose(ROOT / "deploy/compose" / manifest["services"]["hub"]["extends"]["file"])
    assert set(hub["volumes"]) <= set(manifest["volumes"])


@pytest.mark.parametrize(("name", "pod"), [pytest.param(*one, id=one[0]) for one in pods()])
def test_a_pod_is_not_of_root_and_can_run_the_image(name: str, pod: Manifest, image: Image) -> None:
    user = pod["securityContext"]
    assert (f"{user['runAsUser']}:{user['runAsGroup']}", user["runAsNonRoot"]) == (image.user, True)
    (container,) = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert container["imagePullPolicy"] == "IfNotPresent", "the image of this name is in no public registry"
    understood(container["args"])
    check_variables({variable["name"] for variable in container["env"]})
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        if probe in container:
            command = container[probe]["exec"]["command"]
            understood(command)
            assert "--alive" in command, "a hub that is DEGRADED is neither restarted nor cut off from its clients"
            waits_s = float(command[command.index("--timeout") + 1].removesuffix("s"))
            assert container[probe]["timeoutSeconds"] > waits_s


def test_the_hub_of_kubernetes_is_one_with_one_volume() -> None:
    kinds: dict[str, list[Manifest]] = {}
    for resource in resources(ROOT / "deploy/kubernetes/hub.yaml"):
        kinds.setdefault(resource["kind"], []).append(resource)
    (hub,) = kinds["StatefulSet"]
    spec = hub["spec"]
    assert spec["replicas"] == 1
    (claim,) = spec["volumeClaimTemplates"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
    mounts = spec["template"]["spec"]["containers"][0]["volumeMounts"]
    assert [(mount["name"], mount["mountPath"]) for mount in mounts] == [(claim["metadata"]["name"], DATA)]
    labels = spec["template"]["metadata"]["labels"].items()
    assert spec["selector"]["matchLabels"].items() <= labels
    headless = {service["metadata"]["name"]: service["spec"].get("clusterIP") for service in kinds["Service"]}
    assert headless == {"fabric-hub": None, spec["serviceName"]: "None"}
    for service in kinds["Service"]:
        assert service["spec"]["selector"].items() <= labels
    (budget,) = kinds["PodDisruptionBudget"]
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels


def test_a_worker_of_kubernetes_mounts_its_secret() -> None:
    secret, worker = resources(ROOT / "deploy/kubernetes/worker.yaml")
    pod = worker["spec"]["template"]["spec"]
    (volume,) = pod["volumes"]
    assert volume["secret"]["secretName"] == secret["metadata"]["name"]
    (container,) = pod["containers"]
    (file,) = secret["stringData"]
    assert container["env"][0]["value"] == f"{container['volumeMounts'][0]['mountPath']}/{file}"
