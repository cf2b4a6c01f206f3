"""A DCGAN with the layers of PyTorch's example (`examples/dcgan`), saved as that saves them: two state dicts."""

import torch
from torch import nn

from common import FOLDER, expect, randomize

NZ, NGF, NDF, NC = 5, 2, 2, 1  # for images of 16 x 16


def generator():
    return nn.Sequential(
        nn.ConvTranspose2d(NZ, 2 * NGF, 4, 1, 0, bias=False),
        nn.BatchNorm2d(2 * NGF),
        nn.ReLU(),
        nn.ConvTranspose2d(2 * NGF, NGF, 4, 2, 1, bias=False),
        nn.BatchNorm2d(NGF),
        nn.ReLU(),
        nn.ConvTranspose2d(NGF, NC, 4, 2, 1, bias=False),
        nn.Tanh(),
    )


def discriminator():
    return nn.Sequential(
        nn.Conv2d(NC, NDF, 4, 2, 1, bias=False),
        nn.LeakyReLU(0.2),
        nn.Conv2d(NDF, 2 * NDF, 4, 2, 1, bias=False),
        nn.BatchNorm2d(2 * NDF),
        nn.LeakyReLU(0.2),
        nn.Conv2d(2 * NDF, 1, 4, 1, 0, bias=False),
    )


if __name__ == "__main__":
    torch.manual_seed(0)
    folder = FOLDER / "dcgan"
    folder.mkdir(exist_ok=True)
    models = {"netG": generator(), "netD": discriminator()}
    for name, main in models.items():
        torch.save(randomize(nn.ModuleDict({"main": main})).state_dict(), folder / f"{name}.pth")
    z = torch.randn(3, NZ)
    images = models["netG"](z[:, :, None, None])  # while training, as the example draws them too
    expect(folder, z=z, pictures=images, logits=models["netD"](images).flatten())
