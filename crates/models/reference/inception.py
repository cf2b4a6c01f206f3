"""Inception-v3: what torchvision's model and torch-fidelity's extractor of features give for weights that a formula
determines. With the name of a file, it also writes torchvision's state dict there, 109 MB.

    pip install torch==2.15.0 torchvision==0.29.2 torch-fidelity==0.4.0 safetensors
    python inception.py
"""

import sys
import tempfile

import numpy as np
import torch
from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3
from torch_fidelity.interpolate_compat_tensorflow import interpolate_bilinear_2d_like_tensorflow1x
from torchvision.models import Inception3

from common import FOLDER, expect


def numbers(start, *shape):
    """Numbers from -1 to 1: the SplitMix64 of each index."""
    z = np.arange(start, start + np.prod(shape), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return (z >> np.uint64(40)).astype(np.float64).reshape(shape) / (1 << 23) - 1


def fill(state):
    """All values, in the order of names, each from its own numbers."""
    start = 0
    for name in sorted(state):
        if name.endswith("num_batches_tracked"):
            continue
        shape = state[name].shape
        x = numbers(start, *shape)
        if len(shape) > 1:
            x *= np.sqrt(6 / np.prod(shape[1:]))
        elif name.endswith(("bn.weight", "running_var")):
            x = 1 + 0.2 * x
        else:
            x *= 0.2
        state[name].copy_(torch.tensor(x.astype(np.float32)))
        start += int(np.prod(shape))


if __name__ == "__main__":
    folder = FOLDER / "inception"
    folder.mkdir(exist_ok=True)
    model = Inception3(transform_input=True, init_weights=False, dropout=0.0)
    state = model.state_dict()
    lines = sorted(f"{name} {list(value.shape)}\n" for name, value in state.items())
    (folder / "names.txt").write_text("".join(lines))
    with torch.no_grad():
        fill(state)
        if len(sys.argv) > 1:
            torch.save(state, sys.argv[1])
        images = torch.tensor(numbers(0, 2, 3, 299, 299).astype(np.float32))
        logits = model.eval()(images)
        model.train()
        model.AuxLogits.eval()  # it would normalize two values
        train_logits, train_aux_logits = model(images)
        running_mean = model.state_dict()["Mixed_7c.branch_pool.bn.running_mean"]

        state = Inception3(num_classes=1008, aux_logits=False, init_weights=False).state_dict()
        fill(state)
        with tempfile.NamedTemporaryFile() as file:
            torch.save(state, file.name)
            layers = ["2048", "logits_unbiased", "logits"]
            extractor = FeatureExtractorInceptionV3("inception", layers, feature_extractor_weights_path=file.name)
        pixels = torch.tensor(np.floor((numbers(0, 1, 3, 40, 330) + 1) * 128).astype(np.uint8))
        features, unbiased_logits, fid_logits = extractor(pixels)
        resized = interpolate_bilinear_2d_like_tensorflow1x(pixels.float(), size=(299, 299), align_corners=False)
    expect(
        folder,
        logits=logits,
        train_logits=train_logits,
        train_aux_logits=train_aux_logits,
        running_mean=running_mean,
        fid_rows=(resized[:, :, 100:101] - 128) / 128,
        fid_features=features,
        fid_logits=fid_logits,
        fid_unbiased_logits=unbiased_logits,
    )
