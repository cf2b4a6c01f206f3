"""Training steps under autocast, with PyTorch. `generate.py` runs it."""

import torch
import torch.nn.functional as F
from torch import nn

from common import draw, fill, labels, tensor, tensors, write


class ConvNet(nn.Module):
    """6x6 images of two channels in, 3 classes out."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn = nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.fc = nn.Conv2d(4, 6, 3), nn.Linear(6, 3)

    def stages(self, x):
        yield "conv1", (x := self.conv1(x))
        yield "bn", (x := self.bn(x))
        yield "pool", (x := F.max_pool2d(torch.relu(x), 3, 2, 1))
        yield "conv2", (x := self.conv2(x))
        yield "mean", (x := F.adaptive_avg_pool2d(torch.relu(x), 1))
        yield "logits", self.fc(x.flatten(1))


class Block(nn.Module):
    """A transformer block with the normalization in front, over [batch, 5, 8], and a classifier of the mean."""

    def __init__(self):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm2, self.linear1, self.linear2 = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
        self.head = nn.Linear(8, 3)

    def stages(self, x):
        hidden = torch.ones(5, 5).triu(1) > 0
        yield "norm1", (h := self.norm1(x))
        yield "attention", (h := self.attention(h, h, h, attn_mask=hidden, need_weights=False)[0])
        yield "sum", (x := x + h)
        yield "norm2", (h := self.norm2(x))
        yield "gelu", (h := F.gelu(self.linear1(h)))
        yield "linear2", (h := self.linear2(h))
        yield "logits", self.head((x + h).mean(1))


class Mixed(nn.Module):
    """5x5 images of two channels in, normalized in several ways, as 9 tokens through a transformer's layer, 3 classes
    out."""

    def __init__(self):
        super().__init__()
        self.conv, self.group, self.prelu, self.instance = nn.Conv2d(2, 8, 3), nn.GroupNorm(2, 8), nn.PReLU(8), nn.InstanceNorm2d(8, affine=True)
        self.rms = nn.RMSNorm(8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.head = nn.Linear(8, 3)

    def stages(self, x):
        yield "conv", (x := self.conv(x))
        yield "group", (x := self.group(x))
        yield "prelu", (x := self.prelu(x))
        yield "instance", (x := self.instance(x))
        yield "rms", (x := self.rms(x.flatten(2).transpose(1, 2)))
        yield "layer", (x := self.layer(x))
        yield "logits", self.head(x.mean(1))


def autocast():
    """Training steps under torch.autocast("cpu", bfloat16): the dtype after each stage, logits, loss, gradients and
    running statistics."""
    cases = []
    for name, module, x in [("conv_net", ConvNet(), draw("conv_net/x", (4, 2, 6, 6))), ("block", Block(), draw("block/x", (4, 5, 8))), ("mixed", Mixed(), draw("mixed/x", (4, 2, 5, 5)))]:
        fill(module, name)
        target = labels(name, (4,), 3)
        parameters = tensors(module.named_parameters())
        with torch.autocast("cpu", torch.bfloat16):
            stages = dict(module.stages(x))
        loss = F.cross_entropy(stages["logits"].float(), target)
        loss.backward()
        made = {"op": "autocast", "name": name, "inputs": [tensor(x), tensor(target)], "parameters": parameters}
        made["dtypes"] = {k: str(v.dtype).removeprefix("torch.").replace("float32", "f32").replace("bfloat16", "bf16") for k, v in stages.items()}
        made |= {"logits": tensor(stages["logits"].float()), "loss": tensor(loss)}
        made["parameter_gradients"] = tensors((k, p.grad) for k, p in module.named_parameters())
        made["buffers"] = tensors((k, b) for k, b in module.named_buffers() if b.is_floating_point())
        cases.append(made)
    write("autocast", cases)
