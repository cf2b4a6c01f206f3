"""Writes the reference values of this folder with JAX: what each operation gives, and its derivative. A script a family
of operations, which writes the JSON file of its name.

Not run by the tests: they read the files that this wrote, which are committed and say with which versions they were
made. To write them again, all or some families:

    pip install jax torch && python generate.py [FAMILY ...]
"""

import importlib
import sys

FAMILIES = [
    "elementwise",
    "arithmetic",
    "transcendental",
    "bitwise",
    "complex_numbers",
    "fft",
    "linalg",
    "reduce",
    "shape",
    "arrange",
    "gather",
    "scatter",
    "dot",
    "convolution",
    "pooling",
    "interpolation",
    "softmax",
    "cumulative",
    "sort",
    "einsum",
    "sequence",
    "random_numbers",
]

if __name__ == "__main__":
    for family in sys.argv[1:] or FAMILIES:
        getattr(importlib.import_module(family), family)()
