"""Writes promotion.txt: the common dtypes of pairs of dtypes in JAX 0.12.0.1 with x64. Each line has the name of a dtype, then
its common dtype with each dtype, in the order of the lines. The tests do not run this.

    pip install jax && python promotion.py
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp

sys.path.insert(0, str(Path(__file__).parents[3] / "catalogue/reference"))
from common import DTYPES

ORDER = ["f32", "bf16", "f16", "f64", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool", "c64", "c128"]

if __name__ == "__main__":
    numpy_names = {ours: name for name, ours in DTYPES.items()}
    with jax.enable_x64(True):
        meet = lambda a, b: DTYPES[jnp.promote_types(numpy_names[a], numpy_names[b]).name]
        lines = [" ".join([a] + [meet(a, b) for b in ORDER]) for a in ORDER]
    (Path(__file__).parent / "promotion.txt").write_text("\n".join(lines) + "\n")
