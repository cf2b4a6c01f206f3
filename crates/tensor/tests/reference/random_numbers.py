"""Random numbers, with JAX. `generate.py` runs it."""

import jax
import numpy as np

from common import draw, Family, number, tensor


def random_numbers():
    """Threefry-2x32 in its partitionable form. Element i (row-major, 64-bit) of a draw hashes the two words of i, high
    word first, under the key; 32 random bits are the xor of both result words. fold_in hashes (0, data) and the result
    words are the new key. A uniform f32 takes the upper 23 bits as the mantissa of a number in [1, 2), less 1; a normal
    one is sqrt(2) * erf_inv of a uniform one over [nextafter(-1, 0), 1)."""
    assert jax.config.jax_threefry_partitionable
    out = Family("random_numbers")
    data = jax.random.key_data
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
    with jax.enable_x64(True):  # without it JAX cuts a seed to 32 bits
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
    # Enough draws that the tails, where erf_inv takes its other branch (|x| > 0.9966), are reached.
    out.add("normal", "normal_long", {"shape": [3000]}, [tensor(data(keys["key_0"]))], [tensor(jax.random.normal(keys["key_0"], (3000,)))])
    out.write()
