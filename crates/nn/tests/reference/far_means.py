"""Normalizations of inputs whose mean is many standard deviations away from 0, with PyTorch in f64. `generate.py` runs
it."""

from unittest import mock

import torch
from torch import nn

from common import DTYPES, draw, rng, tensor, write

SHAPES = {"batch_norm1d": (8, 3, 6), "batch_norm2d": (8, 3, 2, 3), "batch_norm3d": (8, 3, 1, 2, 3)}


def operations(channels):
    """The name of each operation, with what computes it."""
    batch = {op: getattr(nn, f"BatchNorm{op[-2]}d")(channels) for op in SHAPES}
    return batch | {
        "conditional_batch_norm2d": nn.BatchNorm2d(channels),
        "untracked_batch_norm2d": nn.BatchNorm2d(channels, track_running_stats=False),
        "instance_norm2d": nn.InstanceNorm2d(channels),
        "group_norm": nn.GroupNorm(1, channels),
        "layer_norm": nn.LayerNorm(6),
        "rms_norm": nn.RMSNorm(6),
        "var": lambda x: x.var(1, correction=0),
        "std": lambda x: x.std(1, correction=0),
    }


@mock.patch.dict(DTYPES, {torch.float64: "f32"})
def far_means():
    """For each operation and each distance of the mean, in standard deviations: the output, the gradient of the input
    and the running statistics."""
    cases = []
    for ratio, dtype in [(100, "f32"), (1000, "f32"), (10_000, "f32"), (50, "bf16")]:
        for op, f in operations(3).items():
            name = f"{op}_{ratio}_{dtype}"
            shape = SHAPES.get(op, (8, 6) if op in ("layer_norm", "rms_norm", "var", "std") else (8, 3, 2, 3))
            # The input is exact in its dtype, so all sides normalize the same numbers.
            x = torch.tensor(rng(name).normal(ratio, 1, shape) * 3).to(torch.bfloat16 if dtype == "bf16" else torch.float32)
            x = x.double().requires_grad_()
            output = f.double()(x) if isinstance(f, nn.Module) else f(x)
            cotangent = draw(name + "/cotangent", output.shape, digits=2)
            output.backward(cotangent.double())
            buffers = dict(f.named_buffers()) if isinstance(f, nn.Module) else {}
            cases.append({
                "op": op, "name": name, "ratio": ratio, "dtype": dtype, "inputs": [tensor(x)], "outputs": [tensor(output)],
                "cotangent": tensor(cotangent), "gradients": [tensor(x.grad)],
                "buffers": {key: tensor(value) for key, value in buffers.items() if key != "num_batches_tracked"},
            })  # fmt: skip
    write("far_means", cases)
