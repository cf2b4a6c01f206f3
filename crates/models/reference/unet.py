"""A UNet for diffusion, as diffusers writes it."""

import sys
from pathlib import Path

import diffusers
import torch

from common import FOLDER, compare, expect, randomize


def write():
    torch.manual_seed(0)
    model = diffusers.UNet2DModel(
        sample_size=8,
        in_channels=1,
        out_channels=2,
        layers_per_block=1,
        block_out_channels=(4, 8),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=4,
        norm_num_groups=2,
    )
    model = randomize(model.eval())
    folder = FOLDER / "unet"
    model.save_pretrained(folder)
    x, timesteps = torch.rand(2, 1, 8, 8) - 0.5, torch.tensor([3, 700])
    expect(folder, sample=x, timesteps=timesteps.int(), prediction=model(x, timesteps).sample)


if __name__ == "__main__":
    write()
