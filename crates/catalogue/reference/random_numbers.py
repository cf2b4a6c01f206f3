"""Random numbers, with JAX. `generate.py` runs it."""

import jax
import numpy as np

from common import draw, Family, INF, number, tensor


data = jax.random.key_data


def random_numbers():
    """Threefry-2x32 in its partitionable form. Element i (row-major, 64-bit) of a draw hashes the two words of i, high
    word first, with the key; 32 random bits are the xor of both result words. fold_in hashes (0, data); the result words
    are the new key. A uniform f32 takes the upper 23 bits as the mantissa of a number in [1, 2), minus 1. A normal f32 is
    sqrt(2) * erf_inv of a uniform number in [nextafter(-1, 0), 1)."""
    assert jax.config.jax_threefry_partitionable
    out = Family("random_numbers")
    keys = {}

    def key_case(name, key, op, source, **attrs):
        keys[name] = key
        out.add(op, name, attrs, source, [tensor(data(key))])

    for seed in (0, 42):
        key_case(f"key_{seed}", jax.random.key(seed), "key", [], seed=seed)
        for number_ in (7, 123456789):
            folded = jax.random.fold_in(keys[f"key_{seed}"], number_)
            key_case(f"key_{seed}_fold_{number_}", folded, "fold_in", [tensor(data(keys[f"key_{seed}"]))], data=number_)
    twice = jax.random.fold_in(keys["key_42_fold_7"], 2**32 - 1)
    key_case("key_42_fold_7_fold_max", twice, "fold_in", [tensor(data(keys["key_42_fold_7"]))], data=2**32 - 1)
    with jax.enable_x64(True):  # otherwise JAX truncates a seed to 32 bits
        for seed in (2**40 + 5, 2**63 - 1):
            out.add("key", f"key_{seed}", {"seed": seed}, [], [tensor(data(jax.random.key(seed)))])
    keys["key_raw"] = jax.random.wrap_key_data(np.array([0x12345678, 0x9ABCDEF0], np.uint32))

    for name, key in keys.items():
        source = [tensor(data(key))]
        for label, s in {"8": [8], "3x5": [3, 5], "scalar": [], "2x3x4": [2, 3, 4], "empty": [0, 2]}.items():
            out.add("bits", f"bits_{name}_{label}", {"shape": s}, source, [tensor(jax.random.bits(key, s))])
        for low, high in ((0.0, 1.0), (-2.0, 3.0)):
            value = jax.random.uniform(key, (3, 5), minval=low, maxval=high)
            label = "unit" if high == 1 else "range"
            out.add("uniform", f"uniform_{name}_{label}", {"shape": [3, 5], "minval": low, "maxval": high}, source, [tensor(value)])
        out.add("normal", f"normal_{name}", {"shape": [3, 5]}, source, [tensor(jax.random.normal(key, (3, 5)))])
        out.add("bernoulli", f"bernoulli_{name}", {"p": 0.3, "shape": [4, 6]}, source, [tensor(jax.random.bernoulli(key, 0.3, (4, 6)))])
        out.add("split", f"split_{name}", {"n": 3}, source, [tensor(data(jax.random.split(key, 3)))])
    integers_and_orders(out, keys["key_42"])
    distributions(out, keys["key_42_fold_7"])
    # Enough draws to reach the tails, where erf_inv takes its other branch (|x| > 0.9966).
    out.add("normal", "normal_long", {"shape": [3000]}, [tensor(data(keys["key_0"]))], [tensor(jax.random.normal(keys["key_0"], (3000,)))])
    out.write()


def distributions(out, key):
    source = [tensor(data(key))]
    tails = {"shape": [40]}
    for dtype, kind in {"f32": np.float32, "f64": np.float64}.items():
        with jax.enable_x64(dtype == "f64"):
            for label, low, high in [("unit", 0.0, 1.0), ("range", -3.5, 1e3)]:
                value = jax.random.uniform(key, (3, 5), kind, low, high)
                out.add("uniform_as", f"uniform_as_{dtype}_{label}", {"dtype": dtype, "shape": [3, 5], "minval": low, "maxval": high}, source, [tensor(value)])
            out.add("normal_as", f"normal_as_{dtype}", {"dtype": dtype, "shape": [40]}, source, [tensor(jax.random.normal(key, (40,), kind))])
            for label, low, high in [("two", -2.0, 2.0), ("right", 0.5, INF), ("narrow", 1.0, 1.25), ("all", -INF, INF)]:
                value = jax.random.truncated_normal(key, low, high, (4, 5), kind)
                words = {INF: "inf", -INF: "-inf"}
                more = {"dtype": dtype, "shape": [4, 5], "lower": words.get(low, low), "upper": words.get(high, high)}
                out.add("truncated_normal", f"truncated_normal_{dtype}_{label}", more, source, [tensor(value)])
            for op, f in {"gumbel": jax.random.gumbel, "exponential": jax.random.exponential}.items():
                out.add(op, f"{op}_{dtype}", {"dtype": dtype} | tails, source, [tensor(f(key, (40,), kind))])
            p = np.array([0, 0.2, 0.5, 0.9, 1], kind)
            value = jax.random.bernoulli(key, p, (8, 5))
            out.add("bernoulli_with", f"bernoulli_with_{dtype}", {"shape": [8, 5]}, [*source, tensor(p)], [tensor(value)])
            for label, shape, axis in [("last", (6, 4), -1), ("first", (3, 5), 0), ("vector", (7,), 0), ("middle", (2, 3, 4), 1)]:
                logits = draw(f"categorical_{label}", shape).astype(kind)
                value = jax.random.categorical(key, logits, axis).astype(np.int32)
                out.add("categorical", f"categorical_{dtype}_{label}", {"axis": axis}, [*source, tensor(logits)], [tensor(value)])
    many = np.broadcast_to(np.array([0, -INF, 1, 0.5], np.float32), (50, 4))
    value = jax.random.categorical(key, many[0], shape=(50,)).astype(np.int32)
    out.add("categorical", "categorical_many", {"axis": -1}, [*source, tensor(many)], [tensor(value)])


def integers_and_orders(out, key):
    source = [tensor(data(key))]
    for dtype in ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"):
        kind = np.dtype({"i": "int", "u": "uint"}[dtype[0]] + dtype[1:])
        info = np.iinfo(kind)
        top = min(int(info.max), 2**63 - 1)
        for label, low, high in [("dice", 1, 7), ("wide", max(int(info.min), -100), 28), ("all", int(info.min), top + (top < 2**63 - 1)), ("one", 5, 6)]:
            with jax.enable_x64(dtype.endswith("64") or high > 2**31 - 1):
                bounds = [np.asarray(v, np.uint64 if v > 2**63 - 1 else np.int64) for v in (low, high)]
                value = jax.random.randint(key, (3, 7), bounds[0], bounds[1], kind)
            out.add("randint", f"randint_{dtype}_{label}", {"dtype": dtype, "shape": [3, 7], "low": low, "high": high}, source, [tensor(value)])
    for n in (0, 1, 2, 10, 100, 3000):
        value = jax.random.permutation(key, n).astype(np.int32)
        out.add("permutation", f"permutation_{n}", {"n": n}, source, [tensor(value)])
    for label, shape, axis in [("vector", (9,), 0), ("rows", (5, 3), 0), ("columns", (2, 6), -1)]:
        x = draw(f"shuffle_{label}", shape)
        out.add("shuffle", f"shuffle_{label}", {"axis": axis}, [*source, tensor(x)], [tensor(jax.random.permutation(key, x, axis % len(shape)))])
    p = np.array([0.1, 0, 0.4, 0.2, 0.05, 0.25], np.float32)
    for label, n, shape, replace, weights in [
        ("replace", 10, (4, 5), True, None), ("different", 10, (2, 4), False, None), ("all", 6, (6,), False, None),
        ("weighted", 6, (40,), True, p), ("weighted_different", 6, (3,), False, p), ("weighted_by_counts", 6, (30,), True, p * 20), ("scalar", 3, (), True, None), ("nothing", 3, (0, 2), True, None),
    ]:  # fmt: skip
        value = jax.random.choice(key, n, shape, replace, weights).astype(np.int32)
        inputs = source if weights is None else [*source, tensor(weights)]
        out.add("choice", f"choice_{label}", {"n": n, "shape": list(shape), "replace": replace}, inputs, [tensor(value)])
