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
        num_class_embeds=3,
        # The settings of the first published ones.
        downsample_padding=0,
        flip_sin_to_cos=False,
        freq_shift=1,
    )
    model = randomize(model.eval())
    folder = FOLDER / "unet"
    model.save_pretrained(folder)
    x, timesteps = torch.rand(2, 1, 8, 8) - 0.5, torch.tensor([3, 700])
    classes = torch.tensor([2, 0])
    others = {}
    for activation in ["relu", "gelu"]:
        same = diffusers.UNet2DModel.from_config(model.config, act_fn=activation).eval()
        same.load_state_dict(model.state_dict())
        others[activation] = same(x, timesteps, classes).sample
    expect(folder, **others, sample=x, timesteps=timesteps.int(), class_labels=classes.int(), prediction=model(x, timesteps, classes).sample)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        folder = Path(sys.argv[1])
        model = diffusers.UNet2DModel.from_pretrained(folder)
        compare(folder, lambda sample, timesteps, class_labels: model(sample, timesteps, class_labels).sample)
    write()
