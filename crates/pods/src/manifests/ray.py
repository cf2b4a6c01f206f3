"""{{name}}: programs on a Ray cluster. Made by `fulmen pod manifest --kind ray`.

Submit it with the folder that has the program, which Ray copies to all nodes:
    ray job submit --working-dir FOLDER -- python3 FILE

After a lost node, a crash ({{crashes}}) or exit code {{temporary}}, the program is restarted, at most
{{max_restarts}} times. It resumes from the last checkpoint under its --default-root-dir, which must be on storage that all nodes
share. It needs only Ray.
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
# What puts libtpu on a node, if the program needs it. It prints the path of the library.
INSTALL = {{install}}
# The number of independent programs, the processes of each (one per node), and the resources of each process.
PROGRAMS, PROCESSES, RESOURCES = {{programs}}, {{hosts}}, {{resources}}
MAX_RESTARTS = {{max_restarts}}

PORT = {{port}}
TEMPORARY = {{temporary}}  # EX_TEMPFAIL
# The exit codes of a program that the system ended, and of a command that would fail again.
CRASHES = [{{crashes}}]
WRONG_COMMAND = [{{wrong_command}}]
GRACE = 30  # seconds between SIGTERM and SIGKILL
SETTLE = 60  # seconds in which Ray may notice that a lost node caused a failure


def libtpu():
    """Returns the variable that names the libtpu of this node."""
    if not INSTALL:
        return {}
    done = subprocess.run(INSTALL, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{ray.util.get_node_ip_address()}: {done.stderr.strip()}")
    lines = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    return {"TPU_LIBRARY_PATH": lines["path"]}


@ray.remote(max_retries=0)
def process(command, environment):
    """Runs the program on this node, and returns its exit code."""
    environment = {**libtpu(), **environment}
    # Linux sends SIGTERM when this worker ends (PR_SET_PDEATHSIG is 1), so that no program outlives it.
    end_with_parent = lambda: ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    child = subprocess.Popen(command, env={**os.environ, **environment}, preexec_fn=end_with_parent)
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


def attempt(index, restarted):
    """Runs a program once, and returns its exit code and a description."""
    group = placement_group([{"CPU": 1, **RESOURCES}] * PROCESSES, strategy="STRICT_SPREAD")
    try:
        ray.get(group.ready())

        def on_rank(rank, task, **resources):
            strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
            return task.options(scheduling_strategy=strategy, **resources)

        if PROCESSES == 1:
            coordinator = "127.0.0.1:0"
        else:
            first = ray.get(on_rank(0, address).remote())
            coordinator = f"[{first}]:{PORT}" if ":" in first else f"{first}:{PORT}"
        shared = {
            "FULMEN_RUN_TOKEN": secrets.token_hex(32),
            "FULMEN_RUN_ID": f"{NAME}-{index}",
            "FULMEN_COORDINATOR": coordinator,
            "FULMEN_NUM_PROCESSES": str(PROCESSES),
            **({"FULMEN_RESUME": "auto"} if restarted else {}),
            **ENVIRONMENT,
        }
        command = [word.replace("{index}", str(index)) for word in COMMAND]
        running = {}
        for rank in range(PROCESSES):
            task = on_rank(rank, process, num_cpus=1, resources=RESOURCES)
            running[task.remote(command, {**shared, "FULMEN_PROCESS_ID": str(rank)})] = rank
        return outcome(watch(running))
    except RayTaskError as error:
        return 1, f"did not start: {error.cause}"
    except RayError as error:
        return TEMPORARY, f"is lost: {str(error).splitlines()[0]}"
    finally:
        remove_placement_group(group)


def watch(running):
    """Returns the ends of processes in the observed order. After one has failed, the others are ended."""
    ends, limit, cancelled = [], None, False
    while running:
        timeout = None if limit is None else max(0, limit - time.monotonic())
        done, _ = ray.wait(list(running), timeout=timeout)
        if not done:
            if cancelled:
                break
            for task in running:
                ray.cancel(task, force=False)
            limit, cancelled = time.monotonic() + GRACE + SETTLE, True
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
            ends.append((rank, code, lost, cancelled))
            if code != 0 and limit is None:
                limit = time.monotonic() + SETTLE
    return ends


def outcome(ends):
    """Returns the exit code and its cause: the first wrong command, else the first lost process, else the first crash, else
    the first that failed before the others were cancelled."""
    failed = [end for end in ends if end[1] != 0]
    if not failed:
        return 0, "has ended"
    by_itself = [end for end in failed if not end[3]]
    wrong = [end for end in by_itself if not end[2] and end[1] in WRONG_COMMAND]
    lost = [end for end in failed if end[2]]
    crashed = [end for end in by_itself if end[1] in CRASHES]
    rank, code, reason, _ = min(wrong or lost or crashed or failed, key=lambda end: end[3])
    return code, f"process {rank} is lost: {reason}" if reason else f"process {rank} exited with code {code}"


def run(index):
    """Runs a program until it succeeds, fails for good, or has no restarts left."""
    for restarts in range(MAX_RESTARTS + 1):
        code, description = attempt(index, restarted=restarts > 0)
        print(f"[{NAME}] program {index}: {description}", flush=True)
        if code != TEMPORARY and code not in CRASHES:
            break
    return code


if __name__ == "__main__":
    ray.init()
    try:
        codes = list(ThreadPoolExecutor(PROGRAMS).map(run, range(PROGRAMS)))
    except (KeyboardInterrupt, SystemExit):
        os._exit(130)  # do not wait for threads; Ray ends the tasks of this program
    sys.exit(next((code for code in codes if code != 0), 0))
