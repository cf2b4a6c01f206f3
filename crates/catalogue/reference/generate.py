"""Writes the reference values of this folder with JAX: the results of each operation and its derivative. Each family of
operations has a script, which writes the JSON file of the same name.

The tests do not run this. They read the JSON files, which are committed and contain the versions that made them. To write
all or some families again:

    pip install jax torch && python generate.py [FAMILY ...]

Another version of JAX changes the last digits of other cases too. With `--new`, only cases that the file does not have are
written, with the version that made them. `arrange` and `interpolation` need torch.
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
    for family in [name for name in sys.argv[1:] if name != "--new"] or FAMILIES:
        getattr(importlib.import_module(family), family)()
