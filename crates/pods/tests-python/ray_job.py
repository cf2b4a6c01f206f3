"""Trains five folds of the digits on a Ray cluster of three nodes, and kills one node. Arguments: the programs `fulmen`
and `mnist`.

The cluster is Ray's test cluster: each node has its own raylet, workers and object store, on loopback.
"""

import csv
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ray.cluster_utils import Cluster

FOLDS, EPOCHS = 5, 3
PATIENCE = 600
# By default, Ray gives its workers a low priority.
os.environ["RAY_worker_niceness"] = "0"
fulmen, mnist = (Path(argument).resolve() for argument in sys.argv[1:])


def programs():
    """Yields the process id, the raylet's process id and the fold of each running program."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().decode().split("\0")
            variables = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:  # the process has ended
            continue
        if words[0] == str(mnist) and str(root) in " ".join(words):
            raylet = next((v.split("=")[1] for v in variables if v.startswith("RAY_RAYLET_PID=")), None)
            yield int(entry.name), int(raylet), words[words.index("--fold") + 1]


def until(event, check):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if (value := check()) is not None:
            return value
        assert driver.poll() is None or event == "the last process to end", f"the job has ended before {event}"
        time.sleep(0.2)
    raise TimeoutError(event)


def rows(fold, version):
    with open(root / f"fold-{fold}/version_{version}/metrics.csv") as file:
        return [row for row in csv.DictReader(file) if row["val_acc"]]


root = Path(tempfile.mkdtemp())
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
driver = None
try:
    victim = [cluster.add_node(num_cpus=1) for _ in range(2)][0]
    cluster.wait_for_nodes()
    job = root / "job.py"
    arguments = ["--kind", "ray", "--name", "digits", "--programs", str(FOLDS), "--env", "FULMEN_ACCELERATOR=cpu", "--"]
    command = [mnist, "fit", "--fold", "{index}", "--default-root-dir", root / "fold-{index}"]
    options = ["--max-epochs", EPOCHS, "--limit-train-batches", 100]
    manifest = [fulmen, "pod", "manifest", *arguments, *command, *options]
    job.write_text(subprocess.run(map(str, manifest), check=True, capture_output=True, text=True).stdout)
    with open(root / "log", "w") as log:
        environment = {**os.environ, "RAY_ADDRESS": cluster.address}
        driver = subprocess.Popen([sys.executable, job], env=environment, stdout=log, stderr=subprocess.STDOUT)
    raylet = victim.all_processes["raylet"][0].process.pid

    def saved():
        folds = [fold for _, parent, fold in programs() if parent == raylet]
        return next((fold for fold in folds if (root / f"fold-{fold}/version_0/checkpoints/last").exists()), None)

    fold = until("a fold on the victim has a checkpoint", saved)
    cluster.remove_node(victim, allow_graceful=False)
    code = driver.wait(PATIENCE)
    text = (root / "log").read_text()
    print(text)
    assert code == 0, code
    assert f"[digits] program {fold}: process 0 is lost" in text
    assert text.count("has ended") == FOLDS
    for other in range(FOLDS):
        last = rows(other, 1 if str(other) == fold else 0)[-1]
        assert int(last["epoch"]) == EPOCHS - 1 and float(last["val_acc"]) > 0.9, (other, last)
        print(f"fold {other}: validation accuracy {float(last['val_acc']):.4f}")
    first = int(rows(fold, 1)[0]["epoch"])
    assert first > 0, "the lost fold started from the beginning"
    print(f"fold {fold} was lost and resumed with epoch {first}")
    until("the last process to end", lambda: None if list(programs()) else True)
finally:
    if driver and driver.poll() is None:
        driver.terminate()
    cluster.shutdown()
    shutil.rmtree(root)
