"""The PyTorch side of the interleaved benchmark: eager, compiled, on torch_xla, and Lightning's Trainer on torch_xla.

Its protocol is that of jax_peer.py: `block K` on the standard input runs K steps and answers with one line.

    python torch_peer.py --way torch --workload W1

The ways are torch, torch-compile, torch_xla and lightning. The last two use XLA's CPU device (`PJRT_DEVICE=CPU`); the
first two also run on a GPU, with `--accelerator cuda`. resnet50 and gpt2 compute in bf16, by autocast. Lightning only accepts a TPU as torch_xla's device; that check, and nothing else, is replaced.
"""

import argparse
import json
import os
import platform
import sys
import time
import warnings

WAYS = ("torch", "torch-compile", "torch_xla", "lightning")
options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
options.add_argument("--way", choices=WAYS, required=True)
options.add_argument("--workload", choices=["W1", "W2", "W3", "W4", "W5", "resnet50", "gpt2"], required=True)
options.add_argument("--accelerator", choices=["cpu", "cuda"], default="cpu")
options.add_argument("--devices", type=int, default=1)
CHOSEN = options.parse_args()
if CHOSEN.devices > 1:
    sys.exit(f"{CHOSEN.way} runs on one device only")
if CHOSEN.way == "lightning" and CHOSEN.workload == "W5":
    sys.exit("lightning has no W5 here: it steps two optimizers by hand")
ON_XLA = CHOSEN.way in ("torch_xla", "lightning")
if ON_XLA and CHOSEN.accelerator != "cpu":
    sys.exit(f"{CHOSEN.way} runs on the CPU only")
if ON_XLA:
    os.environ["PJRT_DEVICE"] = "CPU"
warnings.filterwarnings("ignore")

import numpy as np  # noqa: E402  (torch_xla reads the environment when it is imported)
import torch  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler  # noqa: E402

if ON_XLA:
    import torch_xla
    import torch_xla.core.xla_model as xm

WORDS, LENGTH = 4096, 128
GPT2_WORDS, GPT2_LENGTH = 50257, 1024


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.short = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.short(x))


def resnet18():
    layers, inputs = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()], 64
    for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [BasicBlock(inputs, outputs, stride), BasicBlock(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


class Bottleneck(nn.Module):
    def __init__(self, inputs, channels, stride):
        super().__init__()
        outputs = 4 * channels
        layers = []
        for size, last, n, step in ((1, inputs, channels, 1), (3, channels, channels, stride), (1, channels, outputs, 1)):
            layers += [nn.Conv2d(last, n, size, step, size // 2, bias=False), nn.BatchNorm2d(n), nn.ReLU()]
        self.layers, self.short = nn.Sequential(*layers[:-1]), nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        return F.relu(self.layers(x) + self.short(x))


class ResNet50(nn.Module):
    """On bytes, which become numbers from -1 to 1. Channels last."""

    def __init__(self):
        super().__init__()
        layers, inputs = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)], 64
        for stage, count in enumerate((3, 4, 6, 3)):
            for i in range(count):
                layers.append(Bottleneck(inputs, 64 << stage, 2 if stage and i == 0 else 1))
                inputs = 256 << stage
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))
        self.to(memory_format=torch.channels_last)

    def forward(self, x):
        return self.layers((x.float() / 127.5 - 1).contiguous(memory_format=torch.channels_last))


class GptBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.ln1, self.ln2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, n, width = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, n, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, n, width))
        return x + self.down(F.gelu(self.up(self.ln2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """With tied embeddings."""

    def __init__(self, words, length, width, heads, layers):
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks, self.ln = nn.Sequential(*(GptBlock(width, heads) for _ in range(layers))), nn.LayerNorm(width)

    def forward(self, words):
        x = self.ln(self.blocks(self.words(words) + self.positions))
        return x @ self.words.weight.t()


class Dcgan(nn.Module):
    """DCGAN at 32x32: both networks, each with an optimizer."""

    def __init__(self):
        super().__init__()
        layers = []
        for inputs, outputs, stride, padding in ((100, 256, 1, 0), (256, 128, 2, 1), (128, 64, 2, 1)):
            conv = nn.ConvTranspose2d(inputs, outputs, 4, stride, padding, bias=False)
            layers += [conv, nn.BatchNorm2d(outputs), nn.ReLU()]
        self.g = nn.Sequential(*layers, nn.ConvTranspose2d(64, 3, 4, 2, 1, bias=False), nn.Tanh())
        layers = [nn.Conv2d(3, 64, 4, 2, 1, bias=False), nn.LeakyReLU(0.2)]
        for inputs in (64, 128):
            conv = nn.Conv2d(inputs, 2 * inputs, 4, 2, 1, bias=False)
            layers += [conv, nn.BatchNorm2d(2 * inputs), nn.LeakyReLU(0.2)]
        self.d = nn.Sequential(*layers, nn.Conv2d(256, 1, 4, bias=False), nn.Flatten(0))


MODELS = {
    "W1": lambda: nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10)),
    "W2": lambda: nn.Sequential(
        nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10),
    ),
    "W3": resnet18,
    "W4": lambda: Gpt(WORDS, LENGTH, 256, 4, 4),
    "W5": Dcgan,
    "resnet50": ResNet50,
    "gpt2": lambda: Gpt(GPT2_WORDS, GPT2_LENGTH, 768, 12, 12),
}
# name: (one sample's shape, batch, steps in an epoch, warm-up steps)
SIZES = {
    "W1": ((784,), 128, 100, 30),
    "W2": ((1, 28, 28), 64, 100, 30),
    "W3": ((3, 32, 32), 32, 5, 2),
    "W4": ((LENGTH,), 8, 10, 5),
    "W5": ((3, 32, 32), 32, 5, 2),
    "resnet50": ((3, 224, 224), 256, 20, 5),
    "gpt2": ((GPT2_LENGTH,), 16, 20, 5),
}
SHAPE, BATCH, STEPS, WARM_UP = SIZES[CHOSEN.workload]


def optimizer(parameters):
    match CHOSEN.workload:
        case "W1" | "W3":
            return torch.optim.SGD(parameters, lr=1e-2, momentum=0.9)
        case "W2":
            return torch.optim.Adam(parameters, lr=1e-3)
        case "resnet50":
            return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        case "W4" | "gpt2":
            return torch.optim.AdamW(parameters, lr=3e-4, weight_decay=0.01)
        case _:
            return torch.optim.Adam(parameters, lr=2e-4, betas=(0.5, 0.999))


class Data(Dataset):
    """The data of jax_peer.py in memory. An item is a whole batch, gathered at once, which is PyTorch's fastest way."""

    def __init__(self):
        rng, samples = np.random.default_rng(0), BATCH * STEPS
        if CHOSEN.workload in ("W4", "gpt2"):
            words, length = (WORDS, LENGTH) if CHOSEN.workload == "W4" else (GPT2_WORDS, GPT2_LENGTH)
            start, stride = rng.integers(0, words, (samples, 1)), rng.integers(1, 8, (samples, 1))
            rows = (start + stride * np.arange(length + 1)) % words
            x, y = rows[:, :-1], rows[:, 1:]
        elif CHOSEN.workload == "resnet50":
            y = rng.integers(0, 10, samples)
            noise = np.frombuffer(rng.bytes(samples * int(np.prod(SHAPE))), np.uint8).reshape(samples, *SHAPE)
            x = (noise >> 1) + (12 * y.astype(np.uint8)).reshape(-1, 1, 1, 1)
        else:
            prototypes = rng.standard_normal((10, *SHAPE), dtype=np.float32)
            y = rng.integers(0, 10, samples)
            x = rng.standard_normal((samples, *SHAPE), dtype=np.float32) + 0.5 * prototypes[y]
        self.x, self.y = torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(np.ascontiguousarray(y))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, chosen):
        return self.x[chosen], self.y[chosen]


def loader():
    data = Data()
    return DataLoader(data, sampler=BatchSampler(RandomSampler(data), BATCH, drop_last=True), batch_size=None)


def endless(batches):
    while True:
        yield from batches


def loss_of(model, x, y):
    with torch.autocast(CHOSEN.accelerator, torch.bfloat16, enabled=CHOSEN.workload in ("resnet50", "gpt2")):
        logits = model(x)
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), y.reshape(-1))


def gan_step(model, g, d, x):
    """A step of the discriminator, then one of the generator with the new discriminator."""
    fake = model.g(torch.randn(len(x), 100, 1, 1, device=x.device))
    d.zero_grad(set_to_none=True)
    loss = F.softplus(-model.d(x)).mean() + F.softplus(model.d(fake.detach())).mean()
    loss.backward()
    d.step()
    g.zero_grad(set_to_none=True)
    F.softplus(-model.d(fake)).mean().backward()
    g.step()
    return loss.detach()


def peak_bytes():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))


def seconds_since_process_start():
    with open("/proc/self/stat") as stat:
        # Field 22; counting starts after the command's name, which may contain spaces.
        ticks = int(stat.read().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


# Lightning also prints on the standard output.
ANSWERS, sys.stdout = sys.stdout, sys.stderr


def say(**fields):
    print(json.dumps(fields), file=ANSWERS, flush=True)


def ready(model, cold_s, *others):
    versions = [torch.__version__, *others, f"Python {platform.python_version()}"]
    parameters = sum(p.numel() for p in model.parameters())
    say(version=", ".join(versions), n_params=parameters, steps_per_epoch=STEPS, cold_s=round(cold_s, 4))


def next_block():
    """The number of steps that the harness requests; none at the end."""
    words = sys.stdin.readline().split()
    return int(words[1]) if len(words) == 2 and words[0] == "block" else None


def wait():
    if ON_XLA:
        xm.wait_device_ops()


def serve():
    """Serves with a hand-written loop."""
    torch.manual_seed(0)
    device = torch_xla.device() if ON_XLA else torch.device(CHOSEN.accelerator)
    model, batches = MODELS[CHOSEN.workload]().to(device), loader()
    if CHOSEN.workload == "W5":
        parts = optimizer(model.g.parameters()), optimizer(model.d.parameters())
    else:
        stepper = optimizer(model.parameters())
    if ON_XLA:
        from torch_xla.distributed.parallel_loader import MpDeviceLoader

        batches = MpDeviceLoader(batches, device)
    forward = torch.compile(model) if CHOSEN.way == "torch-compile" else model
    if CHOSEN.way == "torch-compile" and CHOSEN.workload == "W5":
        model.g, model.d = torch.compile(model.g), torch.compile(model.d)
    stream = endless(batches)

    def step():
        x, y = (values.to(device) for values in next(stream))
        if CHOSEN.workload == "W5":
            return gan_step(model, *parts, x)
        stepper.zero_grad(set_to_none=True)
        loss = loss_of(forward, x, y)
        loss.backward()
        stepper.step()
        return loss.detach()

    def run(steps):
        for _ in range(steps):
            if ON_XLA:
                with torch_xla.step():
                    loss = step()
            else:
                loss = step()
        wait()
        return loss.item()

    run(1)
    cold = seconds_since_process_start()
    run(WARM_UP)
    ready(model, cold, *([f"torch_xla {torch_xla.__version__}"] if ON_XLA else []))
    while steps := next_block():
        begin = time.perf_counter()
        loss = run(steps)
        say(steps=steps, seconds=time.perf_counter() - begin, loss=loss, peak_bytes=peak_bytes())


def serve_lightning():
    """Serves with `Trainer.fit`, whose callback waits for the harness between two steps."""
    import lightning
    from lightning.fabric.accelerators.xla import XLAAccelerator
    from lightning.pytorch.callbacks import Callback

    XLAAccelerator.is_available = staticmethod(lambda: True)
    XLAAccelerator.auto_device_count = staticmethod(lambda: 1)

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = MODELS[CHOSEN.workload]()

        def training_step(self, batch, _):
            return loss_of(self.net, *batch)

        def configure_optimizers(self):
            return optimizer(self.net.parameters())

    class Blocks(Callback):
        done, left, begin, cold = 0, 0, 0.0, None

        def on_train_batch_end(self, trainer, module, outputs, batch, index):
            self.done += 1
            if self.done == 1:
                outputs["loss"].item()
                self.cold = seconds_since_process_start()
            if self.done <= WARM_UP:
                return
            if self.left:
                self.left -= 1
                if self.left:
                    return
                wait()
                loss = outputs["loss"].item()
                seconds = time.perf_counter() - self.begin
                say(steps=self.steps, seconds=seconds, loss=loss, peak_bytes=peak_bytes())
            else:
                wait()
                others = f"torch_xla {torch_xla.__version__}", f"lightning {lightning.__version__}"
                ready(module.net, self.cold, *others)
            self.left = self.steps = next_block() or 0
            trainer.should_stop = not self.left
            self.begin = time.perf_counter()

    trainer = lightning.Trainer(
        accelerator="tpu",
        devices=1,
        max_epochs=-1,
        callbacks=[Blocks()],
        logger=False,
        enable_progress_bar=False,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), loader())


if __name__ == "__main__":
    serve_lightning() if CHOSEN.way == "lightning" else serve()
