"""JAX on the virtual pod: a client of the plugin that is not Fulmen's.

    cargo build -p fulmen-virtual-pod
    python crates/virtual-pod/reference/jax_pod.py target/debug/libfulmen_virtual_pod.so

Runs the same functions in four processes with two devices each, and in one process with eight, and compares all
results to the bit: a data parallel step, a step with sharded parameters, `broadcast_one_to_all`, `process_allgather`,
and an executable that is serialized and loaded. Needs jax and numpy.
"""

import os
import pathlib
import pickle
import socket
import subprocess
import sys
import tempfile

DEVICES = 8


def member(index: int, count: int, address: str, output: str) -> None:
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.experimental import multihost_utils
    from jax.experimental.serialize_executable import deserialize_and_load, serialize
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    if count > 1:
        jax.distributed.initialize(address, count, index)
    assert jax.process_count() == count and jax.process_index() == index
    assert jax.device_count() == DEVICES and jax.local_device_count() == DEVICES // count
    mesh = Mesh(np.array(jax.devices()), ("data",))
    over_devices, everywhere = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())

    def put(value, sharding):
        """Each process passes the parts of its devices."""
        return jax.make_array_from_callback(value.shape, sharding, lambda part: value[part])

    def values(array):
        if count > 1:
            return np.asarray(multihost_utils.process_allgather(array, tiled=True))
        return np.asarray(array)

    rng = np.random.default_rng(0)
    x = rng.standard_normal((16, 8), dtype=np.float32)
    y = rng.standard_normal((16, 4), dtype=np.float32)
    w = rng.standard_normal((8, 4), dtype=np.float32)

    def loss(w, x, y):
        return jnp.mean((jnp.tanh(x @ w) - y) ** 2)

    def step(w, x, y):
        value, gradient = jax.value_and_grad(loss)(w, x, y)
        return w - 0.1 * gradient, value

    results = {}
    for name, sharding in [("ddp", everywhere), ("fsdp", over_devices)]:
        train = jax.jit(step, donate_argnums=0, out_shardings=(sharding, everywhere))
        weights, losses = put(w, sharding), []
        batch = put(x, over_devices), put(y, over_devices)
        for _ in range(3):
            weights, value = train(weights, *batch)
            losses.append(np.asarray(value.addressable_data(0)))
        results[name] = [np.array(losses), values(weights)]

    if count > 1:
        own = np.arange(4, dtype=np.float32) + index
        assert np.array_equal(multihost_utils.broadcast_one_to_all(own), np.arange(4, dtype=np.float32))
        gathered = multihost_utils.process_allgather(np.array([index]))
        assert np.array_equal(gathered.ravel(), np.arange(count)), gathered

    square = jax.jit(lambda x: jnp.sum(x * x)).lower(put(x, over_devices)).compile()
    loaded = deserialize_and_load(*serialize(square))
    for compiled in (square, loaded):
        results.setdefault("sums", []).append(np.asarray(compiled(put(x, over_devices)).addressable_data(0)))
    pathlib.Path(output).write_bytes(pickle.dumps(results))


def run(plugin: str, count: int, folder: str) -> list:
    """The results of each process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    environment = dict(
        os.environ,
        JAX_PLATFORMS="virtual_pod",
        # JAX warns that its coordinator is gone when process 0 ends first.
        TF_CPP_MIN_LOG_LEVEL="3",
        PJRT_NAMES_AND_LIBRARY_PATHS=f"virtual_pod:{plugin}",
        FULMEN_VIRTUAL_POD=f"{count}x{DEVICES // count}",
    )
    outputs = [f"{folder}/{count}-{index}" for index in range(count)]
    processes = [
        subprocess.Popen([sys.executable, __file__, "--member", str(index), str(count), address, output], env=environment)
        for index, output in enumerate(outputs)
    ]
    codes = [process.wait(timeout=600) for process in processes]
    assert codes == [0] * count, codes
    return [pickle.loads(pathlib.Path(output).read_bytes()) for output in outputs]


def main() -> None:
    if sys.argv[1] == "--member":
        member(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5])
        return
    plugin = str(pathlib.Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory() as folder:
        [expected] = run(plugin, 1, folder)
        for index, results in enumerate(run(plugin, 4, folder)):
            for name, values in expected.items():
                for value, other in zip(values, results[name], strict=True):
                    assert value.tobytes() == other.tobytes(), (index, name, value, other)
    print(f"4 processes compute what one computes: {', '.join(expected)}")


main()
