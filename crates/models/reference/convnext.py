"""A ConvNeXt, as transformers writes it."""

import sys
from pathlib import Path

import torch
import transformers

from common import FOLDER, compare, expect, randomize


def write():
    torch.manual_seed(0)
    config = transformers.ConvNextConfig(num_channels=1, patch_size=2, hidden_sizes=[4, 6, 8, 10], depths=[1, 2, 1, 1], num_labels=5, layer_norm_eps=1e-3, layer_scale_init_value=0.5)
    model = randomize(transformers.ConvNextForImageClassification(config).eval())
    folder = FOLDER / "convnext"
    model.save_pretrained(folder)
    x = torch.rand(2, 1, 32, 32) - 0.5
    expect(folder, pixel_values=x, logits=model(x).logits)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        folder = Path(sys.argv[1])
        model = transformers.ConvNextForImageClassification.from_pretrained(folder)
        compare(folder, lambda pixel_values: model(pixel_values).logits)
    write()
