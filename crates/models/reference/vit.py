"""A Vision Transformer, as transformers writes it."""

import sys
from pathlib import Path

import torch
import transformers

from common import FOLDER, compare, expect, randomize


def write():
    torch.manual_seed(0)
    config = transformers.ViTConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24, image_size=12, patch_size=4, num_channels=3, num_labels=5, layer_norm_eps=1e-3)
    model = randomize(transformers.ViTForImageClassification(config).eval())
    folder = FOLDER / "vit"
    model.save_pretrained(folder)
    x = torch.rand(2, 3, 12, 12) - 0.5
    large = torch.rand(1, 3, 20, 16) - 0.5
    expect(folder, pixel_values=x, logits=model(x).logits, large=large, large_logits=model(large, interpolate_pos_encoding=True).logits)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        folder = Path(sys.argv[1])
        model = transformers.ViTForImageClassification.from_pretrained(folder)
        compare(folder, lambda pixel_values: model(pixel_values).logits)
    write()
