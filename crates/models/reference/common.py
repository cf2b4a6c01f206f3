"""What the scripts of this folder share. Each writes the folder of a tiny model with random weights, as the Python library
writes it, and beside it `expected.safetensors`: inputs, and what the model makes of them there.

    pip install torch==2.15.0 torchvision==0.29.2 timm==1.0.31 transformers==5.23.0 diffusers==0.42.1
    python resnet.py

With the name of a folder that Fulmen saved, a script loads it and compares what it gives with `expected.safetensors`.
"""

import inspect
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

FOLDER = Path(__file__).parent


def randomize(model):
    """Numbers that show what is swapped, also in what would begin with zeros or ones."""
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if value.is_floating_point() and value.dim() < 2:
                value.copy_(value.clone() + 0.2 * torch.rand_like(value))
    return model


def expect(folder, **tensors):
    """Writes what is expected."""
    tensors = {name: value.detach().contiguous() for name, value in tensors.items()}
    save_file(tensors, folder / "expected.safetensors")
    print({path.name: path.stat().st_size for path in sorted(folder.iterdir())})


def compare(folder, model):
    """Whether a model gives what is expected, and how far it is off."""
    values = load_file(folder / "expected.safetensors")
    inputs = {name: values[name] for name in inspect.signature(model).parameters}
    expected = values["prediction" if "prediction" in values else "logits"]
    with torch.no_grad():
        found = model(**inputs)
    off = ((found - expected).abs().max() / expected.abs().max()).item()
    print(f"{folder.name}: {off:.1e} off")
    sys.exit(off > 1e-4)
