"""A linear layer whose weight is int8 with a scale for each output feature, and a low-rank update: `int8.safetensors` has the weight,
its integers and scales, and the results and gradients of the layer with the weights that the integers mean, in f64.

    pip install torch==2.15.0 && python int8.py
"""

from pathlib import Path

import torch
from safetensors.torch import save_file

OUT, IN, RANK, FACTOR = 7, 12, 3, 1.5

generator = torch.Generator().manual_seed(0)
draw = lambda *shape: torch.randn(*shape, generator=generator)

weight = draw(OUT, IN)
# The largest is 127, so the scale is 1: halves, which are rounded to even.
weight[1] = torch.tensor([127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, -126.5, 0.49999997, -0.50000006, 3.0])
weight[2] = 0
weight[3] *= 1e-30
weight[4] *= 1e30
# So small that its scale is 0.
weight[5] = torch.tensor([1e-45] + [0.0] * (IN - 1))

largest = weight.abs().amax(1)
scale = largest / 127
scale = torch.where(scale > 0, scale, torch.ones_like(scale))
integers = (weight / scale[:, None]).round().clamp(-127, 127)

exact = {"x": draw(2, 5, IN), "a": draw(RANK, IN), "b": draw(OUT, RANK), "cotangent": draw(2, 5, OUT)}
# The rows of usual sizes.
rows = torch.tensor([0, 1, 2, 6])
x, a, b = (exact[name].double().requires_grad_() for name in ["x", "a", "b"])
dequantized = (integers.double() * scale.double()[:, None])[rows]
y = x @ (dequantized + FACTOR * b[rows] @ a).T
gradients = torch.autograd.grad(y, [x, a, b], exact["cotangent"].double()[..., rows])
values = exact | {"weight": weight, "scale": scale, "integers": integers.to(torch.int8), "y": y.detach()}
values |= {f"gradient.{name}": gradient for name, gradient in zip(["x", "a", "b"], gradients)}
save_file({name: value.contiguous() for name, value in values.items()}, Path(__file__).parent / "int8.safetensors")
