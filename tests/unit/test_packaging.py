# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes manifests conform to the schemas of their APIs and match the image that they use."""

import json
import re
import subprocess

import pytest
import yaml
from testkit.places import ROOT
from testkit.speed import patience

from horovod.launcher.arguments import FlagParser
from horovod.launcher.start.kubernetes import default_hosts

DOCKER = ROOT / "packaging" / "docker"
MANIFESTS = sorted((ROOT / "packaging" / "kubernetes").glob("*.yaml"))
SCHEMAS = json.loads((ROOT / "tests" / "unit" / "data" / "kubernetes_schemas.json").read_text())
TYPES = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool, "int-or-string": (int, str)}


def problems(value, schema, where="$"):
    """Return the schema violations of `value` as lines that begin with the path of the field."""
    if "$ref" in schema:
        schema = SCHEMAS["parts"][schema["$ref"]]
    expected = TYPES[schema["type"]]
    if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
        return [f"{where}: {value!r} is not of type {schema['type']}"]
    found = []
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{where}: {value!r} is none of {schema['enum']}")
    if "pattern" in schema and not re.fullmatch(schema["pattern"], str(value)):
        found.append(f"{where}: {value!r} does not match {schema['pattern']}")
    if isinstance(value, int) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        found.append(f"{where}: {value} is out of range")
    if isinstance(value, list):
        found += [
            line for number, item in enumerate(value) for line in problems(item, schema["items"], f"{where}[{number}]")
        ]
    if isinstance(value, dict):
        found += _problems_of_fields(value, schema, where)
    return found


def _problems_of_fields(value, schema, where):
    found = [f"{where}: {name} is missing" for name in schema.get("required", ()) if name not in value]
    for name, item in value.items():
        inner = schema.get("values") or schema["properties"].get(name)
        found += [f"{where}: unknown field {name}"] if inner is None else problems(item, inner, f"{where}.{name}")
    return found


def load(path):
    return yaml.safe_load(path.read_text())


def schema_of(manifest):
    return SCHEMAS["kinds"][f"{manifest['apiVersion']} {manifest['kind']}"]


def pod_templates(value):
    """Yield every pod spec in a manifest."""
    if isinstance(value, dict):
        if "containers" in value:
            yield value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from pod_templates(item)


def containers():
    for path in MANIFESTS:
        for pod in pod_templates(load(path)):
            for container in pod["containers"]:
                yield pytest.param(pod, container, id=f"{path.stem}-{container['name']}")


def arguments():
    """Yield the command and arguments of every container and every TrainJob."""
    for path in MANIFESTS:
        manifest = load(path)
        found = [container for pod in pod_templates(manifest) for container in pod["containers"]]
        found += [manifest["spec"]["trainer"]] if manifest["kind"] == "TrainJob" else []
        yield from ([*one.get("command", []), *one.get("args", [])] for one in found)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_manifest_follows_its_schema(path):
    manifest = load(path)
    assert problems(manifest, schema_of(manifest)) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda job: job["spec"].pop("mpiReplicaSpecs"), "$.spec: mpiReplicaSpecs is missing"),
        (lambda job: job["spec"].update(slots=2), "$.spec: unknown field slots"),
        (lambda job: job["spec"].update(slotsPerWorker="2"), "$.spec.slotsPerWorker: '2' is not of type integer"),
        (lambda job: job["spec"].update(slotsPerWorker=0), "$.spec.slotsPerWorker: 0 is out of range"),
        (lambda job: job["spec"].update(mpiImplementation="LAM"), "$.spec.mpiImplementation: 'LAM' is none of"),
        (lambda job: job["metadata"].update(name="A_b"), "$.metadata.name: 'A_b' does not match"),
    ],
)
def test_the_check_finds_mistakes(change, message):
    job = load(ROOT / "packaging" / "kubernetes" / "mpijob.yaml")
    change(job)
    assert [line[: len(message)] for line in problems(job, schema_of(job))] == [message]


@pytest.mark.parametrize(("pod", "container"), list(containers()))
def test_containers_fit_the_image(pod, container):
    dockerfile = (DOCKER / "Dockerfile").read_text()
    sshd = (DOCKER / "sshd_config").read_text()
    user = re.search(r"--uid (\d+)", dockerfile)[1]
    port = int(re.search(r"^Port (\d+)$", sshd, re.MULTILINE)[1])
    assert f"\nUSER {user}\n" in dockerfile
    assert container["securityContext"]["runAsUser"] == int(user)
    assert pod.get("securityContext", {}).get("fsGroup", int(user)) == int(user)
    if container.get("args") == ["sshd"]:
        assert container["readinessProbe"]["tcpSocket"]["port"] == port
        assert [entry["containerPort"] for entry in container["ports"]] == [port]
    volumes = {volume["name"] for volume in pod.get("volumes", [])}
    assert {mount["name"] for mount in container.get("volumeMounts", [])} == volumes


def test_keys_are_mounted_where_ssh_and_sshd_look():
    home = re.search(r"^HostKey (.*)/\.ssh/id_rsa$", (DOCKER / "sshd_config").read_text(), re.MULTILINE)[1]
    assert home == "/home/mpiuser"
    assert "--create-home" in (DOCKER / "Dockerfile").read_text()
    assert load(ROOT / "packaging/kubernetes/mpijob.yaml")["spec"]["sshAuthMountPath"] == f"{home}/.ssh"
    runtime = load(ROOT / "packaging/kubernetes/trainer-runtime.yaml")
    assert runtime["spec"]["mlPolicy"]["mpi"]["sshAuthMountPath"] == f"{home}/.ssh"


def test_ports_of_ssh_and_sshd_agree():
    ports = [
        re.search(r"^\s*Port (\d+)$", (DOCKER / name).read_text(), re.MULTILINE)[1]
        for name in ("ssh_config", "sshd_config")
    ]
    assert ports[0] == ports[1] == re.search(r"^EXPOSE (\d+)$", (DOCKER / "Dockerfile").read_text(), re.MULTILINE)[1]


def test_launchers_run_what_horovodrun_understands():
    launched = [words[1:] for words in arguments() if words[:1] == ["horovodrun"]]
    assert len(launched) == 2
    for words in launched:
        options = FlagParser().parse(words)
        assert options["command"] == ["python", "train.py"]


def test_hosts_as_the_operator_writes_them_for_our_job(tmp_path):
    job = load(ROOT / "packaging" / "kubernetes" / "mpijob.yaml")
    name, spec = job["metadata"]["name"], job["spec"]
    workers = spec["mpiReplicaSpecs"]["Worker"]["replicas"]
    lines = [f"{name}-worker-{n}.{name}-worker.default.svc slots={spec['slotsPerWorker']}\n" for n in range(workers)]
    (tmp_path / "hostfile").write_text("".join(lines))
    hosts = default_hosts({"K_MPI_JOB_ROLE": "launcher"}, str(tmp_path))
    assert [host.slots for host in hosts] == [2, 2]


def test_trainer_finds_its_jobs_and_containers():
    """Trainer finds jobs and containers by their names and silently ignores other names."""
    jobs = load(ROOT / "packaging/kubernetes/trainer-runtime.yaml")["spec"]["template"]["spec"]["replicatedJobs"]
    assert [job["name"] for job in jobs] == ["node", "launcher"]
    assert all(pod["containers"][0]["name"] == "node" for pod in pod_templates(jobs))
    labels = [job["template"].get("metadata", {}).get("labels") for job in jobs]
    assert labels == [None, {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}]


def test_the_clusters_of_kuberay_are_what_the_job_needs():
    spec = load(ROOT / "packaging/kubernetes/rayjob.yaml")["spec"]["rayClusterSpec"]
    (group,) = spec["workerGroupSpecs"]
    assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    # KubeRay takes the first container of each pod as Ray's container.
    assert [pod["containers"][0]["name"] for pod in pod_templates(spec)] == ["ray-head", "ray-worker"]
    assert group["template"]["spec"]["volumes"][0]["emptyDir"]["medium"] == "Memory"
    pinned = re.search(r"^ray==(.*)$", (ROOT / "constraints-test.txt").read_text(), re.MULTILINE)[1]
    assert spec["rayVersion"] == pinned


def test_the_check_finds_mistakes_in_a_job_of_kuberay():
    job = load(ROOT / "packaging" / "kubernetes" / "rayjob.yaml")
    cluster = job["spec"]["rayClusterSpec"]
    cluster["rayVersion"] = "newest"
    cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] = 0  # KubeRay accepts only strings
    del cluster["workerGroupSpecs"][0]["maxReplicas"]
    assert [line.partition(":")[0] for line in problems(job, schema_of(job))] == [
        "$.spec.rayClusterSpec.rayVersion",
        "$.spec.rayClusterSpec.headGroupSpec.rayStartParams.num-cpus",
        "$.spec.rayClusterSpec.workerGroupSpecs[0]",
    ]


def test_everything_that_the_dockerfile_copies_is_there():
    copied = re.findall(
        r"packaging/docker/([\w-]+)", re.sub(r"^#.*$", "", (DOCKER / "Dockerfile").read_text(), flags=re.MULTILINE)
    )
    assert len(copied) == 4
    assert all((DOCKER / name).is_file() for name in copied)


def test_entry_point(tmp_path):
    entry = [str(DOCKER / "khorovod-entrypoint")]
    done = subprocess.run(
        [*entry, "echo", "a b", "c"], capture_output=True, text=True, timeout=patience(10), check=False
    )
    assert (done.returncode, done.stdout) == (0, "a b c\n")
    done = subprocess.run(
        [*entry, "sshd"], env={"HOME": str(tmp_path)}, capture_output=True, text=True, timeout=10, check=False
    )
    assert done.returncode == 1
    assert f"no readable key at {tmp_path}/.ssh/id_rsa" in done.stderr
