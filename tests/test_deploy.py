"""What is shipped to start RollMux elsewhere fits what it starts: options, ports, names, paths and pools."""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from configparser import ConfigParser
from email import message_from_string
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from rollmux.cli import app
from rollmux.cli.clusters import load_cluster_file
from rollmux.protocol.cluster_file import ClusterFile
from rollmux.service.routes import ROUTES

DEPLOY = Path(__file__).resolve().parents[1] / "deploy"


def served(arguments: list[str], cluster: Path) -> dict[str, Any]:
    """What these arguments of `rollmux` mean; the cluster file is this one."""
    assert arguments[0] == "serve"
    given = [f"--cluster={cluster}" if each.startswith("--cluster=") else each for each in arguments[1:]]
    command = typer.main.get_command(app).get_command(None, "serve")  # type: ignore[attr-defined]
    found: dict[str, Any] = command.make_context("serve", given).params
    return found


@pytest.fixture(scope="module")
def kinds() -> dict[tuple[str, str], Any]:
    documents = yaml.safe_load_all((DEPLOY / "kuberay" / "rollmux.yaml").read_text())
    return {(each["kind"], each["metadata"]["name"]): each for each in documents}


@pytest.fixture
def cluster(kinds: dict[tuple[str, str], Any], tmp_path: Path) -> tuple[Path, ClusterFile]:
    path = tmp_path / "cluster.yaml"
    path.write_text(kinds["ConfigMap", "rollmux-cluster"]["data"]["cluster.yaml"])
    return path, load_cluster_file(path)


def test_kuberay_has_a_pod_for_each_node_of_the_cluster_file(
    kinds: dict[tuple[str, str], Any], cluster: tuple[Path, ClusterFile]
) -> None:
    groups = {each["groupName"]: each for each in kinds["RayCluster", "rollmux-ray"]["spec"]["workerGroupSpecs"]}
    pools = yaml.safe_load(cluster[0].read_text())
    assert set(groups) == set(pools)
    for pool in cluster[1].cluster.pools:
        group = groups[pool.name]
        assert group["replicas"] == group["minReplicas"] == group["maxReplicas"] == pool.max_nodes
        # The operator puts it into a command line: a shell takes one pair of quotes away.
        (resources,) = shlex.split(group["rayStartParams"]["resources"])
        assert {each["ray_resource"] for each in pools[pool.name]["nodes"]} == set(json.loads(resources))
        (worker,) = group["template"]["spec"]["containers"]
        assert worker["resources"]["limits"]["nvidia.com/gpu"] == str(pool.node_type.gpus)


def test_kuberay_starts_a_controller_that_jobs_and_probes_find(
    kinds: dict[tuple[str, str], Any], cluster: tuple[Path, ClusterFile]
) -> None:
    spec = kinds["Deployment", "rollmux"]["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    program, *arguments = container["command"]
    options = served(arguments, cluster[0])
    assert (program, options["launcher"], options["host"]) == ("rollmux", "ray", "0.0.0.0")
    service = kinds["Service", "rollmux"]["spec"]
    assert service["selector"] == spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    (port,), (exposed,) = container["ports"], service["ports"]
    assert port["containerPort"] == exposed["port"] == options["port"]
    assert port["name"] == exposed["targetPort"]
    assert options["advertise"] == f"http://rollmux:{exposed['port']}"
    assert ("RayCluster", options["ray_address"].removeprefix("http://").partition("-head-svc:")[0]) in kinds
    asked = {route.path for route in ROUTES if route.method == "GET"}
    assert {container[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe")} <= asked
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert str(options["folder"]).startswith(mounts["state"] + "/")
    assert "--cluster=" + mounts["cluster"] + "/cluster.yaml" in arguments
    claims = {each["persistentVolumeClaim"]["claimName"] for each in _volumes(kinds) if "persistentVolumeClaim" in each}
    assert claims == {name for kind, name in kinds if kind == "PersistentVolumeClaim"}


def test_the_image_has_what_is_installed_and_nothing_that_was_written_here(tmp_path: Path) -> None:
    root = DEPLOY.parent
    lines = (root / ".dockerignore").read_text().splitlines()
    assert lines[1] == "*"
    sent = {line.removeprefix("!") for line in lines if line.startswith("!")}
    for name in sent:
        whole = root / name
        shutil.copytree(whole, tmp_path / name) if whole.is_dir() else shutil.copy(whole, tmp_path)
    code = "from setuptools.build_meta import prepare_metadata_for_build_wheel as told; told('.')"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)
    (told,) = tmp_path.glob("*.dist-info/METADATA")
    metadata = message_from_string(told.read_text())
    (extras,) = re.findall(r"rollmux\[(.*)\]", (DEPLOY / "kuberay" / "Dockerfile").read_text())
    assert {"postgres", "torch"} <= set(extras.split(",")) <= set(metadata.get_all("Provides-Extra", []))
    assert "constraints.txt" in sent


def test_kubernetes_tells_no_pod_its_services_in_the_names_of_options_and_opens_no_secret(
    kinds: dict[tuple[str, str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service `rollmux` is ROLLMUX_PORT=tcp://... in each pod that does not refuse it."""
    monkeypatch.setenv("ROLLMUX_PORT", "tcp://10.0.0.1:8421")
    refused = CliRunner().invoke(app, ["doctor"])
    assert refused.exit_code == 2
    assert "ROLLMUX_PORT" in refused.output
    pods = [*_pods(kinds), kinds["RayCluster", "rollmux-ray"]["spec"]["headGroupSpec"]["template"]]
    assert len(pods) == 4
    assert all(pod["spec"]["enableServiceLinks"] is False for pod in pods)
    context = kinds["Deployment", "rollmux"]["spec"]["template"]["spec"]["securityContext"]
    assert context["fsGroupChangePolicy"] == "OnRootMismatch"


def test_the_unit_of_systemd_starts_a_controller_whose_jobs_outlive_it(tmp_path: Path) -> None:
    unit = ConfigParser(interpolation=None)
    unit.read(DEPLOY / "systemd" / "rollmux.service")
    service, cluster = unit["Service"], tmp_path / "cluster.yaml"
    cluster.write_text((DEPLOY.parent / "examples" / "cluster-fixed.yaml").read_text())
    program, *words = shlex.split(service["ExecStart"])
    options = served(words, cluster)
    assert service["Environment"].startswith(
        f"PATH={Path(program).parent}:"
    )  # the python of jobs: the system's has none
    assert (options["launcher"], options["log_format"].value) == ("process", "json")
    assert str(options["folder"]) == f"/var/lib/{service['StateDirectory']}"
    assert (service["KillMode"], service["OOMPolicy"]) == ("process", "continue")
    # A stop with these takes /tmp and shared memory from jobs that run on; with those rewards have no sandbox.
    assert service.keys().isdisjoint({"privatetmp", "removeipc", "dynamicuser"})
    assert service.keys().isdisjoint({"restrictnamespaces", "systemcallfilter"})


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_knows_all_that_the_unit_says(tmp_path: Path) -> None:
    unit = tmp_path / "rollmux.service"
    text = (DEPLOY / "systemd" / "rollmux.service").read_text()
    unit.write_text(text.replace("/opt/rollmux/bin/rollmux", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert [line for line in done.stderr.splitlines() if str(unit) in line] == []


def _volumes(kinds: dict[tuple[str, str], Any]) -> list[Any]:
    return [volume for pod in _pods(kinds) for volume in pod["spec"]["volumes"]]


def _pods(kinds: dict[tuple[str, str], Any]) -> list[Any]:
    """Of the controller and the workers."""
    workers = kinds["RayCluster", "rollmux-ray"]["spec"]["workerGroupSpecs"]
    return [each["template"] for each in (kinds["Deployment", "rollmux"]["spec"], *workers)]


def test_the_batch_script_is_one_for_bash_and_its_options_are_known(tmp_path: Path) -> None:
    script = DEPLOY / "slurm" / "rollmux.sbatch"
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    lines = script.read_text().replace("\\\n", " ").splitlines()
    (line,) = [each for each in lines if each.startswith("rollmux serve")]
    words = shlex.split(line.removesuffix("&").replace("$port", "8421"))[1:]
    path = tmp_path / "cluster.yaml"
    path.write_text((DEPLOY.parent / "examples" / "cluster-fixed.yaml").read_text())
    words[words.index("--cluster") + 1] = str(path)
    assert served(words, path)["launcher"] == "ray"


def test_the_batch_script_asks_for_all_of_its_machines_for_the_steps_too() -> None:
    """Of what `--exclusive` alone gives a job, its steps get no GPUs and not all memory."""
    lines = (DEPLOY / "slurm" / "rollmux.sbatch").read_text().splitlines()
    machines = [line for line in lines if line.startswith("#SBATCH --nodes")]
    assert len(machines) == 2
    assert all({"--exclusive", "--gpus-per-node=8", "--mem=0"} <= set(line.split()) for line in machines)


# As the real ones do: a step is told by scancel, its shell alone, and killed with all of it where srun is told to end.
SRUN = """
while [[ $1 == --* ]]; do shift; done
trap 'kill -KILL $! -$!; exit 137' TERM
setsid "$@" &
echo $! > "$FAKE/step"
wait $!
"""
SLURM = {"scontrol": 'echo "$3"', "srun": SRUN, "scancel": 'kill "$(< "$FAKE/step")"', "sleep": "exec /bin/sleep 0.05"}
UNTIL_TOLD = 'trap \'echo %s >> "$FAKE/ended"; exit\' TERM; touch "$FAKE/up"; while :; do sleep 1; done'


def batch(folder: Path, port: int, **tools: str) -> "subprocess.Popen[str]":
    """The script with these in place of Slurm's commands, Ray and the controller, and one port for all of Ray's."""
    for name, script in (SLURM | tools).items():
        (folder / name).write_text(f"#!/bin/bash\n{script}\n")
        (folder / name).chmod(0o755)
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "FAKE": str(folder),
        "ROLLMUX_HOST": "127.0.0.1",
        "RAY_PORT": str(port),
        "RAY_DASHBOARD_PORT": str(port),
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST_HET_GROUP_0": "m1",
        "SLURM_JOB_NODELIST_HET_GROUP_1": "m2",
    }
    words = ["bash", str(DEPLOY / "slurm" / "rollmux.sbatch"), "cluster.yaml", str(folder)]
    return subprocess.Popen(words, env=env, stderr=subprocess.PIPE, text=True)


def test_the_batch_script_has_all_of_ray_and_the_controller_know_one_token(tmp_path: Path) -> None:
    tells = 'echo "$RAY_AUTH_MODE $RAY_AUTH_TOKEN" >> "$FAKE/tokens"\n'

    def tokens() -> set[str]:
        with socket.create_server(("127.0.0.1", 0)) as there:
            node = UNTIL_TOLD % "node"
            ends = 'until [ "$(wc -l < "$FAKE/tokens")" = 3 ]; do sleep 1; done'
            batch(tmp_path, there.getsockname()[1], ray=tells + node, rollmux=tells + ends).communicate(timeout=30)
        told = set((tmp_path / "tokens").read_text().splitlines())
        (tmp_path / "tokens").unlink()
        return told

    (first,), (second,) = tokens(), tokens()
    assert all(re.fullmatch("token [0-9a-f]{64}", each) for each in (first, second))
    assert first != second


def test_the_batch_script_ends_where_ray_does_not_start(tmp_path: Path) -> None:
    script = batch(tmp_path, 1, ray="echo port taken >&2; exit 1", rollmux="exit 3")
    _, said = script.communicate(timeout=30)
    assert (script.returncode, "Ray has ended before its dashboard was there" in said) == (1, True)


def test_the_batch_script_ends_with_its_controller_where_ray_ends_later(tmp_path: Path) -> None:
    ends = 'until [ -e "$FAKE/up" ]; do sleep 1; done; exit 1'
    with socket.create_server(("127.0.0.1", 0)) as there:
        script = batch(tmp_path, there.getsockname()[1], ray=ends, rollmux=UNTIL_TOLD % "controller")
        _, said = script.communicate(timeout=30)
    assert (script.returncode, said.count("Ray has ended\n")) == (1, 1)
    assert (tmp_path / "ended").read_text().split() == ["controller"]


def test_the_batch_script_has_a_machine_join_until_it_does_and_ends_steps_before_the_head(tmp_path: Path) -> None:
    ray = f"""
    if [ "$2" = --head ]; then {UNTIL_TOLD % "head"}; fi
    echo >> "$FAKE/tries"
    [ "$(wc -l < "$FAKE/tries")" = 3 ] || exit 1
    {UNTIL_TOLD % "node"}
    """
    with socket.create_server(("127.0.0.1", 0)) as there:
        script = batch(tmp_path, there.getsockname()[1], ray=ray, rollmux=UNTIL_TOLD % "controller")
        tries, until = tmp_path / "tries", time.monotonic() + 30
        while not tries.exists() or len(tries.read_text()) < 3:
            assert time.monotonic() < until
            time.sleep(0.02)
        time.sleep(0.1)
        script.terminate()
        script.communicate(timeout=30)
    assert (tmp_path / "ended").read_text().split() == ["controller", "node", "head"]
