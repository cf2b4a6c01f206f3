"""ResNets with basic blocks and with bottlenecks, as timm writes them, and one as training loops of torchvision write it: the
state dict of a wrapped model under a name, beside other things."""

import json
import sys
from pathlib import Path

import timm
import torch
import torchvision
from torchvision.models import resnet

from common import FOLDER, compare, expect, randomize

BASIC = {"in_chans": 1, "channels": [4, 6, 6, 8], "layers": [1, 2, 1, 1]}
BOTTLENECK = {"in_chans": 1, "channels": [2, 2, 2, 3], "layers": [1, 2, 1, 1]}


def write(name, architecture, args):
    torch.manual_seed(0)
    model = randomize(timm.create_model(architecture, num_classes=5, **args))
    folder = FOLDER / name
    timm.models.save_for_hf(model, folder, model_args=args, safe_serialization=True)
    config = json.loads((folder / "config.json").read_text())
    config["made_with"] = {"timm": timm.__version__, "torch": torch.__version__}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    x = torch.rand(2, args["in_chans"], 40, 40) - 0.5
    model.eval()
    logits = model(x)
    # torchvision's model, with the same names, gives the same.
    same = torchvision.models.ResNet(resnet.BasicBlock if architecture == "resnet18" else resnet.Bottleneck, args["layers"], num_classes=5)
    same.conv1, same.inplanes = torch.nn.Conv2d(args["in_chans"], 64, 7, 2, 3, bias=False), 64
    for i, (planes, blocks) in enumerate(zip(args["channels"], args["layers"])):
        block = resnet.BasicBlock if architecture == "resnet18" else resnet.Bottleneck
        setattr(same, f"layer{i + 1}", same._make_layer(block, planes, blocks, stride=1 if i == 0 else 2))
    same.fc = torch.nn.Linear(same.inplanes, 5)
    same.load_state_dict(model.state_dict())
    if name == "resnet_basic":
        torch.save({"epoch": 3, "state_dict": {f"module.{k}": v for k, v in same.state_dict().items()}}, folder / "checkpoint.pth")
    assert torch.allclose(same.eval()(x), logits, atol=1e-5)
    model.train()
    expect(folder, pixel_values=x, logits=logits, train_logits=model(x), running_mean=model.state_dict()["layer4.0.bn2.running_mean"])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        folder = Path(sys.argv[1])
        model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
        compare(folder, lambda pixel_values: model(pixel_values))
    write("resnet_basic", "resnet18", BASIC)
    write("resnet_bottleneck", "resnet50", BOTTLENECK)
