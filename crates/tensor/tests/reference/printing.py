"""Writes printing.json: arrays as NumPy prints them. The tests do not run this.

    pip install numpy && python printing.py
"""

import json
from pathlib import Path

import numpy as np

NAN, INF = float("nan"), float("inf")


def arrays():
    generator = np.random.default_rng(0)
    for name in ["f32", "f64", "f16"]:
        dtype = {"f32": np.float32, "f64": np.float64, "f16": np.float16}[name]
        make = lambda values: np.array(values, dtype)
        yield name, make([1, -0.5, 2.25, 100])
        yield name, make([[0.1, 0.2], [1 / 3, 2 / 3]])
        yield name, make([1e-5, 1, 3])
        yield name, make([NAN, 1, -INF, INF, 1e-3])
        yield name, make([NAN, INF])
        yield name, make([0, -0.0])
        yield name, make([[[1, 2], [3, 4]], [[5, 6], [7, 8.5]]])
        yield name, generator.normal(size=(4, 12)).astype(dtype)
        yield name, generator.normal(size=(40, 30)).astype(dtype)
        yield name, (generator.normal(size=(7, 3)) * 1e-3).astype(dtype)
        yield name, make(1.5)
        yield name, make(0.1)
        yield name, make([])
    for value in [1e16, 1e15, 123456.789, 1e-4, 9.9e-5, NAN, -INF, 0]:
        yield "f32", np.array(value, np.float32)
        yield "f64", np.array(value, np.float64)
    yield "f32", np.array([1e8, 1], np.float32)
    yield "f32", np.array([1e-4, 1e-2], np.float32)
    yield "f32", np.array([0.999999999, 0.123456789123], np.float64).astype(np.float32)
    yield "f64", np.array([0.999999999, 0.123456789123])
    yield "f64", np.array([1e300, 1e-300, -INF])
    yield "f64", np.array([-1e-9, 0.001])
    yield "f64", np.arange(1001.0)
    yield "f64", np.arange(1000.0)
    for name in ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]:
        ours = name.replace("uint", "u").replace("int", "i")
        top = np.iinfo(name).max
        yield ours, np.array([[0, top], [np.iinfo(name).min, 7]], name)
        yield ours, np.array(3, name)
    yield "i32", np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    yield "i32", np.arange(100, dtype=np.int32)
    yield "i32", np.arange(4000, dtype=np.int32).reshape(10, 20, 20)
    yield "i32", np.zeros((0, 3), np.int32)
    yield "i32", np.zeros((2, 0), np.int32)
    yield "bool", np.array([[True, False], [False, False]])
    yield "bool", np.array(True)
    yield "bool", np.ones(3, bool)
    for name, dtype in [("c64", np.complex64), ("c128", np.complex128)]:
        yield name, np.array([1 + 2j, -0.5 - 1e-3j, 3], dtype)
        yield name, np.array([[NAN + 1j, 1 - INF * 1j]], dtype)
        yield name, np.array([1e-8 + 1e8j, 1], dtype)
        yield name, np.array(1 + 2j, dtype)
        yield name, np.array(2.5j, dtype)
        yield name, np.array(-1.5 - 0.1j, dtype)


def case(name, array):
    return {"dtype": name, "shape": array.shape, "bytes": array.tobytes().hex(), "text": str(array)}


if __name__ == "__main__":
    cases = [case(*pair) for pair in arrays()]
    text = "[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n"
    (Path(__file__).parent / "printing.json").write_text(text)
