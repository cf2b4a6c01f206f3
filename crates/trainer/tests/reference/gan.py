"""A GAN on the digits of examples/mnist, trained by a PyTorch loop: `python3 gan.py`, with torch and numpy.

The discriminator steps for each batch, and after it the generator for every second batch, beginning with the first. gan.json
holds the loss of each step, in f32 and in f64. Where the two agree, other implementations must agree with them. Weights,
noise and batches are computed from integers, so that a test has the same values, bit for bit.
"""

import gzip
import json
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

HERE = Path(__file__).parent
STEPS, BATCH, NOISE, HIDDEN, PIXELS = 50, 64, 16, 64, 784
RATE, BETAS = 2e-4, (0.5, 0.999)


def numbers(start, *shape):
    """Numbers from -1 to 1, exact in f32."""
    k = np.arange(start, start + int(np.prod(shape)), dtype=np.uint64)
    hashed = (k * np.uint64(2654435761)) % np.uint64(2**32) // np.uint64(256)
    return torch.tensor((hashed.astype(np.float64) / 2**23 - 1).reshape(shape), dtype=torch.float64)


def digits():
    with gzip.open(HERE / "../../../../examples/mnist/data/train-images-idx3-ubyte.gz") as file:
        file.read(16)
        return np.frombuffer(file.read(STEPS * BATCH * PIXELS), dtype=np.uint8).reshape(STEPS, BATCH, PIXELS)


def network(first, *sizes, last):
    layers = []
    for i, (inputs, outputs) in enumerate(zip(sizes, sizes[1:])):
        layer = nn.Linear(inputs, outputs)
        with torch.no_grad():
            layer.weight.copy_(numbers((first + 2 * i) * 1_000_003, outputs, inputs) / 8)
            layer.bias.copy_(numbers((first + 2 * i + 1) * 1_000_003, outputs) / 8)
        layers += [layer, nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers[:-1], last)


def train(dtype):
    torch.set_default_dtype(dtype)
    generator = network(0, NOISE, HIDDEN, PIXELS, last=nn.Tanh())
    discriminator = network(4, PIXELS, HIDDEN, 1, last=nn.Identity())
    of_generator = torch.optim.Adam(generator.parameters(), lr=RATE, betas=BETAS)
    of_discriminator = torch.optim.Adam(discriminator.parameters(), lr=RATE, betas=BETAS)
    yes, no = torch.ones(BATCH, 1), torch.zeros(BATCH, 1)
    losses = {"discriminator": [], "generator": []}
    for step, batch in enumerate(digits()):
        real = torch.tensor(batch).to(dtype) / 127.5 - 1
        noise = numbers(9_000_000_000 + step * BATCH * NOISE, BATCH, NOISE).to(dtype)

        fake = generator(noise).detach()
        loss = F.binary_cross_entropy_with_logits(discriminator(real), yes)
        loss = loss + F.binary_cross_entropy_with_logits(discriminator(fake), no)
        of_discriminator.zero_grad()
        loss.backward()
        of_discriminator.step()
        losses["discriminator"].append(loss.item())

        if step % 2 == 0:
            loss = F.binary_cross_entropy_with_logits(discriminator(generator(noise)), yes)
            of_generator.zero_grad()
            loss.backward()
            of_generator.step()
            losses["generator"].append(loss.item())
    return losses


single, double = train(torch.float32), train(torch.float64)
apart = max(abs(s / d - 1) for name in single for s, d in zip(single[name], double[name]))
print(f"f32 and f64 differ by at most {apart:.1e} of the loss")
assert apart < 1e-5
rounded = {name: [float(f"{loss:.9g}") for loss in losses] for name, losses in double.items()}
text = json.dumps({"made_with": {"torch": torch.__version__}} | rounded, separators=(",", ":"))
(HERE / "gan.json").write_text(text.replace(',"', ',\n"') + "\n")
