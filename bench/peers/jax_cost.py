"""The JAX side of the preflight comparison: a whole training step, written by hand, compiled for TPUs that are not here.

Prints one line of JSON: what libtpu's compiler says of one device. Nothing runs. The step is the one of the workload of
the same name on our side: products in bf16, parameters, statistics, loss and optimizer in f32, the state donated, the
batch split over all devices and the state on each of them.

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
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
from jax import lax  # noqa: E402
from jax.experimental import topologies  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

# The effort that preflight asks of the compiler, so that both sides are compiled alike.
jax.config.update("jax_optimization_level", "O1")

HALF = jnp.bfloat16
WORDS, LENGTH, WIDTH, HEADS, LAYERS = 4096, 128, 256, 4, 4


def array(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def dense_shape(inputs, outputs):
    return {"w": array(inputs, outputs), "b": array(outputs)}


def dense(p, x):
    return x.astype(HALF) @ p["w"].astype(HALF) + p["b"].astype(HALF)


def cross_entropy(logits, labels):
    logp = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.take_along_axis(logp, labels[:, None], axis=1).mean()


# --- the perceptron -------------------------------------------------------------------------------------------------


def mlp_shapes():
    return [dense_shape(784, 512), dense_shape(512, 256), dense_shape(256, 10)], {}


def mlp_loss(params, stats, x, y):
    for p in params[:-1]:
        x = jax.nn.relu(dense(p, x))
    return cross_entropy(dense(params[-1], x), y), stats


# --- ResNet-50, channels last ---------------------------------------------------------------------------------------


def conv(w, x, stride=1):
    pad = w.shape[0] // 2
    return lax.conv_general_dilated(
        x.astype(HALF), w.astype(HALF), (stride, stride), [(pad, pad)] * 2, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def batch_norm(p, running, x):
    wide = x.astype(jnp.float32)
    mean = wide.mean((0, 1, 2))
    var = jnp.maximum((wide * wide).mean((0, 1, 2)) - mean * mean, 0.0)
    y = (wide - mean) * (lax.rsqrt(var + 1e-5) * p["scale"]) + p["bias"]
    n = x.size // x.shape[-1]
    new = {
        "mean": 0.9 * running["mean"] + 0.1 * mean,
        "var": 0.9 * running["var"] + 0.1 * var * (n / (n - 1)),
    }
    return y.astype(x.dtype), new


def resnet_plan():
    """Input channels, channels and stride of each block."""
    plan, inputs = [], 64
    for stage, count in enumerate((3, 4, 6, 3)):
        for i in range(count):
            plan.append((inputs, 64 << stage, 2 if stage and i == 0 else 1))
            inputs = 256 << stage
    return plan


def resnet_shapes():
    params, stats = {}, {}

    def unit(name, size, inputs, outputs):
        params[name] = {"w": array(size, size, inputs, outputs), "scale": array(outputs), "bias": array(outputs)}
        stats[name] = {"mean": array(outputs), "var": array(outputs)}

    unit("stem", 7, 3, 64)
    for i, (inputs, channels, stride) in enumerate(resnet_plan()):
        unit(f"{i}a", 1, inputs, channels)
        unit(f"{i}b", 3, channels, channels)
        unit(f"{i}c", 1, channels, 4 * channels)
        if stride != 1 or inputs != 4 * channels:
            unit(f"{i}s", 1, inputs, 4 * channels)
    params["head"] = dense_shape(2048, 1000)
    return params, stats


def resnet_loss(params, stats, x, y):
    new = {}

    def unit(name, x, stride=1):
        p = params[name]
        y, new[name] = batch_norm(p, stats[name], conv(p["w"], x, stride))
        return y

    x = jax.nn.relu(unit("stem", x, 2))
    x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), [(0, 0), (1, 1), (1, 1), (0, 0)])
    for i, (_, _, stride) in enumerate(resnet_plan()):
        z = jax.nn.relu(unit(f"{i}a", x))
        z = jax.nn.relu(unit(f"{i}b", z, stride))
        z = unit(f"{i}c", z)
        x = jax.nn.relu(z + (unit(f"{i}s", x, stride) if f"{i}s" in params else x))
    pooled = x.astype(jnp.float32).mean((1, 2)).astype(HALF)
    return cross_entropy(dense(params["head"], pooled), y), new


# --- the small GPT --------------------------------------------------------------------------------------------------


def gpt_shapes():
    norm = {"scale": array(WIDTH), "bias": array(WIDTH)}
    block = {
        "ln1": norm,
        "qkv": dense_shape(WIDTH, 3 * WIDTH),
        "out": dense_shape(WIDTH, WIDTH),
        "ln2": norm,
        "up": dense_shape(WIDTH, 4 * WIDTH),
        "down": dense_shape(4 * WIDTH, WIDTH),
    }
    blocks = [block for _ in range(LAYERS)]
    return {"words": array(WORDS, WIDTH), "positions": array(LENGTH, WIDTH), "blocks": blocks, "ln": norm}, {}


def layer_norm(p, x):
    wide = x.astype(jnp.float32)
    wide = wide - wide.mean(-1, keepdims=True)
    y = wide * lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-5)
    return (y * p["scale"] + p["bias"]).astype(x.dtype)


def attention(p, x):
    b, n, _ = x.shape
    heads = lambda t: t.reshape(b, n, HEADS, WIDTH // HEADS)  # noqa: E731
    q, k, v = map(heads, jnp.split(dense(p["qkv"], x), 3, axis=-1))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) / (WIDTH // HEADS) ** 0.5
    scores = jnp.where(jnp.tril(jnp.ones((n, n), bool)), scores, -jnp.inf)
    weights = jax.nn.softmax(scores).astype(HALF)
    return dense(p["out"], jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(b, n, WIDTH))


def gpt_loss(params, stats, x, y):
    h = (params["words"][x] + params["positions"]).astype(HALF)
    for p in params["blocks"]:
        h = h + attention(p, layer_norm(p["ln1"], h))
        h = h + dense(p["down"], jax.nn.gelu(dense(p["up"], layer_norm(p["ln2"], h)), approximate=True))
    logits = layer_norm(params["ln"], h) @ params["words"].T.astype(HALF)
    return cross_entropy(logits.reshape(-1, WORDS), y.reshape(-1)), stats


# --- optimizers -----------------------------------------------------------------------------------------------------


def sgd(p, g, m, _):
    m = jax.tree.map(lambda m, g: 0.9 * m + g, m, g)
    return jax.tree.map(lambda p, m: p - 0.1 * m, p, m), m


def adamw(p, g, state, step):
    first, second = state
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, g)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, g)
    t = (step + 1).astype(jnp.float32)
    a, b = 1 - 0.9**t, 1 - 0.999**t
    move = lambda p, m, v: p * (1 - 3e-4 * 0.01) - 3e-4 * (m / a) / (jnp.sqrt(v / b) + 1e-8)  # noqa: E731
    return jax.tree.map(move, p, first, second), (first, second)


WORKLOADS = {
    "mlp": (mlp_shapes, mlp_loss, sgd, 1, lambda b: (array(b, 784), jax.ShapeDtypeStruct((b,), jnp.int32))),
    "resnet50": (resnet_shapes, resnet_loss, sgd, 1, lambda b: (array(b, 224, 224, 3), jax.ShapeDtypeStruct((b,), jnp.int32))),
    "gpt": (gpt_shapes, gpt_loss, adamw, 2, lambda b: (jax.ShapeDtypeStruct((b, LENGTH), jnp.int32),) * 2),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", choices=WORKLOADS, required=True)
    parser.add_argument("--topology", required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--dump", help="a folder for XLA's own dump")
    args = parser.parse_args()
    shapes, loss, optimizer, moments, batch = WORKLOADS[args.workload]
    params, stats = shapes()

    def step(state, x, y):
        (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(state["params"], state["stats"], x, y)
        params, moments = optimizer(state["params"], grads, state["moments"], state["step"])
        return {"params": params, "stats": stats, "moments": moments, "step": state["step"] + 1}, value

    options = {"chip_config_name": "megacore"} if args.topology.startswith("v4") else {}
    devices = topologies.get_topology_desc(platform="tpu", topology_name=args.topology, **options).devices
    mesh = Mesh(np.array(devices), ("data",))
    whole, rows = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    state = {
        "params": params,
        "stats": stats,
        "moments": params if moments == 1 else (params, params),
        "step": jax.ShapeDtypeStruct((), jnp.int32),
    }
    jitted = jax.jit(step, donate_argnums=0, in_shardings=(whole, rows, rows), out_shardings=(whole, whole))
    lowered = jitted.lower(state, *batch(args.batch))
    dump = {"xla_dump_to": args.dump, "xla_dump_hlo_as_text": True} if args.dump else None
    start = time.perf_counter()
    compiled = lowered.compile(compiler_options=dump)
    compile_s = time.perf_counter() - start
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis()
    needed = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    needed += memory.temp_size_in_bytes + memory.generated_code_size_in_bytes
    seconds = cost.get("optimal_seconds", -1.0)
    result = {
        "jax": jax.__version__,
        "flops": cost["flops"],
        "bytes_accessed": cost["bytes accessed"],
        "hbm_bytes": needed,
        "optimal_seconds": seconds if seconds > 0 else None,
        "parameters": int(sum(np.prod(p.shape) for p in jax.tree.leaves(params))),
        "compile_s": compile_s,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
