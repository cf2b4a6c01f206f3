"""The JAX side of the interleaved benchmark: flax + optax, with the whole training step in one donated jit. The steps of
resnet50 and gpt2 are those of jax_models.py, with products in bf16.

It is a server on its standard input, so that the harness can alternate between this process and ours on a noisy machine.
It is not a benchmark by itself: it only times the requested blocks, and compares nothing.

    python jax_peer.py --workload W1
    <- {"version": "0.12.0.1, Python 3.13.0", "n_params": 535818, "steps_per_epoch": 100, "cold_s": 1.9, ...}
    -> block 50
    <- {"steps": 50, "seconds": 0.052, "loss": 0.31, "peak_bytes": 369098752}
    -> quit

`cold_s` runs from the kernel's start of this process to the first step's loss on the host: interpreter, imports, data,
initialization and compilation. Warm-up steps follow, and are not counted. A block waits for the device once, at its
end. Every step gathers a new shuffled batch from arrays in host memory. With `--devices 8`, the batch is split over eight
CPU devices, and each has all parameters. `--accelerator cuda` runs on GPUs, and takes their memory as it is needed.
`peak_bytes` is the peak memory of this process so far. W6 has our weights and batches, in the files of `--start`, and
takes the batches in their order, so its `first_losses` are ours.
"""

import argparse
import json
import os
import platform
import sys
import time

options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
options.add_argument("--workload", choices=["W1", "W2", "W3", "W4", "W5", "W6", "resnet50", "gpt2"], default="W1")
options.add_argument("--accelerator", choices=["cpu", "cuda"], default="cpu")
options.add_argument("--devices", type=int, default=1)
options.add_argument("--seed", type=int, default=0)
options.add_argument("--start", help="for W6: the folder with weights.safetensors and data.safetensors")
CHOSEN = options.parse_args()
os.environ.setdefault("JAX_PLATFORMS", CHOSEN.accelerator)
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import flax.linen as nn  # noqa: E402  (JAX reads the environment when it is imported)
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import jax_models  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

CLASSES = 10
WORDS, LENGTH, WIDTH, HEADS, LAYERS = 4096, 128, 256, 4, 4
LLAMA_WORDS, LLAMA_LENGTH, LLAMA_INNER = 1024, 2048, 768


class Mlp(nn.Module):
    """784-512-256-10, ReLU."""

    @nn.compact
    def __call__(self, x, train):
        for width in (512, 256):
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(CLASSES)(x)


class LeNet(nn.Module):
    """Two 5x5 convolutions (20 and 50 channels, no padding), each with ReLU and 2x2 max-pooling, then 500-10.

    Channels last, which is JAX's habit and the faster layout for XLA on a CPU."""

    @nn.compact
    def __call__(self, x, train):
        for channels in (20, 50):
            x = nn.relu(nn.Conv(channels, (5, 5), padding="VALID")(x))
            x = nn.max_pool(x, (2, 2), strides=(2, 2))
        x = nn.relu(nn.Dense(500)(x.reshape(x.shape[0], -1)))
        return nn.Dense(CLASSES)(x)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions, each with batch normalization, and a shortcut around both."""

    channels: int
    stride: int

    @nn.compact
    def __call__(self, x, train):
        def conv(size, stride):
            return nn.Conv(self.channels, (size, size), (stride, stride), padding=size // 2, use_bias=False)

        def norm():
            return nn.BatchNorm(use_running_average=not train, momentum=0.9)

        y = nn.relu(norm()(conv(3, self.stride)(x)))
        y = norm()(conv(3, 1)(y))
        if x.shape != y.shape:
            x = norm()(conv(1, self.stride)(x))
        return nn.relu(x + y)


class ResNet18(nn.Module):
    """The variant for images of 32x32: it starts with a 3x3 convolution, without pooling after it."""

    @nn.compact
    def __call__(self, x, train):
        x = nn.Conv(64, (3, 3), padding=1, use_bias=False)(x)
        x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(x))
        for channels, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            x = BasicBlock(channels, stride)(x, train)
            x = BasicBlock(channels, 1)(x, train)
        return nn.Dense(CLASSES)(x.mean((1, 2)))


class GptBlock(nn.Module):
    """Causal attention and an MLP with four times the width, each after a normalization."""

    @nn.compact
    def __call__(self, x):
        b, n, _ = x.shape
        q, k, v = jnp.moveaxis(nn.Dense(3 * WIDTH)(nn.LayerNorm()(x)).reshape(b, n, 3, HEADS, WIDTH // HEADS), 2, 0)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (WIDTH // HEADS) ** 0.5
        scores = jnp.where(jnp.tril(jnp.ones((n, n), bool)), scores, -jnp.inf)
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v).reshape(b, n, WIDTH)
        x = x + nn.Dense(WIDTH)(mixed)
        return x + nn.Dense(WIDTH)(nn.gelu(nn.Dense(4 * WIDTH)(nn.LayerNorm()(x)), approximate=True))


class Gpt(nn.Module):
    """Four layers of width 256, with tied embeddings."""

    @nn.compact
    def __call__(self, words, train):
        embedding = nn.Embed(WORDS, WIDTH)
        x = embedding(words) + self.param("positions", nn.initializers.normal(0.02), (LENGTH, WIDTH))
        for _ in range(LAYERS):
            x = GptBlock()(x)
        return embedding.attend(nn.LayerNorm()(x))


class LlamaAttention(nn.Module):
    """Attention to the earlier tokens of the same document, with rotated queries and keys."""

    @nn.compact
    def __call__(self, x, visible, angles):
        b, n, _ = x.shape
        heads = lambda name: nn.Dense(WIDTH, use_bias=False, name=name)(x).reshape(b, n, HEADS, -1)  # noqa: E731

        def rotate(t):
            first, second = jnp.split(t, 2, -1)
            cos, sin = jnp.cos(angles), jnp.sin(angles)
            return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)

        q, k, v = rotate(heads("q_proj")), rotate(heads("k_proj")), heads("v_proj")
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (WIDTH // HEADS) ** 0.5
        weights = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf))
        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(b, n, WIDTH)
        return nn.Dense(WIDTH, use_bias=False, name="o_proj")(mixed)


class LlamaMlp(nn.Module):
    @nn.compact
    def __call__(self, x):
        dense = lambda width, name: nn.Dense(width, use_bias=False, name=name)  # noqa: E731
        inner = nn.silu(dense(LLAMA_INNER, "gate_proj")(x)) * dense(LLAMA_INNER, "up_proj")(x)
        return dense(WIDTH, "down_proj")(inner)


class LlamaLayer(nn.Module):
    @nn.compact
    def __call__(self, x, visible, angles):
        norm = lambda name: nn.RMSNorm(epsilon=1e-6, name=name)  # noqa: E731
        x = x + LlamaAttention(name="self_attn")(norm("input_layernorm")(x), visible, angles)
        return x + LlamaMlp(name="mlp")(norm("post_attention_layernorm")(x))


class PackedLlama(nn.Module):
    """Llama on packed documents: words, the numbers of their documents, and their positions in them."""

    @nn.compact
    def __call__(self, x, train):
        words, segments, positions = x[:, 0], x[:, 1], x[:, 2]
        n, size = words.shape[1], WIDTH // HEADS
        same = segments[:, :, None] == segments[:, None, :]
        visible = (same & jnp.tril(jnp.ones((n, n), bool)))[:, None]
        rates = 10000.0 ** (-2 * jnp.arange(size // 2) / size)
        angles = positions[:, :, None, None] * rates
        h = nn.Embed(LLAMA_WORDS, WIDTH, name="embed_tokens")(words)
        for i in range(LAYERS):
            h = LlamaLayer(name=f"layers_{i}")(h, visible, angles)
        h = nn.RMSNorm(epsilon=1e-6, name="norm")(h)
        return nn.Dense(LLAMA_WORDS, use_bias=False, name="lm_head")(h)


def named_weight(tensors, path):
    """The weight of a parameter of PackedLlama under its name in Hugging Face's Llama."""
    *parts, kind = [key.key for key in path]
    name = ".".join(parts).replace("layers_", "layers.") + ".weight"
    value = tensors[name if name == "lm_head.weight" else f"model.{name}"]
    return value.T if kind == "kernel" else value


def read_safetensors(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    header.pop("__metadata__", None)
    types = {"F32": np.float32, "I32": np.int32}
    array = lambda t: np.frombuffer(data[slice(*t["data_offsets"])], types[t["dtype"]]).reshape(t["shape"])  # noqa: E731
    return {name: array(tensor) for name, tensor in header.items()}


class Generator(nn.Module):
    """DCGAN's generator at 32x32: from 100 random numbers to an image."""

    @nn.compact
    def __call__(self, z, train):
        x = z[:, None, None]
        for channels, stride, padding in ((256, 1, "VALID"), (128, 2, "SAME"), (64, 2, "SAME")):
            x = nn.ConvTranspose(channels, (4, 4), (stride, stride), padding=padding, use_bias=False)(x)
            x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(x))
        return jnp.tanh(nn.ConvTranspose(3, (4, 4), (2, 2), padding="SAME", use_bias=False)(x))


class Discriminator(nn.Module):
    """DCGAN's discriminator at 32x32: from an image to a logit."""

    @nn.compact
    def __call__(self, x, train):
        for channels in (64, 128, 256):
            x = nn.Conv(channels, (4, 4), (2, 2), padding=1, use_bias=False)(x)
            if channels > 64:
                x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)
            x = nn.leaky_relu(x, 0.2)
        return nn.Conv(1, (4, 4), padding="VALID", use_bias=False)(x)[:, 0, 0, 0]


class Dcgan:
    """DCGAN with its losses: a step of the discriminator, then one of the generator with the new discriminator."""

    optimizer = optax.adam(2e-4, b1=0.5)

    def init(self, key, sample):
        g = dict(Generator().init(key, jnp.zeros((1, 100)), False))
        d = dict(Discriminator().init(key, sample, False))
        params = {"g": g.pop("params"), "d": d.pop("params")}
        moments = {name: self.optimizer.init(params[name]) for name in params}
        return params, {"g": g, "d": d, "key": key}, moments

    def step(self, state, x, y):
        params, statistics, moments = state
        key, draw = jax.random.split(statistics["key"])
        z = jax.random.normal(draw, (x.shape[0], 100))

        def apply(module, params, statistics, x):
            return module.apply({"params": params, **statistics}, x, True, mutable=list(statistics))

        def update(name, grads):
            updates, new = self.optimizer.update(grads, moments[name], params[name])
            return optax.apply_updates(params[name], updates), new

        def d_loss(d):
            real, new = apply(Discriminator(), d, statistics["d"], x)
            made, new = apply(Discriminator(), d, new, jax.lax.stop_gradient(fake))
            return jax.nn.softplus(-real).mean() + jax.nn.softplus(made).mean(), new

        def g_loss(fake):
            logits, new = apply(Discriminator(), d, d_statistics, fake)
            return jax.nn.softplus(-logits).mean(), new

        fake, backward, g_statistics = jax.vjp(
            lambda g: apply(Generator(), g, statistics["g"], z), params["g"], has_aux=True
        )
        (loss, d_statistics), grads = jax.value_and_grad(d_loss, has_aux=True)(params["d"])
        d, d_moments = update("d", grads)
        of_fake, d_statistics = jax.grad(g_loss, has_aux=True)(fake)
        g, g_moments = update("g", *backward(of_fake))
        statistics = {"g": g_statistics, "d": d_statistics, "key": key}
        return ({"g": g, "d": d}, statistics, {"g": g_moments, "d": d_moments}), loss


class HandWritten:
    """A step of jax_models.py. Images are bytes, and become numbers from -1 to 1 on the device."""

    def __init__(self, workload):
        self.shapes, self.train, _ = jax_models.training_state(workload)

    def init(self, key, sample):
        paths, tree = jax.tree.flatten_with_path(self.shapes["params"])
        filled = [self.fill(*pair, jax.random.fold_in(key, i)) for i, pair in enumerate(paths)]
        stats = jax.tree.map_with_path(lambda path, leaf: self.fill(path, leaf, key), self.shapes["stats"])
        moments = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), self.shapes["moments"])
        return jax.tree.unflatten(tree, filled), (stats, jnp.zeros((), jnp.int32)), moments

    @staticmethod
    def fill(path, leaf, key):
        """Normal weights; scales and variances are one, biases and means are zero."""
        match path[-1].key:
            case "scale" | "var":
                return jnp.ones(leaf.shape)
            case "bias" | "b" | "mean":
                return jnp.zeros(leaf.shape)
            case _ if len(leaf.shape) == 4:
                return jax.random.normal(key, leaf.shape) * (2 / np.prod(leaf.shape[:-1])) ** 0.5
            case _:
                return jax.random.normal(key, leaf.shape) * 0.02

    def step(self, state, x, y):
        params, (stats, count), moments = state
        if x.dtype == jnp.uint8:
            x = x.astype(jnp.float32) / 127.5 - 1
        state = {"params": params, "stats": stats, "moments": moments, "step": count}
        new, loss = self.train(state, x, y)
        return (new["params"], (new["stats"], new["step"]), new["moments"]), loss


# name: (model, one sample's shape, batch, steps in an epoch, warm-up steps, optimizer)
WORKLOADS = {
    "W1": (Mlp(), (784,), 128, 100, 30, optax.sgd(1e-2, momentum=0.9)),
    "W2": (LeNet(), (28, 28, 1), 64, 100, 30, optax.adam(1e-3)),
    "W3": (ResNet18(), (32, 32, 3), 32, 5, 2, optax.sgd(1e-2, momentum=0.9)),
    "W4": (Gpt(), (LENGTH,), 8, 10, 5, optax.adamw(3e-4, weight_decay=0.01)),
    "W5": (Dcgan(), (32, 32, 3), 32, 5, 2, None),
    "W6": (PackedLlama(), (3, LLAMA_LENGTH), 2, 5, 4, optax.adamw(3e-4, weight_decay=0.01)),
    "resnet50": (HandWritten("resnet50"), (224, 224, 3), 256, 20, 5, None),
    "gpt2": (HandWritten("gpt2"), (jax_models.GPT2_LENGTH,), 16, 20, 5, None),
}


def synthetic(samples, shape, seed):
    """Ten prototypes at half strength plus unit noise: learnable, and reproducible by the seed."""
    prototypes = np.random.default_rng(seed).standard_normal((CLASSES, *shape), dtype=np.float32)
    rng = np.random.default_rng(seed + 1)
    labels = rng.integers(0, CLASSES, samples)
    noise = rng.standard_normal((samples, *shape), dtype=np.float32)
    return noise + 0.5 * prototypes[labels], labels.astype(np.int32)


def byte_images(samples, shape, seed):
    """Noise whose brightness depends on the class."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, samples)
    noise = np.frombuffer(rng.bytes(samples * int(np.prod(shape))), np.uint8).reshape(samples, *shape)
    return (noise >> 1) + (12 * labels.astype(np.uint8)).reshape(-1, *[1] * len(shape)), labels.astype(np.int32)


def counting(samples, words, length, seed):
    """Rows of words that count upwards by some stride, and the same rows shifted by one word."""
    rng = np.random.default_rng(seed)
    start, stride = rng.integers(0, words, (samples, 1)), rng.integers(1, 8, (samples, 1))
    rows = ((start + stride * np.arange(length + 1)) % words).astype(np.int32)
    return rows[:, :-1], rows[:, 1:]


def data(workload, samples, shape, seed):
    match workload:
        case "W4":
            return counting(samples, WORDS, LENGTH, seed)
        case "gpt2":
            return counting(samples, jax_models.GPT2_WORDS, *shape, seed)
        case "W6":
            arrays = read_safetensors(f"{CHOSEN.start}/data.safetensors")
            return np.stack([arrays[name] for name in ("x", "segment_ids", "positions")], 1), arrays["y"]
        case "resnet50":
            return byte_images(samples, shape, seed)
        case _:
            return synthetic(samples, shape, seed)


def batches(x, y, size, seed, shuffled):
    """Endless epochs, each in a new order if shuffled. A batch is gathered from host memory into new arrays."""
    rng = np.random.default_rng(seed + 2)
    while True:
        order = rng.permutation(len(x)) if shuffled else np.arange(len(x))
        for at in range(0, len(x) - size + 1, size):
            chosen = order[at : at + size]
            yield x[chosen], y[chosen]


def make_step(model, optimizer):
    def loss_of(params, statistics, x, y):
        logits, statistics = model.apply({"params": params, **statistics}, x, True, mutable=list(statistics))
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), statistics

    def step(state, x, y):
        params, statistics, moments = state
        (loss, statistics), grads = jax.value_and_grad(loss_of, has_aux=True)(params, statistics, x, y)
        updates, moments = optimizer.update(grads, moments, params)
        return (optax.apply_updates(params, updates), statistics, moments), loss

    return step


def peak_bytes():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))


def seconds_since_process_start():
    with open("/proc/self/stat") as stat:
        # Field 22; counting starts after the command's name, which may contain spaces.
        ticks = int(stat.read().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


class Trainer:
    """The state, the compiled step and the stream of batches."""

    def __init__(self, workload, devices, seed):
        model, shape, size, self.steps_per_epoch, self.warm_up, optimizer = WORKLOADS[workload]
        x, y = data(workload, size * self.steps_per_epoch, shape, seed)
        self.stream = batches(x, y, size, seed, workload != "W6")

        def init(key, sample):
            variables = dict(model.init(key, sample, False))
            params = variables.pop("params")
            return params, variables, optimizer.init(params)

        step = make_step(model, optimizer)
        if optimizer is None:
            init, step = model.init, model.step
        if devices == 1:
            init, self.step = jax.jit(init), jax.jit(step, donate_argnums=0)
            self.put = lambda batch: batch
        else:
            mesh = Mesh(np.array(jax.devices()), ("data",))
            whole, rows = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
            init = jax.jit(init, out_shardings=whole)
            self.step = jax.jit(step, donate_argnums=0, in_shardings=(whole, rows, rows), out_shardings=whole)
            self.put = lambda batch: jax.device_put(batch, rows)
        self.state = init(jax.random.key(seed), x[:size])
        if workload == "W6":
            weights = read_safetensors(f"{CHOSEN.start}/weights.safetensors")
            params = jax.tree.map_with_path(
                lambda path, old: jax.device_put(named_weight(weights, path), old.sharding), self.state[0]
            )
            self.state = (params, *self.state[1:])
        self.n_params = sum(leaf.size for leaf in jax.tree.leaves(self.state[0]))

    def run(self, steps):
        """Runs the steps, waits for the last one and returns its loss."""
        # A batch goes into the call as numpy arrays. A jax.device_put one batch ahead was tried: 4 % slower on W1
        # (1.30 against 1.25 ms a step, median of 40 interleaved blocks) and the same on W2 within noise.
        for _ in range(steps):
            self.state, loss = self.step(self.state, *self.put(next(self.stream)))
        jax.block_until_ready((self.state, loss))
        return float(loss)


def say(**fields):
    print(json.dumps(fields), flush=True)


def main():
    jax.config.update("jax_num_cpu_devices", CHOSEN.devices)
    trainer = Trainer(CHOSEN.workload, CHOSEN.devices, CHOSEN.seed)
    first_loss = trainer.run(1)
    cold = seconds_since_process_start()
    first_losses = None
    if CHOSEN.workload == "W6":
        first_losses = [first_loss, *(trainer.run(1) for _ in range(trainer.warm_up))]
    else:
        trainer.run(trainer.warm_up)
    say(
        version=f"{jax.__version__}, Python {platform.python_version()}",
        n_params=trainer.n_params,
        steps_per_epoch=trainer.steps_per_epoch,
        cold_s=round(cold, 4),
        workload=CHOSEN.workload,
        first_loss=first_loss,
        first_losses=first_losses,
        platform=jax.default_backend(),
    )
    for line in sys.stdin:
        match line.split():
            case ["block", count] if count.isdigit() and int(count) > 0:
                begin = time.perf_counter()
                loss = trainer.run(int(count))
                say(steps=int(count), seconds=time.perf_counter() - begin, loss=loss, peak_bytes=peak_bytes())
            case ["quit"]:
                break
            case []:
                pass
            case _:
                say(error=f"unknown line {line.strip()!r}: expected `block K` (K > 0) or `quit`")


if __name__ == "__main__":
    main()
