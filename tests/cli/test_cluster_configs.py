"""The files that start clusters: each is checked by the schema, the parser or the table of options of what reads it.

The planner's own files, `*.toml`, are in test_cluster.py; on_ray/jobs/test_local_cluster.py starts local-cluster.sh.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

CONFIGS = Path(__file__).parent.parent.parent / "cluster-configs"
FILES = sorted(path.name for path in CONFIGS.iterdir() if path.name != "README.md")
SHELL = ["local-cluster.sh", "slurm.sbatch"]
LAUNCHED = ["aws.yaml", "gcp.yaml"]
JOB = "kuberay-rayjob.yaml"


def load(name: str) -> Any:
    return yaml.safe_load((CONFIGS / name).read_text())


def test_every_file_is_of_a_kind_that_is_checked() -> None:
    assert {name for name in FILES if not name.endswith(".toml")} == {*LAUNCHED, JOB, *SHELL}


# -- all files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*LAUNCHED, JOB, *SHELL])
def test_a_file_opens_with_three_lines_on_its_use(name: str) -> None:
    lines = (CONFIGS / name).read_text().splitlines()
    start = lines[0].startswith("#!")
    assert [line[:2] for line in lines[start : start + 4]] == ["# ", "# ", "# ", ""]


@pytest.mark.parametrize("name", FILES)
def test_the_readme_names_the_file(name: str) -> None:
    assert f"[{name}]({name})" in (CONFIGS / "README.md").read_text()


def test_all_images_have_one_version_of_ray_and_a_python_that_distgrad_runs_on() -> None:
    text = "".join((CONFIGS / name).read_text() for name in [*LAUNCHED, JOB])
    tags = {tuple(tag) for tag in re.findall(r"rayproject/ray:([\d.]+)-py3(\d+)", text)}
    versions, pythons = zip(*tags, strict=True)
    assert set(versions) == {load(JOB)["spec"]["rayClusterSpec"]["rayVersion"]}
    assert min(map(int, pythons)) >= 11


# -- ray up ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAUNCHED)
def test_the_file_passes_rays_own_schema_and_validators(name: str) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    validate_config(prepare_config(load(name)))


def test_rays_validators_refuse_a_field_that_does_not_exist() -> None:
    import jsonschema
    from ray.autoscaler._private.util import prepare_config, validate_config

    wrong = load("aws.yaml") | {"maximum_workers": 3}
    with pytest.raises(jsonschema.ValidationError, match="'maximum_workers' was unexpected"):
        validate_config(prepare_config(wrong))


@pytest.mark.parametrize("name", LAUNCHED)
def test_there_are_cpu_and_gpu_workers_on_spot_and_a_head_that_is_not(name: str) -> None:
    config = load(name)
    kinds = config["available_node_types"]
    spot = {kind for kind, node in kinds.items() if "spot" in str(node["node_config"]).lower()}
    assert spot == set(kinds) - {config["head_node_type"]}
    assert {bool(kinds[kind]["resources"].get("GPU")) for kind in spot} == {True, False}


@pytest.mark.parametrize("name", LAUNCHED)
def test_every_kind_of_node_installs_distgrad(name: str) -> None:
    config = load(name)
    kinds = [config, *config["available_node_types"].values()]
    commands = [kind.get("setup_commands") or kind.get("worker_setup_commands") for kind in kinds]
    assert all("distgrad-*.whl" in " ".join(given) for given in commands if given is not None)
    assert config["file_mounts"]["/home/ray/dist"] == "dist"


def ray_commands() -> Iterator[tuple[str, str]]:
    """What the files call Ray with, and the command of Ray that it is."""
    for name in LAUNCHED:
        config = load(name)
        for line in [*config["head_start_ray_commands"], *config["worker_start_ray_commands"]]:
            yield name, line
    for group in [load(JOB)["spec"]["rayClusterSpec"]["headGroupSpec"]]:
        yield JOB, "ray start " + " ".join(f"--{key}={value}" for key, value in group["rayStartParams"].items())
    text = (CONFIGS / "local-cluster.sh").read_text().replace("\\\n", " ")
    for line in re.findall(r"^ *(ray start [^>]*) >>", text, re.M):
        yield "local-cluster.sh", re.sub(r'"\$@"', "", line).replace("$STORE", "1").replace("$port", "1")
    for line in re.findall(r'node "\$folder" \S+ (.*)', text):
        number = re.sub(r'"\$(cpus|head|jobs|client)"', "1024", line)
        yield "local-cluster.sh", f"ray start {number}"


@pytest.mark.parametrize(("name", "line"), list(ray_commands()))
def test_a_command_of_ray_is_called_with_options_that_it_has(name: str, line: str) -> None:
    from ray.scripts.scripts import cli

    program, command, *options = shlex.split(line)
    assert program == "ray"
    cli.commands[command].make_context(command, options)


# -- KubeRay -----------------------------------------------------------------------------------------------------

#: The fields of KubeRay's RayJob (ray.io/v1) that a file of ours may use, level by level, and of Kubernetes' pods below
#: it. A type, a set of allowed texts, [the form of each element], {field: form}, or Map: any names for one form of
#: values. A field whose name ends with ! must be there.
Map = tuple
QUANTITY = str  # "8", "500m", "32Gi"
RESOURCES = {"limits": Map((QUANTITY,)), "requests": Map((QUANTITY,))}
CONTAINER = {
    "name!": str,
    "image!": str,
    "imagePullPolicy": {"Always", "IfNotPresent", "Never"},
    "command": [str],
    "args": [str],
    "env": [{"name!": str, "value": str}],
    "ports": [{"containerPort!": int, "name": str, "protocol": {"TCP", "UDP", "SCTP"}}],
    "resources": RESOURCES,
    "volumeMounts": [{"name!": str, "mountPath!": str, "readOnly": bool, "subPath": str}],
}
TOLERATION = {
    "key": str,
    "operator": {"Exists", "Equal"},
    "value": str,
    "effect": {"NoSchedule", "PreferNoSchedule", "NoExecute"},
}
VOLUME = {"name!": str, "configMap": {"name!": str, "optional": bool}, "emptyDir": {"medium": str, "sizeLimit": str}}
POD = {
    "metadata": {"labels": Map((str,)), "annotations": Map((str,))},
    "spec!": {
        "containers!": [CONTAINER],
        "initContainers": [CONTAINER],
        "volumes": [VOLUME],
        "nodeSelector": Map((str,)),
        "tolerations": [TOLERATION],
        "serviceAccountName": str,
        "restartPolicy": {"Always", "OnFailure", "Never"},
    },
}
HEAD = {
    "rayStartParams!": Map((str,)),
    "template!": POD,
    "serviceType": {"ClusterIP", "NodePort", "LoadBalancer"},
    "enableIngress": bool,
}
GROUP = {
    "groupName!": str,
    "replicas": int,
    "minReplicas!": int,
    "maxReplicas!": int,
    "numOfHosts": int,
    "idleTimeoutSeconds": int,
    "rayStartParams!": Map((str,)),
    "template!": POD,
}
CLUSTER = {
    "rayVersion": str,
    "authOptions": {"mode": {"disabled", "token"}},
    "enableInTreeAutoscaling": bool,
    "autoscalerOptions": {"idleTimeoutSeconds": int, "upscalingMode": {"Default", "Aggressive", "Conservative"}},
    "suspend": bool,
    "headGroupSpec!": HEAD,
    "workerGroupSpecs": [GROUP],
}
RAY_JOB = {
    "apiVersion!": {"ray.io/v1"},
    "kind!": {"RayJob"},
    "metadata!": {"name!": str, "namespace": str, "labels": Map((str,)), "annotations": Map((str,))},
    "spec!": {
        "entrypoint": str,
        "runtimeEnvYAML": str,
        "jobId": str,
        "metadata": Map((str,)),
        "submissionMode": {"K8sJobMode", "HTTPMode", "InteractiveMode"},
        "submitterConfig": {"backoffLimit": int},
        "submitterPodTemplate": POD,
        "entrypointNumCpus": float,
        "entrypointNumGpus": float,
        "entrypointResources": str,
        "activeDeadlineSeconds": int,
        "backoffLimit": int,
        "shutdownAfterJobFinishes": bool,
        "ttlSecondsAfterFinished": int,
        "suspend": bool,
        "clusterSelector": Map((str,)),
        "rayClusterSpec": CLUSTER,
    },
}


def faults(value: Any, form: Any, place: str = "") -> Iterator[str]:
    """What of a value does not have a form."""
    if isinstance(form, dict):
        fields = {name.removesuffix("!"): below for name, below in form.items()}
        if not isinstance(value, dict):
            yield f"{place} is {value!r}, not fields"
            return
        yield from (f"{place}.{name} does not exist" for name in value.keys() - fields.keys())
        missing = {name[:-1] for name in form if name.endswith("!")} - value.keys()
        yield from (f"{place}.{name} is missing" for name in missing)
        for name in value.keys() & fields.keys():
            yield from faults(value[name], fields[name], f"{place}.{name}")
    elif isinstance(form, list | tuple):
        if not isinstance(value, list if isinstance(form, list) else dict):
            yield f"{place} is {value!r}"
            return
        for key, each in enumerate(value) if isinstance(value, list) else value.items():
            yield from faults(each, form[0], f"{place}[{key}]")
    elif isinstance(form, set):
        if value not in form:
            yield f"{place} is {value!r}, not one of {sorted(form)}"
    elif type(value) is not form:
        yield f"{place} is {value!r}, not {form.__name__}"


def test_the_job_has_fields_of_kuberay_alone_in_their_types() -> None:
    assert list(faults(load(JOB), RAY_JOB)) == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("minReplicas: 4", "minReplica: 4", "minReplica does not exist"),
        ("minReplicas: 4", "replica: 4", "minReplicas is missing"),
        ('cpu: "8"', "cpu: 8", "is 8, not str"),
        ("kind: RayJob", "kind: RayJobs", "is 'RayJobs', not one of"),
        ("{mode: token}", "[token]", "not fields"),
        ("rayStartParams: {}", "rayStartParams: []", "rayStartParams is []"),
    ],
)
def test_the_table_of_fields_refuses_what_kuberay_would(old: str, new: str, message: str) -> None:
    text = (CONFIGS / JOB).read_text().replace(old, new)
    assert message in "; ".join(faults(yaml.safe_load(text), RAY_JOB))


def test_the_job_has_a_runtime_environment_that_ray_takes() -> None:
    from ray.runtime_env import RuntimeEnv

    given = yaml.safe_load(load(JOB)["spec"]["runtimeEnvYAML"])
    assert RuntimeEnv(**given)["pip"]["packages"] == given["pip"]


def test_every_volume_of_the_job_is_mounted_and_every_group_has_a_name_of_its_own() -> None:
    cluster = load(JOB)["spec"]["rayClusterSpec"]
    groups = cluster["workerGroupSpecs"]
    assert len({group["groupName"] for group in groups}) == len(groups)
    for group in [cluster["headGroupSpec"], *groups]:
        pod = group["template"]["spec"]
        mounted = {mount["name"] for c in pod["containers"] for mount in c.get("volumeMounts", ())}
        assert mounted == {volume["name"] for volume in pod.get("volumes", ())}


# -- shells ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHELL)
def test_the_shell_can_read_it(name: str) -> None:
    subprocess.run(["bash", "-n", str(CONFIGS / name)], check=True)


#: Options of sbatch, and what their values look like; None for those without one.
SBATCH = {
    "account": r"\S+",
    "constraint": r"\S+",
    "cpus-per-task": r"\d+",
    "exclusive": None,
    "gpus-per-node": r"(\w+:)?\d+",
    "job-name": r"\S+",
    "mem": r"\d+[KMGT]?",
    "nodes": r"\d+(-\d+)?",
    "ntasks-per-node": r"\d+",
    "output": r"\S+",
    "partition": r"\S+",
    "time": r"(\d+-)?\d+(:\d\d){0,2}",
}


def test_slurm_is_given_options_that_it_has_before_the_first_command() -> None:
    lines = (CONFIGS / "slurm.sbatch").read_text().splitlines()
    given = [k for k, line in enumerate(lines) if line.startswith("#SBATCH ")]
    assert all(not line or line.startswith("#") for line in lines[: given[-1]])
    for k in given:
        name, equals, value = lines[k].removeprefix("#SBATCH --").partition("=")
        form = SBATCH[name]
        assert re.fullmatch(form, value) if form else not equals


STUBS = {
    "scontrol": "printf 'node1\\nnode2\\n'",
    "srun": 'echo "$RAY_AUTH_MODE $RAY_AUTH_TOKEN"; printf "%s\\n" "$@"',
}


def run_on_slurm(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script where `srun` prints what it is given."""
    for name, text in STUBS.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    slurm = {"SLURM_JOB_ID": "123456", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_JOB_NUM_NODES": "2"}
    env = os.environ | slurm | {"SLURM_CPUS_PER_TASK": "8", "PATH": f"{folder}:{os.environ['PATH']}"}
    line = ["bash", str(CONFIGS / "slurm.sbatch"), *arguments]
    return subprocess.run(line, env=env, capture_output=True, text=True)


def test_slurm_starts_ray_on_all_nodes_and_the_script_on_the_first(tmp_path: Path) -> None:
    from ray.scripts.scripts import cli

    head, cpus, *line = run_on_slurm(tmp_path, "my script.py", "--steps", "3").stdout.splitlines()
    assert re.fullmatch("token [0-9a-f]{64}", head)
    assert cpus == "--cpus-per-task=8"
    cut = line.index("--")
    assert line[:6] == ["ray", "symmetric-run", "--address", "node1:23456", "--min-nodes", "2"]
    cli.commands["start"].make_context("start", line[6:cut])  # the rest goes on to `ray start`
    assert line[cut + 1 :] == ["python", "-m", "distgrad", "run", "--address", "auto", "my script.py", "--steps", "3"]


def test_slurm_without_a_script_is_told_so(tmp_path: Path) -> None:
    done = run_on_slurm(tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: which script? sbatch ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Several Ray nodes on this machine"),
        (["begin"], "Several Ray nodes on this machine"),
        (["start", "none"], "error: NODES is 'none', but must be a number of at least 1"),
        (["start", "2", "0"], "error: CPUS is '0', but must be a number of at least 1"),
        (["stop"], "error: '' is not the folder of a cluster that this script started"),
        (["stop", "/nowhere"], "error: '/nowhere' is not the folder of a cluster"),
    ],
)
def test_the_local_cluster_is_told_a_wrong_use(arguments: list[str], message: str) -> None:
    line = ["bash", str(CONFIGS / "local-cluster.sh"), *arguments]
    done = subprocess.run(line, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(message)


@pytest.mark.parametrize("variable", ["PORT", "JOBS_PORT"])
@pytest.mark.parametrize("host", ["127.0.0.2", "0.0.0.0"])
def test_a_local_cluster_whose_port_is_in_use_says_so_and_starts_nothing(
    variable: str, host: str, tmp_path: Path
) -> None:
    with socket.create_server((host, 0)) as taken:
        port = taken.getsockname()[1]
        done = _start(tmp_path, **{variable: str(port)})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: port {port} is in use on this machine")
    assert f"choose another with {variable}=" in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []  # not even a token


@pytest.mark.parametrize("port", ["http", "80", "65536", "-1", ""])
def test_a_local_cluster_is_told_a_port_that_is_none(port: str, tmp_path: Path) -> None:
    done = _start(tmp_path, JOBS_PORT=port or "''")
    assert done.returncode == 2
    assert "must be a port from 1024 to 65535" in done.stderr


def test_a_local_cluster_refuses_a_token_that_others_can_read(tmp_path: Path) -> None:
    token = tmp_path / ".ray" / "auth_token"
    token.parent.mkdir(mode=0o700)
    token.write_text("a" * 64)
    token.chmod(0o644)
    done = _start(tmp_path, JOBS_PORT="0")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: others can read {token}, so they may know the token: run chmod 600 {token}")


def _start(home: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    tools = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    line = ["bash", str(CONFIGS / "local-cluster.sh"), "start"]
    env = kept | {"PATH": tools, "HOME": str(home)} | variables
    return subprocess.run(line, capture_output=True, text=True, env=env, timeout=60)
