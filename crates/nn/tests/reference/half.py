"""Attention and gradients in 16 bits, with PyTorch. `generate.py` runs it.

The inputs are formulas, which the test has too: element i of input n is amplitude * sin(0.7 * i + n), rounded to f16."""

import json
import math

import torch
import torch.nn.functional as F

from common import FOLDER, MADE_WITH


def wave(n, shape, amplitude):
    count = math.prod(shape)
    values = [amplitude * math.sin(0.7 * i + n) for i in range(count)]
    return torch.tensor(values, dtype=torch.float64).reshape(shape).half().requires_grad_()


def numbers(t):
    return [float(v) for v in t.detach().float().flatten().tolist()]


def attention(name, q_shape, k_shape, amplitude, **how):
    q, k, v = wave(0, q_shape, amplitude), wave(1, k_shape, amplitude), wave(2, k_shape, 1.0)
    largest = (q.detach().double() @ k.detach().double().repeat_interleave(q_shape[-3] // k_shape[-3], -3).transpose(-2, -1)).abs().max()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        y = F.scaled_dot_product_attention(q, k, v, **how)
    y.sum().backward()
    return {
        "name": name, "q": q_shape, "k": k_shape, "amplitude": amplitude, "scale": how.get("scale"), "grouped": "enable_gqa" in how,
        "largest_product": float(largest), "output": numbers(y), "v_gradient": numbers(v.grad),
    }  # fmt: skip


def half():
    cases = [
        attention("overflow", (1, 2, 4, 64), (1, 2, 4, 64), 60.0),
        attention("scale", (1, 2, 4, 64), (1, 2, 4, 64), 60.0, scale=0.01),
        attention("grouped", (1, 4, 4, 64), (1, 2, 4, 64), 60.0, enable_gqa=True),
        attention("small", (1, 2, 4, 64), (1, 2, 4, 64), 1.0),
    ]
    # The derivative of a broadcast: a sum of 200,000 times 0.001.
    b = torch.ones(1, dtype=torch.float16, requires_grad=True)
    (b.expand(200_000) * torch.tensor(0.001, dtype=torch.float16)).float().sum().backward()
    # 100,000 tied elements share the gradient.
    x = torch.zeros(100_000, dtype=torch.float16, requires_grad=True)
    x.amax().backward()
    values = {"made_with": MADE_WITH, "attention": cases, "broadcast": float(b.grad), "ties": float(x.grad[0])}
    (FOLDER / "half.json").write_text(json.dumps(values, separators=(",", ":"), allow_nan=False) + "\n")


if __name__ == "__main__":
    half()
