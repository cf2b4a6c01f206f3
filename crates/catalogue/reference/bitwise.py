"""Bitwise operations of integers, logical operations of booleans, and bitcasts, with JAX. `generate.py` runs it."""

import jax.numpy as jnp
import numpy as np
from jax import lax

from common import BF16, BOOL, broadcasting, F32, F64, Family, I32, I64, rng, U8

DTYPES = [np.int8, np.int16, I32, I64, U8, np.uint16, np.uint32, np.uint64]


def bits(name, shape, dtype):
    info = np.iinfo(dtype)
    values = rng(name).integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    return values


def bitwise():
    out = Family("bitwise")
    logic = {"and": lax.bitwise_and, "or": lax.bitwise_or, "xor": lax.bitwise_xor}
    shifts = {
        "shift_left": lax.shift_left, "shift_right_logical": lax.shift_right_logical,
        "shift_right_arithmetic": lax.shift_right_arithmetic,
    }  # fmt: skip
    unary = {"not": lax.bitwise_not, "population_count": lax.population_count, "count_leading_zeros": lax.clz}
    for dtype in DTYPES:
        kind = np.dtype(dtype).name
        x64 = np.dtype(dtype).itemsize == 8
        for op, f in logic.items():
            name = f"{op}_{kind}"
            out.case(op, name, broadcasting(f), bits(name + "/a", (3, 1), dtype), bits(name + "/b", (4,), dtype), x64=x64)
        for op, f in shifts.items():
            name, width = f"{op}_{kind}", 8 * np.dtype(dtype).itemsize
            places = np.array([0, 1, width // 2, width - 1, width], dtype)
            out.case(op, name, broadcasting(f), bits(name, (3, 1), dtype), places, x64=x64)
        for op, f in unary.items():
            name = f"{op}_{kind}"
            info = np.iinfo(dtype)
            values = np.concatenate([bits(name, (5,), dtype), np.array([0, 1, info.max, info.min], dtype)])
            out.case(op, name, f, values, x64=x64)
    truths = np.array([[False], [True]]), np.array([False, True])
    for op, f in logic.items():
        out.case(op, f"{op}_bool", broadcasting(f), *truths)
        out.case(op, f"{op}_bool_empty", broadcasting(f), np.zeros((0, 2), BOOL), np.zeros((), BOOL))
        out.case(op, f"{op}_scalar", f, np.array(12, I32), np.array(10, I32))
    out.case("not", "not_bool", lax.bitwise_not, truths[1])
    out.case("population_count", "population_count_empty", lax.population_count, np.zeros((2, 0), I32))
    out.case("shift_left", "shift_left_one", lax.shift_left, np.ones((1, 1), I32), np.full((1, 1), 3, I32))

    for label, value, to in [
        ("f32_i32", np.array([1.5, -0.0, 3e38], F32), I32), ("i32_f32", np.array([[1065353216], [0]], I32), F32),
        ("bf16_u16", np.array([1.5, -2, 0], F32).astype(BF16), np.uint16), ("f64_u64", np.array([1.5, -2.0]), np.uint64),
        ("u32_u8", bits("u32_u8", (3,), np.uint32), U8), ("u8_u32", bits("u8_u32", (2, 4), U8), np.uint32),
        ("i64_i16", bits("i64_i16", (2, 1), I64), np.int16), ("u16_i64", bits("u16_i64", (2, 4), np.uint16), I64),
        ("f32_bf16_scalar", np.array(1.5, F32), BF16), ("empty", np.zeros((0, 3), F32), np.uint16), ("i8_u8", bits("i8_u8", (4,), np.int8), U8),
    ]:  # fmt: skip
        kind = {"uint16": "u16", "int32": "i32", "float32": "f32", "uint64": "u64", "uint8": "u8", "uint32": "u32"}
        kind |= {"int16": "i16", "int64": "i64", "bfloat16": "bf16"}
        f = lambda x: lax.bitcast_convert_type(x, to)
        out.case("bitcast", f"bitcast_{label}", f, value, x64=True, gradient=False, to=kind[np.dtype(to).name])
    out.write()
