"""Passes an image, its mask and its boxes through torchvision's transforms.v2 with tv_tensors.

Run with torch 2.15.0 and torchvision 0.29.2:
    python pairs.py             # writes pairs.json beside this script
"""

import json
import pathlib

import torch
from torchvision import tv_tensors
from torchvision.transforms import v2

HEIGHT, WIDTH = 21, 34
torch.manual_seed(3)
# Each pixel has its own color, and blocks of pixels a class.
y, x = torch.meshgrid(torch.arange(HEIGHT), torch.arange(WIDTH), indexing="ij")
image = torch.stack([7 * x % 256, 11 * y % 256, (3 * x + 5 * y) % 256]).to(torch.uint8)
mask = ((x // 5 + 2 * (y // 4)) % 9 + 1).to(torch.uint8)
boxes = torch.tensor([[0.0, 0.0, 34.0, 21.0], [3.0, 2.0, 12.5, 9.0], [20.0, 15.0, 33.0, 20.5], [0.0, 18.0, 2.0, 21.0]])

cases = {
    "resize": v2.Resize(9),
    "resize_exact": v2.Resize((40, 17)),
    "enlarge": v2.Resize((63, 102)),
    "center_crop": v2.CenterCrop((11, 16)),
    # By an odd number of pixels, torchvision moves boxes one pixel more than the image and the mask.
    "center_crop_larger": v2.CenterCrop((27, 44)),
    "horizontal_flip": v2.RandomHorizontalFlip(1.0),
    "vertical_flip": v2.RandomVerticalFlip(1.0),
    "pad": v2.Pad([1, 2, 3, 4], fill={torch.Tensor: 90, tv_tensors.Image: 90, tv_tensors.Mask: 0, "others": 0}),
    "pad_reflect": v2.Pad([4, 3, 2, 1], padding_mode="reflect"),
    "rotate": v2.RandomRotation((30, 30)),
    "rotate_center": v2.RandomRotation((-25, -25), center=[5, 4]),
    "rotate_quarter": v2.RandomRotation((90, 90), expand=True),
    "rotate_expand": v2.RandomRotation((37, 37), expand=True),
    "affine": v2.RandomAffine((20, 20), scale=(1.3, 1.3), shear=(10, 10)),
    "brightness": v2.ColorJitter(brightness=(1.5, 1.5)),
    "erase": v2.RandomErasing(p=0.0),
    "all": v2.Compose(
        [
            v2.CenterCrop((18, 24)),
            v2.RandomHorizontalFlip(1.0),
            v2.Resize((30, 20)),
            v2.CenterCrop((22, 22)),
            v2.RandomVerticalFlip(1.0),
            v2.RandomRotation((15, 15)),
            v2.Pad(2),
        ]
    ),
}
results = {}
for name, transform in cases.items():
    # torchvision pads boxes only with a constant.
    has_boxes = name != "pad_reflect"
    sample = {
        "image": tv_tensors.Image(image.clone()),
        "mask": tv_tensors.Mask(mask.clone()),
    }
    if has_boxes:
        sample["boxes"] = tv_tensors.BoundingBoxes(boxes.clone(), format="XYXY", canvas_size=(HEIGHT, WIDTH))
    out = transform(sample)
    assert out["mask"].shape == out["image"].shape[1:]
    results[name] = {
        "size": list(out["mask"].shape),
        "mask": out["mask"].flatten().tolist(),
        "boxes": out["boxes"].tolist() if has_boxes else None,
    }
given = {
    "size": [HEIGHT, WIDTH],
    "image": image.permute(1, 2, 0).flatten().tolist(),
    "mask": mask.flatten().tolist(),
    "boxes": boxes.tolist(),
}
pathlib.Path(__file__).with_suffix(".json").write_text(json.dumps({"given": given, "results": results}) + "\n")
