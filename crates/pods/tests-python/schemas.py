"""Checks the output of `fulmen pod manifest` against JobSet, Kubernetes and SkyPilot. Argument: the program `fulmen`.

JobSet's schema is from the package kubeflow-trainer-api, whose models are generated from JobSet's own types.
"""

import ast
import contextlib
import io
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import kubernetes_validate
import yaml
from kubeflow_trainer_api import models

SEVERAL_SLICES = ["2*v5e:4x4", "3*v6e:2x4"]
TOPOLOGIES = ["v4-8", "v5e:2x4", "v5e:4x4", "v5p-128", "v6e-256"]
PROGRAM = ["--", "./train", "fit", "--note", "it's: \"two\"\nlines $(HOME) {index}"]


def manifest(*arguments):
    command = [sys.argv[1], "pod", "manifest", *arguments, "--env", "WORDS=a: b #c", *PROGRAM]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def without_none(value):
    """Removes None, the value of fields that were not set."""
    if isinstance(value, dict):
        return {key: without_none(item) for key, item in value.items() if item is not None}
    return [without_none(item) for item in value] if isinstance(value, list) else value


JOBSET_OPTIONS = [
    "--queue=tpus", "--priority-class=high", "--service-account=trainer", "--reservation=ours", "--bucket=runs=/runs",
    "--bucket=data=/data/all",
]


def jobset(topology, *options):
    text = manifest("--kind", "jobset", "--topology", topology, "--image", "docker.io/me/train:1", *options)
    value = yaml.safe_load(text)
    assert (value.pop("apiVersion"), value.pop("kind")) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert set(value) == {"metadata", "spec"}, set(value)
    # The model drops fields that JobSet does not have.
    model = models.JobsetV1alpha2JobSetSpec.from_dict(value["spec"])
    assert without_none(model.to_dict()) == value["spec"], model.to_dict()
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": value["metadata"], **value["spec"]["replicatedJobs"][0]["template"]}
    kubernetes_validate.validate(job, "1.31", strict=True)
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert container["command"] == [word.replace("$(", "$$(") for word in PROGRAM[1:]], container
    assert {"name": "WORDS", "value": "a: b #c"} in container["env"], container
    replicas = value["spec"]["replicatedJobs"][0]["replicas"]
    check_exit_codes(job, replicas)
    check_slices(topology, replicas, container["env"])


def check_slices(topology, replicas, environment):
    """The jobs of a JobSet are the slices, and each pod learns the number of its own."""
    expected = int(topology.split("*")[0]) if "*" in topology else 1
    assert replicas == expected, replicas
    values = {variable["name"]: variable for variable in environment}
    if replicas == 1:
        assert "FULMEN_PROCESS_ID" in values and "MEGASCALE_SLICE_ID" not in values, values
        return
    assert values["MEGASCALE_NUM_SLICES"]["value"] == str(replicas), values
    label = values["MEGASCALE_SLICE_ID"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert label == "metadata.labels['jobset.sigs.k8s.io/job-index']", label
    assert values["MEGASCALE_COORDINATOR_ADDRESS"]["value"] == "train-workers-0-0.train", values
    # Fulmen would take these instead, and they cannot number the pods of all slices.
    assert not {"FULMEN_PROCESS_ID", "FULMEN_NUM_PROCESSES", "FULMEN_COORDINATOR"} & set(values), values


def ends_run(job, code):
    """Whether the JobSet fails for good if a pod's program exits with this code, by the first rule of the job that applies."""
    for rule in job["spec"]["podFailurePolicy"]["rules"]:
        codes = rule.get("onExitCodes")
        if codes and (code in codes["values"]) == (codes["operator"] == "In"):
            return rule["action"] == "FailJob"
    return False


CRASHES = {132, 134, 135, 136, 137, 139, 143}


def check_exit_codes(job, replicas):
    several = replicas * job["spec"]["completions"] > 1
    again = {75} | CRASHES | ({1} if several else set())
    ended = {code for code in range(1, 256) if ends_run(job, code)}
    assert ended == set(range(1, 256)) - again, ended


def skypilot(topology, folder):
    import sky
    from sky.utils import schemas
    import jsonschema

    text = manifest("--kind", "skypilot", "--topology", topology)
    value = yaml.safe_load(text)
    jsonschema.validate(value, schemas.get_task_schema())
    jsonschema.validate(value["resources"], schemas.get_resources_schema())
    # The shell that SkyPilot starts sees the arguments as they were given.
    (folder / "fulmen").mkdir(exist_ok=True)
    program = folder / "fulmen/train"
    program.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    program.chmod(0o755)
    environment = {"HOME": str(folder), "PATH": "/usr/bin:/bin", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}
    ran = subprocess.run(["bash", "-c", value["run"]], env=environment, check=True, capture_output=True, text=True)
    assert ran.stdout == "".join(word + "|" for word in PROGRAM[2:]), ran
    (folder / "train").write_text("")
    value["file_mounts"] = {there: str(folder / here) for there, here in value["file_mounts"].items()}
    token = [("FULMEN_RUN_TOKEN", "x" * 32)]
    (resources,) = sky.Task.from_yaml_config(value, secrets_overrides=token).resources
    assert resources.accelerators, resources


def ray():
    """A Ray program restarts after the codes of a JobSet, and a wrong command decides before a process that it ended."""
    tree = ast.parse(manifest("--kind", "ray", "--max-restarts", "2"))
    constants = {"NAME", "TEMPORARY", "CRASHES", "WRONG_COMMAND", "MAX_RESTARTS"}
    parts = [
        part for part in tree.body
        if isinstance(part, ast.FunctionDef) and part.name in ("run", "outcome")
        or isinstance(part, ast.Assign) and getattr(part.targets[0], "id", None) in constants
    ]
    names = {}
    exec(compile(ast.Module(parts, []), "ray", "exec"), names)
    for code in range(256):
        starts = []
        names["attempt"] = lambda index, restarted: starts.append(restarted) or (code, "has ended")
        with contextlib.redirect_stdout(io.StringIO()):
            assert names["run"](0) == code
        assert starts == ([False, True, True] if code in {75} | CRASHES else [False]), (code, starts)
    # Rank, code, why it is lost, and whether it was cancelled, in the order in which they ended.
    ended, lost = (0, 75, None, False), (1, 75, "no node", False)
    wrong, crashed, cancelled = (2, 127, None, False), (3, 134, None, False), (4, 143, None, True)
    for first, ends in [
        (wrong, [ended, crashed, lost, wrong]), (lost, [ended, crashed, lost]), (crashed, [ended, crashed, cancelled]),
        (ended, [cancelled, ended]), (cancelled, [cancelled]),
    ]:
        code, text = names["outcome"](ends)
        assert (code, f"process {first[0]} " in text) == (first[1], True), (ends, code, text)
    assert names["outcome"]([(0, 0, None, False)]) == (0, "has ended")


def libtpu(folder):
    """The script that installs libtpu is the same for each kind, whatever the quotes of its format, and runs."""
    slice = ["--topology", "v5e:4x4"]
    spec = yaml.safe_load(manifest("--kind", "jobset", *slice, "--image", "me/train:1"))["spec"]
    pod = spec["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    (container,) = pod["initContainers"]
    words = [word.replace("$$(", "$(") for word in container["command"]]
    assert words[:2] == ["bash", "-c"], words
    # The program looks where that container writes.
    (folder_of_container,) = [variable["value"] for variable in container["env"]]
    environment = {variable["name"]: variable.get("value") for variable in pod["containers"][0]["env"]}
    assert environment["TPU_LIBRARY_PATH"].startswith(folder_of_container + "/.cache/fulmen/pjrt/libtpu-"), environment
    for mounts in container["volumeMounts"], pod["containers"][0]["volumeMounts"]:
        assert {"name": "libtpu", "mountPath": folder_of_container} in mounts, mounts
    assert {"name": "libtpu", "emptyDir": {}} in pod["volumes"], pod
    task = yaml.safe_load(manifest("--kind", "skypilot", *slice))
    assert shlex.split(task["setup"]) == words, task["setup"]
    ray = ast.parse(manifest("--kind", "ray", *slice))
    assigned = {line.targets[0].id: line.value for line in ray.body if isinstance(line, ast.Assign) and hasattr(line.targets[0], "id")}
    assert ast.literal_eval(assigned["INSTALL"]) == words, assigned["INSTALL"]
    (folder / "bin").mkdir()
    python = folder / "bin/python3"
    python.write_text("#!/bin/sh\necho no network >&2\nexit 1\n")
    python.chmod(0o755)
    environment = {"HOME": str(folder), "PATH": f"{folder}/bin:/usr/bin:/bin"}
    ran = subprocess.run(words, env=environment, capture_output=True, text=True)
    reason = "pip: no network. Give this machine pip and a network"
    assert ran.returncode == 1 and reason in ran.stderr, ran


with tempfile.TemporaryDirectory() as folder:
    libtpu(Path(folder))
    ray()
    for topology in TOPOLOGIES + SEVERAL_SLICES:
        jobset(topology)
        jobset(topology, *JOBSET_OPTIONS)
        jobset(topology, "--spot")
    for topology in TOPOLOGIES:
        skypilot(topology, Path(folder))
print(f"{3 * len(TOPOLOGIES + SEVERAL_SLICES)} JobSets and {len(TOPOLOGIES)} tasks of SkyPilot are accepted")
