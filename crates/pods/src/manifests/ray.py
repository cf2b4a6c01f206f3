"""{{name}}: programs on a Ray cluster. Made by `fulmen pod manifest --kind ray`.

Start it with the folder that has the program, as all nodes get it:
    ray job submit --working-dir FOLDER -- python3 FILE

A lost node and exit code 75 start a program again, which goes on with the last checkpoint under its --default-root-dir:
that must be on storage that all nodes see. Nothing else is needed but Ray.
"""

import ctypes
import os
import secrets
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import ray
from ray.exceptions import RayError, RayTaskError, TaskCancelledError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

NAME = {{python_name}}
COMMAND = {{command}}
ENVIRONMENT = {{environment}}
# Independent programs, each of so many processes, one a node, each with these resources.
PROGRAMS, PROCESSES, RESOURCES = {{programs}}, {{hosts}}, {{resources}}
MAX_RESTARTS = {{max_restarts}}

PORT = {{port}}
TEMPORARY = 75  # EX_TEMPFAIL
GRACE = 30  # seconds between SIGTERM and SIGKILL
SETTLE = 60  # seconds after a failure in which Ray may notice that a lost node is why


@ray.remote(max_retries=0)
def process(command, environment):
    """Runs the program on this node, and returns its exit code."""
    # Linux sends SIGTERM when this worker is gone (PR_SET_PDEATHSIG is 1), so that no program outlives it.
    bound = lambda: ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    child = subprocess.Popen(command, env={**os.environ, **environment}, preexec_fn=bound)
    try:
        code = child.wait()
    except KeyboardInterrupt:  # ray.cancel
        child.terminate()
        try:
            code = child.wait(GRACE)
        except subprocess.TimeoutExpired:
            child.kill()
            code = child.wait()
    return code if code >= 0 else 128 - code


@ray.remote(max_retries=0, num_cpus=0)
def address():
    return ray.util.get_node_ip_address()


def attempt(index, again):
    """Runs a program once, and returns its exit code and whose it is."""
    group = placement_group([{"CPU": 1, **RESOURCES}] * PROCESSES, strategy="STRICT_SPREAD")
    try:
        ray.get(group.ready())

        def on(rank, task, **resources):
            strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
            return task.options(scheduling_strategy=strategy, **resources)

        if PROCESSES == 1:
            coordinator = "127.0.0.1:0"
        else:
            first = ray.get(on(0, address).remote())
            coordinator = f"[{first}]:{PORT}" if ":" in first else f"{first}:{PORT}"
        shared = {
            "FULMEN_RUN_TOKEN": secrets.token_hex(32),
            "FULMEN_RUN_ID": f"{NAME}-{index}",
            "FULMEN_COORDINATOR": coordinator,
            "FULMEN_NUM_PROCESSES": str(PROCESSES),
            **({"FULMEN_RESUME": "auto"} if again else {}),
            **ENVIRONMENT,
        }
        command = [word.replace("{index}", str(index)) for word in COMMAND]
        running = {}
        for rank in range(PROCESSES):
            task = on(rank, process, num_cpus=1, resources=RESOURCES)
            running[task.remote(command, {**shared, "FULMEN_PROCESS_ID": str(rank)})] = rank
        return judge(watch(running))
    except RayTaskError as error:
        return 1, f"did not start: {error.cause}"
    except RayError as error:
        return TEMPORARY, f"is lost: {str(error).splitlines()[0]}"
    finally:
        remove_placement_group(group)


def watch(running):
    """How processes ended, in the order in which it was seen. When one has failed, the others have to end."""
    ends, limit, asked = [], None, False
    while running:
        left = None if limit is None else max(0, limit - time.monotonic())
        done, _ = ray.wait(list(running), timeout=left)
        if not done:
            if asked:
                break
            for task in running:
                ray.cancel(task, force=False)
            limit, asked = time.monotonic() + GRACE + SETTLE, True
        for task in done:
            rank, lost = running.pop(task), None
            try:
                code = ray.get(task)
            except RayTaskError as error:
                code = 1
                print(f"[{NAME}] process {rank}: {error.cause}", file=sys.stderr)
            except TaskCancelledError:
                code = 128 + signal.SIGTERM
            except RayError as error:
                code, lost = TEMPORARY, str(error).splitlines()[0]
            ends.append((rank, code, lost, asked))
            if code != 0 and limit is None:
                limit = time.monotonic() + SETTLE
    return ends


def judge(ends):
    """Whose fault it was: a lost process is why the others fail, else it is the first that failed unasked."""
    lost = [end for end in ends if end[2]]
    failed = [end for end in ends if end[1] != 0]
    if not failed:
        return 0, "has ended"
    rank, code, why, _ = min(lost or failed, key=lambda end: end[3])
    return code, f"process {rank} is lost: {why}" if why else f"process {rank} exited with code {code}"


def run(index):
    """Runs a program until it ends well, fails for good, or has started too often."""
    for restarts in range(MAX_RESTARTS + 1):
        code, what = attempt(index, again=restarts > 0)
        print(f"[{NAME}] program {index}: {what}", flush=True)
        if code != TEMPORARY:
            break
    return code


if __name__ == "__main__":
    ray.init()
    try:
        codes = list(ThreadPoolExecutor(PROGRAMS).map(run, range(PROGRAMS)))
    except (KeyboardInterrupt, SystemExit):
        os._exit(130)  # waits for no thread; Ray ends what this program has started
    sys.exit(next((code for code in codes if code != 0), 0))
