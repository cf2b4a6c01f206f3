"""The JAX side of the interleaved benchmark: flax + optax, the whole training step one donated jit.

It is a server on its standard input, so that the harness can take turns between this process and ours on a noisy
machine. It is not a benchmark by itself: it times only the blocks it is asked for, and compares nothing.

    python jax_peer.py --workload W1
    <- {"ready": true, "jax": "0.12.0.1", "python": "3.13.0", "n_params": 535818, "cold_s": 1.9, ...}
    -> block 50
    <- {"steps": 50, "seconds": 0.052, "loss": 0.31}
    -> quit

`cold_s` runs from the kernel's start of this process to the first step's loss on the host: interpreter, imports, data,
initialization and compilation. Warm-up steps follow it and are in no figure. In a block the device is waited for
once, at the end. Every step gathers a fresh shuffled batch from arrays in host memory.
"""

import argparse
import json
import os
import platform
import sys
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import flax.linen as nn  # noqa: E402  (JAX reads the environment when it is imported)
import jax  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402

STEPS_PER_EPOCH = 100
CLASSES = 10
WARM_UP_STEPS = 30


class Mlp(nn.Module):
    """784-512-256-10, ReLU."""

    @nn.compact
    def __call__(self, x):
        for width in (512, 256):
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(CLASSES)(x)


class LeNet(nn.Module):
    """Two 5x5 convolutions (20 and 50 channels, no padding), each with ReLU and 2x2 max-pooling, then 500-10.

    Channels last, which is JAX's habit and the faster layout for XLA on a CPU."""

    @nn.compact
    def __call__(self, x):
        for channels in (20, 50):
            x = nn.relu(nn.Conv(channels, (5, 5), padding="VALID")(x))
            x = nn.max_pool(x, (2, 2), strides=(2, 2))
        x = nn.relu(nn.Dense(500)(x.reshape(x.shape[0], -1)))
        return nn.Dense(CLASSES)(x)


# name: (model, one sample's shape, batch, optimizer)
WORKLOADS = {
    "W1": (Mlp(), (784,), 128, optax.sgd(1e-2, momentum=0.9)),
    "W2": (LeNet(), (28, 28, 1), 64, optax.adam(1e-3)),
}


def synthetic(samples, shape, seed):
    """Ten prototypes at half strength under unit noise: learnable, and the same for the same seed."""
    prototypes = np.random.default_rng(seed).standard_normal((CLASSES, *shape), dtype=np.float32)
    rng = np.random.default_rng(seed + 1)
    labels = rng.integers(0, CLASSES, samples)
    noise = rng.standard_normal((samples, *shape), dtype=np.float32)
    return noise + 0.5 * prototypes[labels], labels.astype(np.int32)


def batches(x, y, size, seed):
    """Endless epochs, each in a new order; a batch is a gather from host memory into new arrays."""
    rng = np.random.default_rng(seed + 2)
    while True:
        order = rng.permutation(len(x))
        for at in range(0, len(x) - size + 1, size):
            chosen = order[at : at + size]
            yield x[chosen], y[chosen]


def make_step(model, optimizer):
    def loss_of(params, x, y):
        return optax.softmax_cross_entropy_with_integer_labels(model.apply(params, x), y).mean()

    def step(state, x, y):
        params, moments = state
        loss, grads = jax.value_and_grad(loss_of)(params, x, y)
        updates, moments = optimizer.update(grads, moments, params)
        return (optax.apply_updates(params, updates), moments), loss

    return jax.jit(step, donate_argnums=0)


def seconds_since_process_start():
    with open("/proc/self/stat") as stat:
        # Field 22; counting starts after the command's name, which may itself hold spaces.
        ticks = int(stat.read().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


class Trainer:
    """The state, the compiled step and the stream of batches."""

    def __init__(self, workload, seed):
        model, shape, size, optimizer = WORKLOADS[workload]
        x, y = synthetic(size * STEPS_PER_EPOCH, shape, seed)
        self.stream = batches(x, y, size, seed)

        def init(key, sample):
            params = model.init(key, sample)
            return params, optimizer.init(params)

        self.state = jax.jit(init)(jax.random.key(seed), x[:size])
        self.n_params = sum(leaf.size for leaf in jax.tree.leaves(self.state[0]))
        self.step = make_step(model, optimizer)

    def run(self, steps):
        """Runs the steps, waits for the last one and returns its loss."""
        # A batch goes into the call as numpy arrays. A jax.device_put one batch ahead was tried: 4 % slower on W1
        # (1.30 against 1.25 ms a step, median of 40 interleaved blocks) and the same on W2 within noise.
        for _ in range(steps):
            self.state, loss = self.step(self.state, *next(self.stream))
        jax.block_until_ready((self.state, loss))
        return float(loss)


def say(**fields):
    print(json.dumps(fields), flush=True)


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--workload", choices=sorted(WORKLOADS), default="W1")
    options.add_argument("--seed", type=int, default=0)
    chosen = options.parse_args()

    trainer = Trainer(chosen.workload, chosen.seed)
    first_loss = trainer.run(1)
    cold = seconds_since_process_start()
    trainer.run(WARM_UP_STEPS)
    say(
        ready=True,
        jax=jax.__version__,
        python=platform.python_version(),
        n_params=trainer.n_params,
        cold_s=round(cold, 4),
        workload=chosen.workload,
        first_loss=first_loss,
        platform=jax.default_backend(),
    )
    for line in sys.stdin:
        match line.split():
            case ["block", count] if count.isdigit() and int(count) > 0:
                begin = time.perf_counter()
                loss = trainer.run(int(count))
                say(steps=int(count), seconds=time.perf_counter() - begin, loss=loss)
            case ["quit"]:
                break
            case []:
                pass
            case _:
                say(error=f"unknown line {line.strip()!r}: expected `block K` (K > 0) or `quit`")


if __name__ == "__main__":
    main()
