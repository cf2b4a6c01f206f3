"""The JAX side of the preflight comparison: a complete training step, written by hand, compiled for TPUs that are not present.

Prints one line of JSON: the estimates of libtpu's compiler for one device. Nothing runs. The step matches our workload of
the same name: products in bf16; parameters, statistics, loss and optimizer in f32; the state donated; the batch split
over all devices; the state replicated or split, too.

    python jax_cost.py --workload resnet50 --topology v3:2x2 --batch 1024
"""

import argparse
import json
import os
import time

os.environ.update(
    JAX_PLATFORMS="cpu",
    TPU_SKIP_MDS_QUERY="1",
    TPU_ACCELERATOR_TYPE="v5litepod-8",
    TPU_WORKER_HOSTNAMES="localhost",
    ALLOW_MULTIPLE_LIBTPU_LOAD="1",
    TPU_LOG_DIR="disabled",
)

import jax  # noqa: E402  (JAX reads the environment when it is imported)
import jax_models  # noqa: E402
import numpy as np  # noqa: E402
from jax.experimental import topologies  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402
from jax_models import WORKLOADS, training_state  # noqa: E402

# The compiler effort of preflight, so that both sides are compiled with the same one.
jax.config.update("jax_optimization_level", "O1")


def placed(mesh, strategy, state):
    """The sharding of the state: with FSDP, along the largest axis of a layer that is divisible by the devices."""

    def place(path, leaf):
        first = 1 if any(getattr(key, "key", None) == "layers" for key in path) and leaf.ndim > 1 else 0
        axes = [i for i in range(first, leaf.ndim) if leaf.shape[i] % mesh.size == 0]
        if strategy == "ddp" or not axes:
            return NamedSharding(mesh, PartitionSpec())
        largest = max(axes, key=lambda i: leaf.shape[i])
        return NamedSharding(mesh, PartitionSpec(*("data" if i == largest else None for i in range(leaf.ndim))))

    return jax.tree_util.tree_map_with_path(place, state)


def trace(workload, batch_size):
    state, step, batch = training_state(workload)
    start = time.perf_counter()
    text = jax.jit(step, donate_argnums=0).lower(state, *batch(batch_size)).as_text()
    return {"version": jax.__version__, "seconds": time.perf_counter() - start, "bytes": len(text)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", choices=WORKLOADS, required=True)
    parser.add_argument("--topology")
    parser.add_argument("--trace", action="store_true", help="trace and lower for one CPU device, and compile nothing")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--strategy", choices=["ddp", "fsdp"], default="ddp")
    parser.add_argument("--length", type=int, help="the number of words of a sequence, instead of the workload's own")
    parser.add_argument("--splash", action="store_true", help="attention by JAX's splash attention")
    parser.add_argument("--dump", help="a folder for XLA's own dump")
    parser.add_argument("--hlo", help="a file for the compiled program, a serialized HloModuleProto")
    args = parser.parse_args()
    if args.trace:
        trace("mlp", 8)  # Warms up: JAX loads modules at its first use.
        print(json.dumps(trace(args.workload, args.batch)))
        return
    state, step, batch = training_state(args.workload, args.length)
    options = {"chip_config_name": "megacore"} if args.topology.startswith("v4") else {}
    devices = topologies.get_topology_desc(platform="tpu", topology_name=args.topology, **options).devices
    mesh = Mesh(np.array(devices), ("data",))
    whole, rows = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    jax_models.ROWS = rows
    jax_models.SPLASH = args.splash
    place = placed(mesh, args.strategy, state)
    jitted = jax.jit(step, donate_argnums=0, in_shardings=(place, rows, rows), out_shardings=(place, whole))
    lowered = jitted.lower(state, *batch(args.batch))
    dump = {"xla_dump_to": args.dump, "xla_dump_hlo_as_text": True} if args.dump else None
    start = time.perf_counter()
    try:
        compiled = lowered.compile(compiler_options=dump)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        print(json.dumps({"misfit": str(error)[:400]}))
        return
    compile_s = time.perf_counter() - start
    if args.hlo:
        (module,) = compiled.runtime_executable().hlo_modules()
        with open(args.hlo, "wb") as file:
            file.write(module.as_serialized_hlo_module_proto())
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis()
    needed = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    needed += memory.temp_size_in_bytes + memory.generated_code_size_in_bytes
    seconds = cost.get("optimal_seconds", -1.0)
    result = {
        "version": jax.__version__,
        "flops": cost["flops"],
        "bytes_accessed": cost["bytes accessed"],
        "hbm_bytes": needed,
        "optimal_seconds": seconds if seconds > 0 else None,
        "parameters": int(sum(np.prod(p.shape) for p in jax.tree.leaves(state["params"]))),
        "compile_s": compile_s,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
