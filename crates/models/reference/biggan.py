"""A BigGAN for images of 32 x 32, as its paper describes it, with PyTorch's own spectral normalization: two state dicts."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import spectral_norm

from common import FOLDER, expect, randomize

CH, CLASSES, DIM_Z, SHARED, EPS = 2, 3, 8, 4, 1e-6


def conv(inputs, outputs, size, bias=True):
    return spectral_norm(nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=bias), eps=EPS)


class Norm(nn.Module):
    def __init__(self, condition, channels):
        super().__init__()
        self.gain = spectral_norm(nn.Linear(condition, channels, bias=False), eps=EPS)
        self.bias = spectral_norm(nn.Linear(condition, channels, bias=False), eps=EPS)
        self.register_buffer("running_mean", torch.rand(channels))
        self.register_buffer("running_var", 0.5 + torch.rand(channels))
        self.register_buffer("num_batches_tracked", torch.tensor(7))

    def forward(self, x, y):
        x = F.batch_norm(x, self.running_mean, self.running_var, training=self.training, eps=1e-5)
        return x * (1 + self.gain(y))[:, :, None, None] + self.bias(y)[:, :, None, None]


class GBlock(nn.Module):
    def __init__(self, inputs, outputs, condition):
        super().__init__()
        self.bn1, self.bn2 = Norm(condition, inputs), Norm(condition, outputs)
        self.conv1, self.conv2, self.conv_sc = conv(inputs, outputs, 3), conv(outputs, outputs, 3), conv(inputs, outputs, 1)

    def forward(self, x, y):
        h = F.interpolate(F.relu(self.bn1(x, y)), scale_factor=2)
        h = self.conv2(F.relu(self.bn2(self.conv1(h), y)))
        return h + self.conv_sc(F.interpolate(x, scale_factor=2))


class DBlock(nn.Module):
    def __init__(self, inputs, outputs, first, down):
        super().__init__()
        self.first, self.down = first, down
        self.conv1, self.conv2 = conv(inputs, outputs, 3), conv(outputs, outputs, 3)
        self.conv_sc = conv(inputs, outputs, 1) if inputs != outputs or down else None

    def forward(self, x, y=None):
        h = self.conv2(F.relu(self.conv1(x if self.first else F.relu(x))))
        halve = lambda x: F.avg_pool2d(x, 2) if self.down else x
        if self.first:
            x = self.conv_sc(halve(x))
        else:
            x = halve(self.conv_sc(x) if self.conv_sc else x)
        return halve(h) + x


class Attention(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.theta, self.phi = conv(channels, channels // 8, 1, False), conv(channels, channels // 8, 1, False)
        self.g, self.o = conv(channels, channels // 2, 1, False), conv(channels // 2, channels, 1, False)
        self.gamma = nn.Parameter(torch.tensor(0.0))

    def forward(self, x, y=None):
        theta, phi, g = self.theta(x), F.max_pool2d(self.phi(x), 2), F.max_pool2d(self.g(x), 2)
        weights = torch.softmax(torch.einsum("bchw,bcq->bhwq", theta, phi.flatten(2)), -1)
        return self.gamma * self.o(torch.einsum("bhwq,bcq->bchw", weights, g.flatten(2))) + x


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Embedding(CLASSES, SHARED)
        self.linear = spectral_norm(nn.Linear(DIM_Z // 4, 16 * 4 * CH), eps=EPS)
        self.blocks = nn.ModuleList(nn.ModuleList([GBlock(4 * CH, 4 * CH, SHARED + DIM_Z // 4)] + [Attention(4 * CH)] * (i == 1)) for i in range(3))
        self.output_layer = nn.ModuleList([nn.BatchNorm2d(4 * CH), conv(4 * CH, 3, 3)])

    def forward(self, z, classes):
        z, *rest = z.chunk(4, 1)
        x = self.linear(z).view(-1, 4 * CH, 4, 4)
        for layers, part in zip(self.blocks, rest):
            for layer in layers:
                x = layer(x, torch.cat([self.shared(classes), part], 1))
        return torch.tanh(self.output_layer[1](F.relu(self.output_layer[0](x))))


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.ModuleList([DBlock(4 * CH if i else 3, 4 * CH, i == 0, i < 2)] + [Attention(4 * CH)] * (i == 0)) for i in range(4))
        self.linear = spectral_norm(nn.Linear(4 * CH, 1), eps=EPS)
        self.embed = spectral_norm(nn.Embedding(CLASSES, 4 * CH), eps=EPS)

    def forward(self, x, classes):
        for layers in self.blocks:
            for layer in layers:
                x = layer(x)
        x = F.relu(x).sum((2, 3))
        return self.linear(x).squeeze(1) + (self.embed(classes) * x).sum(1)


if __name__ == "__main__":
    torch.manual_seed(0)
    folder = FOLDER / "biggan"
    folder.mkdir(exist_ok=True)
    generator, discriminator = Generator(), Discriminator()
    for model in (generator, discriminator):
        randomize(model)
        for _ in range(3):  # for the singular vectors to settle
            generator(torch.randn(4, DIM_Z), torch.arange(4) % CLASSES)
            discriminator(torch.randn(4, 3, 32, 32), torch.arange(4) % CLASSES)
    z, classes = torch.randn(2, DIM_Z), torch.tensor([2, 0])
    generator.eval(), discriminator.eval()
    for name, model in {"G": generator, "D": discriminator}.items():
        torch.save(model.state_dict(), folder / f"{name}.pth")
    images = generator(z, classes)
    logits = discriminator(images, classes)
    generator.train()  # a step of power iteration, and the statistics of the batch
    expect(folder, z=z, classes=classes.int(), pictures=images, logits=logits, train_pictures=generator(z, classes))
