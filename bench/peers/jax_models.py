"""Models and their complete training steps in JAX, written by hand: parameters and batches as trees of arrays.

A step matches our workload of the same name: products in bf16; parameters, statistics, loss and optimizer in f32.
"""

import jax
import jax.numpy as jnp
from jax import lax

HALF = jnp.bfloat16
# The sharding of a batch.
ROWS = None
# Whether attention of a Llama is JAX's own kernel for TPUs, splash attention.
SPLASH = False
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


def gpt_shapes(layers=LAYERS):
    norm = {"scale": array(WIDTH), "bias": array(WIDTH)}
    block = {
        "ln1": norm,
        "qkv": dense_shape(WIDTH, 3 * WIDTH),
        "out": dense_shape(WIDTH, WIDTH),
        "ln2": norm,
        "up": dense_shape(WIDTH, 4 * WIDTH),
        "down": dense_shape(4 * WIDTH, WIDTH),
    }
    blocks = [block for _ in range(layers)]
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


def gpt_block(p, h):
    h = h + attention(p, layer_norm(p["ln1"], h))
    return h + dense(p["down"], jax.nn.gelu(dense(p["up"], layer_norm(p["ln2"], h)), approximate=True))


def gpt_head(params, h, y):
    logits = layer_norm(params["ln"], h) @ params["words"].T.astype(HALF)
    return cross_entropy(logits.reshape(-1, WORDS), y.reshape(-1))


def gpt_loss(params, stats, x, y):
    h = (params["words"][x] + params["positions"]).astype(HALF)
    for p in params["blocks"]:
        h = gpt_block(p, h)
    return gpt_head(params, h, y), stats


DEEP = 48


def gpt_scan_shapes():
    params, stats = gpt_shapes(1)
    stacked = jax.tree.map(lambda p: array(DEEP, *p.shape), params["blocks"][0])
    return {**params, "blocks": stacked}, stats


def gpt_scan_loss(params, stats, x, y):
    h = (params["words"][x] + params["positions"]).astype(HALF)
    h, _ = lax.scan(lambda h, p: (gpt_block(p, h), None), h, params["blocks"])
    return gpt_head(params, h, y), stats


# --- common to the models below: like PyTorch's autocast, products are in bf16 and sums in f32 ------------------------


def dropout(x, p, key):
    return jnp.where(jax.random.bernoulli(key, 1 - p, x.shape), x / (1 - p), jnp.zeros_like(x)) if p else x


def attend(q, k, v, heads, causal=False, drop=lambda weights: weights):
    """Attention over `[batch, length, width]`; keys and values may have fewer heads."""
    b, n, width = q.shape
    size = width // heads
    split = lambda t: t.reshape(b, t.shape[1], t.shape[2] // size, size)  # noqa: E731
    return attend_heads(split(q), split(k), split(v), causal, drop).reshape(b, n, width)


def attend_heads(q, k, v, causal, drop=lambda weights: weights):
    b, n, heads, size = q.shape
    q = q.reshape(b, n, k.shape[2], heads // k.shape[2], size)
    scores = jnp.einsum("bqhgd,bkhd->bhgqk", q, k).astype(jnp.float32) / size**0.5
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones((n, n), bool)), scores, -jnp.inf)
    weights = drop(jax.nn.softmax(scores).astype(HALF))
    return jnp.einsum("bhgqk,bkhd->bqhgd", weights, v).reshape(b, n, heads, size)


def splash(q, k, v):
    """Causal attention by splash attention, which each device computes for its rows of the batch."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel, splash_attention_mask

    _, n, heads, size = q.shape
    mask = splash_attention_mask.MultiHeadMask([splash_attention_mask.CausalMask((n, n))] * heads)
    block = min(512, n)
    sizes = ("block_q", "block_kv", "block_kv_compute", "block_q_dkv", "block_kv_dkv", "block_kv_dkv_compute")
    sizes = splash_attention_kernel.BlockSizes(**dict.fromkeys(sizes, block), block_q_dq=block, block_kv_dq=block)

    def of_device(q, k, v):
        kernel = splash_attention_kernel.make_splash_mha(mask, block_sizes=sizes, head_shards=1, q_seq_shards=1)
        return jax.vmap(kernel)(q, k, v)

    swap = lambda t: t.swapaxes(1, 2)  # noqa: E731
    q, k, v = swap((q / size**0.5).astype(HALF)), swap(k), swap(v)
    found = jax.shard_map(of_device, mesh=ROWS.mesh, in_specs=ROWS.spec, out_specs=ROWS.spec, check_vma=False)(q, k, v)
    return swap(found)


def norm_shape(width):
    return {"scale": array(width), "bias": array(width)}


# --- Transformer-big: 6 + 6 layers, one embedding ---------------------------------------------------------------------

BIG_WORDS, BIG, BIG_INNER, BIG_HEADS, BIG_LAYERS, BIG_DROP = 32768, 1024, 4096, 16, 6, 0.3


def transformer_shapes():
    attention = {name: dense_shape(BIG, BIG) for name in "qkvo"}
    network = {"up": dense_shape(BIG, BIG_INNER), "down": dense_shape(BIG_INNER, BIG), "norm": norm_shape(BIG)}
    encoder = {"self": attention, "self_norm": norm_shape(BIG), **network}
    decoder = {**encoder, "cross": attention, "cross_norm": norm_shape(BIG)}
    params = {"words": array(BIG_WORDS, BIG), "encoder": [encoder] * BIG_LAYERS, "decoder": [decoder] * BIG_LAYERS}
    return params, {}


def transformer_loss(params, stats, key, x, y):
    keys = iter(jax.random.split(key, 2 + 5 * BIG_LAYERS))
    drop = lambda x: dropout(x, BIG_DROP, next(keys))  # noqa: E731
    rates = 10000.0 ** (-2 * jnp.arange(BIG // 2) / BIG)

    def embed(ids):
        angles = jnp.arange(ids.shape[1])[:, None] * rates
        return drop(params["words"][ids] * BIG**0.5 + jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1))

    def mix(p, norm, x, memory, causal):
        found = attend(dense(p["q"], x), dense(p["k"], memory), dense(p["v"], memory), BIG_HEADS, causal)
        return layer_norm(norm, x + drop(dense(p["o"], found)))

    def network(p, x):
        return layer_norm(p["norm"], x + drop(dense(p["down"], jax.nn.relu(dense(p["up"], x)))))

    memory = embed(x)
    for p in params["encoder"]:
        memory = network(p, mix(p["self"], p["self_norm"], memory, memory, False))
    h = embed(jnp.concatenate([jnp.zeros_like(y[:, :1]), y[:, :-1]], 1))
    for p in params["decoder"]:
        h = mix(p["self"], p["self_norm"], h, h, True)
        h = network(p, mix(p["cross"], p["cross_norm"], h, memory, False))
    logits = h.astype(HALF) @ params["words"].T.astype(HALF)
    logp = jax.nn.log_softmax(logits.reshape(-1, BIG_WORDS).astype(jnp.float32))
    losses = -jnp.take_along_axis(logp, y.reshape(-1, 1), axis=1)[:, 0]
    return (0.9 * losses - 0.1 * logp.mean(-1)).mean(), stats


# --- RoBERTa-base -----------------------------------------------------------------------------------------------------

BASE_WORDS, BASE, BASE_INNER, BASE_HEADS, BASE_LAYERS, BASE_DROP = 50265, 768, 3072, 12, 12, 0.1


def roberta_shapes():
    layer = {name: dense_shape(BASE, BASE) for name in "qkvo"}
    layer |= {"up": dense_shape(BASE, BASE_INNER), "down": dense_shape(BASE_INNER, BASE)}
    layer |= {"norm1": norm_shape(BASE), "norm2": norm_shape(BASE)}
    params = {"words": array(BASE_WORDS, BASE), "positions": array(514, BASE), "kinds": array(1, BASE)}
    params |= {"norm": norm_shape(BASE), "layers": [layer] * BASE_LAYERS}
    return params | {"head": dense_shape(BASE, BASE), "head_norm": norm_shape(BASE), "bias": array(BASE_WORDS)}, {}


def roberta_loss(params, stats, key, x, y):
    keys = iter(jax.random.split(key, 1 + 3 * BASE_LAYERS))
    drop = lambda x: dropout(x, BASE_DROP, next(keys))  # noqa: E731
    is_word = (x != 1).astype(jnp.int32)
    places = jnp.cumsum(is_word, 1) * is_word + 1
    h = params["words"][x] + params["kinds"][jnp.zeros_like(x)] + params["positions"][places]
    h = drop(layer_norm(params["norm"], h))
    for p in params["layers"]:
        found = attend(dense(p["q"], h), dense(p["k"], h), dense(p["v"], h), BASE_HEADS, drop=drop)
        h = layer_norm(p["norm1"], drop(dense(p["o"], found)) + h)
        inner = jax.nn.gelu(dense(p["up"], h), approximate=False)
        h = layer_norm(p["norm2"], drop(dense(p["down"], inner)) + h)
    h = layer_norm(params["head_norm"], jax.nn.gelu(dense(params["head"], h), approximate=False))
    logits = h.astype(HALF) @ params["words"].T.astype(HALF) + params["bias"].astype(HALF)
    logp, y = jax.nn.log_softmax(logits.reshape(-1, BASE_WORDS).astype(jnp.float32)), y.reshape(-1)
    masked = y != -100
    losses = -jnp.take_along_axis(logp, jnp.where(masked, y, 0)[:, None], axis=1)[:, 0]
    return jnp.where(masked, losses, 0).sum() / masked.sum(), stats


# --- GPT-2 and GPT-1.3B: each layer has its own arrays -----------------------------------------------------------------

GPT2_WORDS, GPT2_LENGTH = 50257, 1024


def gpt2_shapes(width, layers):
    block = {"qkv": dense_shape(width, 3 * width), "out": dense_shape(width, width)}
    block |= {"up": dense_shape(width, 4 * width), "down": dense_shape(4 * width, width)}
    block |= {"norm1": norm_shape(width), "norm2": norm_shape(width)}
    params = {"words": array(GPT2_WORDS, width), "positions": array(GPT2_LENGTH, width)}
    return params | {"blocks": [block] * layers, "norm": norm_shape(width)}, {}


def gpt2_loss(heads, rematerialized):
    def block(p, h):
        h = lax.with_sharding_constraint(h, ROWS) if ROWS else h
        q, k, v = jnp.split(dense(p["qkv"], layer_norm(p["norm1"], h)), 3, axis=-1)
        h = h + dense(p["out"], attend(q, k, v, heads, causal=True))
        return h + dense(p["down"], jax.nn.gelu(dense(p["up"], layer_norm(p["norm2"], h)), approximate=True))

    def loss(params, stats, x, y):
        h = params["words"][x] + params["positions"]
        for p in params["blocks"]:
            h = jax.checkpoint(block)(p, h) if rematerialized else block(p, h)
        logits = layer_norm(params["norm"], h).astype(HALF) @ params["words"].T.astype(HALF)
        return cross_entropy(logits.reshape(-1, GPT2_WORDS), y.reshape(-1)), stats

    return loss


# --- Llama 3: a scan over rematerialized layers -----------------------------------------------------------------------

LLAMA_WORDS, LLAMA_HEAD, LLAMA_KEY_HEADS = 128256, 128, 8
# The features, those within the perceptron, and the layers.
LLAMA_8B, LLAMA_70B = (4096, 14336, 32), (8192, 28672, 80)


def llama_shapes(width, inner, layers):
    keys = LLAMA_KEY_HEADS * LLAMA_HEAD
    shapes = {"q": (width, width), "k": (width, keys), "v": (width, keys), "o": (width, width)}
    shapes |= {"gate": (width, inner), "up": (width, inner), "down": (inner, width), "norm1": (width,), "norm2": (width,)}
    stacked = {name: array(layers, *shape) for name, shape in shapes.items()}
    return {"words": array(LLAMA_WORDS, width), "layers": stacked, "norm": array(width), "head": array(width, LLAMA_WORDS)}, {}


def llama_loss(params, stats, key, x, y):
    size, n = LLAMA_HEAD, x.shape[1]
    angles = jnp.arange(n)[:, None] * 500000.0 ** (-2 * jnp.arange(size // 2) / size)
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]

    def rms(scale, x):
        return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale

    def rotate(x):
        a, b = jnp.split(x.astype(jnp.float32), 2, -1)
        return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(HALF)

    def product(w, x):
        return x.astype(HALF) @ w.astype(HALF)

    @jax.checkpoint
    def layer(h, p):
        h = lax.with_sharding_constraint(h, ROWS) if ROWS else h
        h1 = rms(p["norm1"], h)
        heads = lambda w: product(w, h1).reshape(*x.shape, -1, size)  # noqa: E731
        q, k, v = rotate(heads(p["q"])), rotate(heads(p["k"])), heads(p["v"])
        found = splash(q, k, v) if SPLASH else attend_heads(q, k, v, True)
        h = h + product(p["o"], found.reshape(*x.shape, -1))
        h2 = rms(p["norm2"], h)
        return h + product(p["down"], jax.nn.silu(product(p["gate"], h2)) * product(p["up"], h2)), None

    h, _ = lax.scan(layer, params["words"][x], params["layers"])
    logits = product(params["head"], rms(params["norm"], h))
    return cross_entropy(logits.reshape(-1, LLAMA_WORDS), y.reshape(-1)), stats


# --- BigGAN-128, channels last ----------------------------------------------------------------------------------------

CH, CLASSES, CHUNK, SHARED = 96, 1000, 20, 128
UP = [(16, 16), (16, 8), (8, 4), (4, 2), (2, 1)]
DOWN = [(0, 1), (1, 2), (2, 4), (4, 8), (8, 16), (16, 16)]
ATTENTION = 64


class Nets:
    """Collects shapes if it is created without parameters; otherwise computes with its parameters and statistics."""

    def __init__(self, params=None, stats=None):
        self.shapes, self.params, self.stats, self.new = ({}, {}), params, stats, dict(stats or {})

    def param(self, name, *shape):
        if self.params is None:
            self.shapes[0][name] = array(*shape)
            return jnp.zeros(shape)
        return self.params[name]

    def stat(self, name, *shape):
        if self.params is None:
            self.shapes[1][name] = array(*shape)
            return jnp.zeros(shape)
        return self.new[name]

    def spectral(self, name, *shape, out=-1):
        """A weight, divided by its largest singular value; `out` is the axis of the outputs."""
        w = self.param(name, *shape)
        matrix = jnp.moveaxis(w, out, 0).reshape(shape[out], -1)
        fixed, u = lax.stop_gradient(matrix), self.stat(name + ".u", shape[out])
        self.stat(name + ".v", matrix.shape[1])
        unit = lambda x: x / jnp.maximum(jnp.sqrt((x * x).sum()), 1e-6)  # noqa: E731
        v = unit((fixed * u[:, None]).sum(0))
        u = unit((fixed * v).sum(1))
        self.new[name + ".u"], self.new[name + ".v"] = u, v
        return w / (matrix * u[:, None] * v).sum()

    def dense(self, name, x, outputs, bias=True):
        y = x.astype(HALF) @ self.spectral(name, x.shape[-1], outputs).astype(HALF)
        return y + self.param(name + ".b", outputs).astype(HALF) if bias else y

    def conv(self, name, x, outputs, size, bias=True):
        y = conv(self.spectral(name, size, size, x.shape[-1], outputs), x)
        return y + self.param(name + ".b", outputs).astype(HALF) if bias else y

    def batch_norm(self, name, x, p):
        c = x.shape[-1]
        running = {kind: self.stat(f"{name}.{kind}", c) for kind in ("mean", "var")}
        y, new = batch_norm(p, running, x)
        self.new |= {f"{name}.{kind}": value for kind, value in new.items()}
        return y

    def conditional(self, name, x, condition):
        gain, bias = (self.dense(f"{name}.{part}", condition, x.shape[-1], False) for part in ("gain", "bias"))
        y = self.batch_norm(name, x, {"scale": 1.0, "bias": 0.0})
        return y * (gain[:, None, None] + 1) + bias[:, None, None]

    def attention(self, x):
        b, h, w, c = x.shape
        pool = lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")  # noqa: E731
        flat = lambda x: x.reshape(b, -1, x.shape[-1])  # noqa: E731
        theta = flat(self.conv("theta", x, c // 8, 1, False))
        phi = flat(pool(self.conv("phi", x, c // 8, 1, False)))
        g = flat(pool(self.conv("g", x, c // 2, 1, False)))
        weights = jax.nn.softmax(jnp.einsum("bqc,bkc->bqk", theta, phi).astype(jnp.float32)).astype(HALF)
        found = jnp.einsum("bqk,bkc->bqc", weights, g).reshape(b, h, w, c // 2)
        return self.param("gamma").astype(x.dtype) * self.conv("o", found, c, 1, False) + x

    def generator(self, z, classes):
        shared = self.param("shared", CLASSES, SHARED)[classes]
        x = self.dense("linear", z[:, :CHUNK], 16 * 16 * CH).reshape(-1, 4, 4, 16 * CH)
        double = lambda x: x.repeat(2, 1).repeat(2, 2)  # noqa: E731
        for i, (_, outputs) in enumerate(UP):
            condition = jnp.concatenate([shared, z[:, (i + 1) * CHUNK : (i + 2) * CHUNK]], -1)
            y = double(jax.nn.relu(self.conditional(f"{i}.bn1", x, condition)))
            y = self.conv(f"{i}.conv1", y, outputs * CH, 3)
            y = self.conv(f"{i}.conv2", jax.nn.relu(self.conditional(f"{i}.bn2", y, condition)), outputs * CH, 3)
            x = y + self.conv(f"{i}.short", double(x), outputs * CH, 1)
            x = self.attention(x) if x.shape[1] == ATTENTION else x
        norm = {"scale": self.param("scale", CH), "bias": self.param("bias", CH)}
        return jnp.tanh(self.conv("out", jax.nn.relu(self.batch_norm("bn", x, norm)), 3, 3))

    def discriminator(self, x, classes):
        for i, (inputs, outputs) in enumerate(DOWN):
            down = i + 1 < len(DOWN)

            def halve(x):
                window = (1, 2, 2, 1)
                return lax.reduce_window(x, 0.0, lax.add, window, window, "VALID") / 4 if down else x

            def short(x):
                return self.conv(f"{i}.short", x, outputs * CH, 1) if down or inputs != outputs else x

            y = self.conv(f"{i}.conv1", jax.nn.relu(x) if i else x, outputs * CH, 3)
            y = halve(self.conv(f"{i}.conv2", jax.nn.relu(y), outputs * CH, 3))
            x = y + (halve(short(x)) if i else short(halve(x)))
            x = self.attention(x) if down and x.shape[1] == ATTENTION else x
        features = jax.nn.relu(x).astype(jnp.float32).sum((1, 2))
        of_class = (self.spectral("embed", CLASSES, 16 * CH, out=0)[classes] * features).sum(-1)
        return self.dense("linear", features, 1)[:, 0] + of_class


def gan_shapes():
    z, image, y = jnp.zeros((1, 6 * CHUNK)), jnp.zeros((1, 128, 128, 3)), jnp.zeros((1,), jnp.int32)
    g, d = Nets(), Nets()
    jax.eval_shape(lambda: (g.generator(z, y), d.discriminator(image, y)))
    return {"g": g.shapes[0], "d": d.shapes[0]}, {"g": g.shapes[1], "d": d.shapes[1]}


def gan_step(state, x, y):
    params, stats, key = state["params"], state["stats"], jax.random.fold_in(jax.random.key(0), state["step"])
    z = jax.random.normal(key, (x.shape[0], 6 * CHUNK))

    def generate(g):
        nets = Nets(g, stats["g"])
        return nets.generator(z, y), nets.new

    def judge(d, stats, x, y):
        nets = Nets(d, stats)
        return nets.discriminator(x, y), nets.new

    def d_loss(d):
        both = jnp.concatenate([x.astype(HALF), lax.stop_gradient(fake)])
        logits, new = judge(d, stats["d"], both, jnp.concatenate([y, y]))
        real, made = jnp.split(logits.astype(jnp.float32), 2)
        return jax.nn.relu(1 - real).mean() + jax.nn.relu(1 + made).mean(), new

    def g_loss(fake):
        logits, new = judge(d, d_stats, fake, y)
        return -logits.astype(jnp.float32).mean(), new

    fake, backward, g_stats = jax.vjp(generate, params["g"], has_aux=True)
    (loss, d_stats), d_grads = jax.value_and_grad(d_loss, has_aux=True)(params["d"])
    first, second = state["moments"]
    d, (first_d, second_d) = adam(4e-4, 0.0, 0.999, 1e-8)(params["d"], d_grads, (first["d"], second["d"]), state["step"])
    of_fake, d_stats = jax.grad(g_loss, has_aux=True)(fake)
    (g_grads,) = backward(of_fake)
    g, (first_g, second_g) = adam(1e-4, 0.0, 0.999, 1e-8)(params["g"], g_grads, (first["g"], second["g"]), state["step"])
    moments = ({"g": first_g, "d": first_d}, {"g": second_g, "d": second_d})
    return {"params": {"g": g, "d": d}, "stats": {"g": g_stats, "d": d_stats}, "moments": moments, "step": state["step"] + 1}, loss


# --- optimizers -----------------------------------------------------------------------------------------------------


def sgd(p, g, m, _):
    m = jax.tree.map(lambda m, g: 0.9 * m + g, m, g)
    return jax.tree.map(lambda p, m: p - 0.1 * m, p, m), m


def adam(lr, beta1, beta2, eps, decay=0.0):
    """Adam, or AdamW with a decay."""

    def update(p, g, state, step):
        first, second = state
        first = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, first, g)
        second = jax.tree.map(lambda v, g: beta2 * v + (1 - beta2) * g * g, second, g)
        t = (step + 1).astype(jnp.float32)
        a, b = 1 - beta1**t, 1 - beta2**t
        move = lambda p, m, v: p * (1 - lr * decay) - lr * (m / a) / (jnp.sqrt(v / b) + eps)  # noqa: E731
        return jax.tree.map(move, p, first, second), (first, second)

    return update


# --- workloads --------------------------------------------------------------------------------------------------------


def training(loss, optimizer):
    """The training step of a loss and an optimizer; a loss with five arguments gets a random key."""

    def step(state, *batch):
        keys = (jax.random.fold_in(jax.random.key(0), state["step"]),) if loss.__code__.co_argcount == 5 else ()
        (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(state["params"], state["stats"], *keys, *batch)
        params, moments = optimizer(state["params"], grads, state["moments"], state["step"])
        return {"params": params, "stats": stats, "moments": moments, "step": state["step"] + 1}, value

    return step


def words(length):
    return lambda b: (jax.ShapeDtypeStruct((b, length), jnp.int32),) * 2


def images(*shape):
    return lambda b: (array(b, *shape), jax.ShapeDtypeStruct((b,), jnp.int32))


def gpt2_step(heads, rematerialized):
    return training(gpt2_loss(heads, rematerialized), adam(3e-4, 0.9, 0.999, 1e-8, 0.01))


LLAMA_STEP = training(llama_loss, adam(3e-4, 0.9, 0.999, 1e-8, 0.01))
# Shapes, the step, moments of the optimizer, the batch, and axes that count layers.
WORKLOADS = {
    "mlp": (mlp_shapes, training(mlp_loss, sgd), 1, images(784)),
    "gpt": (gpt_shapes, training(gpt_loss, adam(3e-4, 0.9, 0.999, 1e-8, 0.01)), 2, words(LENGTH)),
    "gpt-48": (lambda: gpt_shapes(DEEP), training(gpt_loss, adam(3e-4, 0.9, 0.999, 1e-8, 0.01)), 2, words(LENGTH)),
    "gpt-48-scan": (gpt_scan_shapes, training(gpt_scan_loss, adam(3e-4, 0.9, 0.999, 1e-8, 0.01)), 2, words(LENGTH)),
    "resnet50": (resnet_shapes, training(resnet_loss, sgd), 1, images(224, 224, 3)),
    "transformer-big": (transformer_shapes, training(transformer_loss, adam(1e-3, 0.9, 0.98, 1e-9)), 2, words(128)),
    "roberta-base": (roberta_shapes, training(roberta_loss, adam(6e-4, 0.9, 0.98, 1e-8, 0.01)), 2, words(512)),
    "biggan-128": (gan_shapes, gan_step, 2, images(128, 128, 3)),
    "gpt2": (lambda: gpt2_shapes(768, 12), gpt2_step(12, False), 2, words(GPT2_LENGTH)),
    "gpt-1.3b": (lambda: gpt2_shapes(2048, 24), gpt2_step(16, True), 2, words(GPT2_LENGTH)),
    "llama-3-8b": (lambda: llama_shapes(*LLAMA_8B), LLAMA_STEP, 2, words(4096)),
    "llama-3-8b-v5p": (lambda: llama_shapes(*LLAMA_8B), LLAMA_STEP, 2, words(8192)),
    "llama-3-70b": (lambda: llama_shapes(*LLAMA_70B), LLAMA_STEP, 2, words(4096)),
}


def training_state(workload, length=None):
    """The shapes of the state, the step, and the shapes of a batch, of this length if the workload has words."""
    shapes, step, moments, batch = WORKLOADS[workload]
    batch = words(length) if length else batch
    params, stats = shapes()
    moments = params if moments == 1 else (params, params)
    return {"params": params, "stats": stats, "moments": moments, "step": jax.ShapeDtypeStruct((), jnp.int32)}, step, batch
