"""Training of complex and of f64 parameters, by PyTorch: `python3 wide_gradients.py`, with torch.

A step minimizes the mean over four samples of |Σ z x − (1 + 2i)|², or of (Σ p x − 1)². wide_gradients.json holds the parameter
after each case's steps. Data are computed from integers, so that a test has the same values, bit for bit.
"""

import json
from pathlib import Path

import torch

HERE = Path(__file__).parent
SAMPLES, SIZE, STEPS = 4, 3, 8

torch.set_default_dtype(torch.float64)


def numbers(start, *shape):
    """Numbers from -1 to 1, exact in f32."""
    k = torch.arange(start, start + torch.Size(shape).numel(), dtype=torch.int64)
    return (((k * 2654435761) % 2**32 // 256).double() / 2**23 - 1).reshape(shape)


def train(parameter, x, target, make, max_norm=None):
    parameter = torch.nn.Parameter(parameter.clone())
    optimizer = make([parameter])
    for _ in range(STEPS):
        optimizer.zero_grad()
        difference = (x * parameter).sum(1) - target
        (difference * difference.conj()).real.mean().backward()
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_([parameter], max_norm)
        optimizer.step()
    value = parameter.detach()
    if value.is_complex():
        return {"re": value.real.tolist(), "im": value.imag.tolist()}
    return {"re": value.tolist()}


def main():
    optim = torch.optim
    z = torch.complex(numbers(1, SIZE), numbers(11, SIZE))
    x = torch.complex(numbers(21, SAMPLES, SIZE), numbers(41, SAMPLES, SIZE))
    cases = {
        "sgd": lambda p: optim.SGD(p, 0.1, momentum=0.5, weight_decay=0.01),
        "adam": lambda p: optim.Adam(p, 0.1),
        "adamw": lambda p: optim.AdamW(p, 0.1, weight_decay=0.1),
        "rmsprop": lambda p: optim.RMSprop(p, 0.01, momentum=0.5),
        "adagrad": lambda p: optim.Adagrad(p, 0.1, initial_accumulator_value=0.5),
        "adadelta": lambda p: optim.Adadelta(p, 1.0),
        "nadam": lambda p: optim.NAdam(p, 0.1),
        "radam": lambda p: optim.RAdam(p, 0.1),
    }
    results = {name: train(z, x, 1 + 2j, make) for name, make in cases.items()}
    results["clipped"] = train(z, x, 1 + 2j, cases["sgd"], 0.5)
    results["f64"] = train(z.real, x.real, 1, lambda p: optim.SGD(p, 0.5), 0.25)
    (HERE / "wide_gradients.json").write_text(json.dumps(results, indent=1) + "\n")


main()
