"""Convolutions, with JAX. `generate.py` runs it."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from common import BF16, draw, F32, Family


def convolution():
    out = Family("convolution")
    numbers = {1: ("NCH", "OIH", "NCH"), 2: ("NCHW", "OIHW", "NCHW"), 3: ("NCDHW", "OIDHW", "NCDHW")}

    def case(label, x, k, stride=None, padding=None, dilation=None, groups=1):
        n = len(x) - 2
        how = {"stride": stride or [1] * n, "padding": padding or [[0, 0]] * n, "dilation": dilation or [1] * n, "groups": groups}
        run = lambda x, k: lax.conv_general_dilated(
            x, k, how["stride"], how["padding"], rhs_dilation=how["dilation"], feature_group_count=groups, dimension_numbers=numbers[n]
        )
        op = f"conv{n}d"
        out.case(op, f"{op}_{label}", run, draw(label + "/x", x, digits=2), draw(label + "/k", k, digits=2), **how)

    case("plain", (2, 3, 5, 6), (4, 3, 3, 3))
    case("one_by_one", (2, 3, 4, 3), (2, 3, 1, 1))
    case("same", (1, 2, 5, 5), (3, 2, 3, 3), padding=[[1, 1], [1, 1]])
    case("stride", (1, 2, 7, 8), (2, 2, 3, 3), stride=[2, 2])
    case("stride_uneven", (1, 2, 8, 9), (2, 2, 3, 2), stride=[2, 3], padding=[[1, 1], [0, 0]])
    case("stride_over_kernel", (1, 1, 7, 7), (2, 1, 2, 2), stride=[3, 3])
    case("padding_uneven", (1, 2, 4, 4), (2, 2, 3, 3), padding=[[0, 1], [2, 1]])
    case("padding_negative", (1, 2, 6, 6), (2, 2, 3, 3), padding=[[-1, 0], [0, -1]])
    case("padding_wide", (1, 1, 3, 3), (1, 1, 2, 2), padding=[[3, 3], [2, 4]])
    case("dilation", (1, 2, 7, 7), (2, 2, 3, 3), dilation=[2, 2])
    case("dilation_uneven", (1, 1, 6, 8), (2, 1, 2, 3), dilation=[3, 2], padding=[[1, 1], [2, 2]], stride=[1, 2])
    case("groups", (2, 4, 5, 5), (6, 2, 3, 3), groups=2, padding=[[1, 1], [1, 1]])
    case("depthwise", (1, 3, 6, 6), (3, 1, 3, 3), groups=3, stride=[2, 2], padding=[[1, 1], [1, 1]])
    case("depthwise_twice", (1, 3, 5, 5), (6, 1, 3, 3), groups=3)
    case("groups_dilation", (1, 4, 7, 7), (4, 2, 3, 3), groups=2, dilation=[2, 2], stride=[2, 1], padding=[[2, 2], [2, 2]])
    case("kernel_is_input", (2, 2, 3, 4), (3, 2, 3, 4))
    case("one_pixel", (1, 1, 1, 1), (1, 1, 1, 1))
    case("stem", (1, 3, 9, 9), (4, 3, 7, 7), stride=[2, 2], padding=[[3, 3], [3, 3]])
    case("plain", (2, 3, 8), (4, 3, 3), stride=[2], padding=[[1, 1]])
    case("causal", (1, 2, 7), (2, 2, 3), padding=[[4, 0]], dilation=[2])
    case("plain", (1, 2, 4, 4, 3), (2, 2, 2, 3, 2), stride=[2, 1, 1], padding=[[0, 0], [1, 1], [0, 1]])
    for label, x, k, dilation in [
        ("odd", (1, 2, 5, 4), (2, 2, 3, 3), [1, 1]), ("even", (1, 1, 5, 6), (2, 1, 4, 2), [1, 1]), ("dilated", (2, 1, 7), (1, 1, 4), [3]),
        ("wide", (1, 1, 2), (1, 1, 5), [1]),
    ]:  # fmt: skip
        n = len(x) - 2
        run = lambda x, k, d=dilation, n=n: lax.conv_general_dilated(x, k, [1] * n, "SAME", rhs_dilation=d, dimension_numbers=numbers[n])
        label = f"conv_same_{label}"
        out.case("conv_same", label, run, draw(label + "/x", x, digits=2), draw(label + "/k", k, digits=2), dilation=dilation)

    def transposed(label, x, k, stride=None, padding=None, extra=None, dilation=None, groups=1, dtype=F32):
        """The definition of PyTorch: the derivative of a convolution with respect to its input, with the output padding."""
        n = len(x) - 2
        s, d, e = stride or [1] * n, dilation or [1] * n, extra or [0] * n
        p = padding or [[0, 0]] * n
        sizes = [(x[i + 2] - 1) * s[i] - sum(p[i]) + d[i] * (k[i + 2] - 1) + e[i] + 1 for i in range(n)]
        shape = (x[0], k[1] * groups, *sizes)

        def run(x, k):
            # With more output padding than the stride, the convolution has a larger result than x.
            cut = (slice(None), slice(None), *(slice(size) for size in x.shape[2:]))
            forward = lambda y: lax.conv_general_dilated(y, k, s, p, rhs_dilation=d, feature_group_count=groups, dimension_numbers=numbers[n])[cut]
            return jax.vjp(forward, jnp.zeros(shape, x.dtype))[1](x)[0]

        label = f"conv_transpose_{label}"
        how = {"stride": s, "padding": p, "output_padding": e, "dilation": d, "groups": groups}
        out.case("conv_transpose", label, run, *(draw(label + of, t, digits=2).astype(dtype) for of, t in (("/x", x), ("/k", k))), **how)

    transposed("plain", (2, 3, 4, 3), (3, 2, 3, 3))
    transposed("stride", (1, 2, 3, 4), (2, 3, 4, 4), stride=[2, 2], padding=[[1, 1], [1, 1]])
    transposed("uneven", (1, 2, 3, 4), (2, 1, 3, 2), stride=[2, 3], padding=[[1, 1], [0, 0]], extra=[1, 2])
    transposed("sides", (1, 1, 4, 4), (1, 2, 3, 3), stride=[2, 2], padding=[[0, 1], [1, 0]])
    transposed("dilation", (1, 2, 4, 3), (2, 2, 2, 3), dilation=[2, 3], padding=[[1, 1], [2, 2]], extra=[1, 2])
    transposed("groups", (2, 4, 3, 3), (4, 3, 3, 3), groups=2, stride=[2, 2], padding=[[1, 1], [1, 1]], extra=[1, 1])
    transposed("depthwise", (1, 3, 3, 3), (3, 1, 2, 2), groups=3, stride=[2, 2])
    transposed("cropped", (1, 1, 5, 5), (1, 1, 2, 2), padding=[[2, 2], [2, 1]])
    transposed("one_axis", (2, 3, 5), (3, 2, 4), stride=[3], padding=[[1, 1]], extra=[2])
    transposed("three_axes", (1, 2, 2, 3, 2), (2, 2, 2, 2, 3), stride=[2, 1, 2], padding=[[0, 0], [1, 1], [1, 1]])
    transposed("bf16", (1, 2, 3), (2, 2, 3), stride=[2], dtype=BF16)
    out.write()
