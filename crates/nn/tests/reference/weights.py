"""Weights in a file, and the logits that they give, with PyTorch. `generate.py` runs it."""

import safetensors.torch
import torch
import torch.nn.functional as F
from torch import nn

from common import draw, FOLDER, labels, tensor, write


class Net(nn.Module):
    """3x8x8 images in, 5 classes out. The names of its parameters are those of the file."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3, stride=2))
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        x = torch.relu(self.norm(self.features(x)))
        return self.head(x.flatten(1))


def weights():
    """net.safetensors is the state dict of `Net` after a few training steps (so that its running statistics are not
    the initial ones); net.json holds an input and the logits in evaluation mode."""
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for i in range(5):
        optimizer.zero_grad()
        F.cross_entropy(net(draw(f"net/{i}", (8, 3, 8, 8))), labels(f"net/{i}", (8,), 5)).backward()
        optimizer.step()
    net.eval()
    safetensors.torch.save_file(net.state_dict(), FOLDER / "net.safetensors", metadata={"format": "pt"})
    (FOLDER / "net.safetensors").chmod(0o644)
    x = draw("net/x", (2, 3, 8, 8))
    state = {k: {"dtype": {torch.float32: "f32", torch.int64: "i64"}[v.dtype], "shape": list(v.shape)} for k, v in net.state_dict().items()}
    with torch.no_grad():
        write("net", [{"op": "net", "name": "net", "state": state, "inputs": [tensor(x)], "outputs": [tensor(net(x))]}])
    # Files of both formats with a tensor whose stored values have another sign, and one without; a table of the same names is none.
    negative = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    assert negative.is_neg()
    note = {"neg": True, "conj": True}
    torch.save({"weight": torch.ones(2), "negative": negative, "note": note}, FOLDER / "negative.pt")
    torch.save({"negative": negative}, FOLDER / "negative_old.pt", _use_new_zipfile_serialization=False)
    torch.save({"weight": negative.resolve_neg(), "note": note}, FOLDER / "resolved.pt")
