"""What torchvision makes of small images, for tests/it/augment.rs: writes augment.json beside this file.

Made with torchvision 0.29.2, torch 2.15.0, numpy 2.5.5: torchvision.transforms.v2.functional on uint8 tensors.
"""

import json
from pathlib import Path

import numpy as np
import torch
from torchvision.transforms.v2 import functional as F
from torchvision.transforms.v2 import InterpolationMode

MODES = {"nearest": InterpolationMode.NEAREST, "bilinear": InterpolationMode.BILINEAR}


def image(height, width, channels, seed):
    """Waves with noise, some saturated, some grey pixels: u8[H, W, C]."""
    y, x = np.mgrid[:height, :width].astype(np.float64)
    waves = [np.sin(x / (3 + c) + c) * np.cos(y / (4 - c / 2)) for c in range(channels)]
    values = 127 + 110 * np.stack(waves, -1) + np.random.default_rng(seed).normal(0, 25, (height, width, channels))
    values[: height // 4, : width // 4] = values[: height // 4, : width // 4, :1]
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)


IMAGES = {"rgb": image(12, 20, 3, 0), "square": image(12, 12, 3, 1), "grey": image(13, 18, 1, 2)}
IMAGES["dark"] = (IMAGES["rgb"] // 3 + 20).astype(np.uint8)
IMAGES["flat"] = np.full((6, 5, 3), (9, 100, 100), np.uint8)


def tensor(name):
    return torch.from_numpy(IMAGES[name].transpose(2, 0, 1).copy())


def encode(t):
    values = t.permute(1, 2, 0).contiguous().numpy()
    return {"width": values.shape[1], "height": values.shape[0], "channels": values.shape[2], "pixels": values.tobytes().hex()}


def filled(function, image, fill, **options):
    """With a fill: as around an image of that colour (torchvision counts the outside twice where it is blended)."""
    if options.get("interpolation") == InterpolationMode.NEAREST:
        return function(image, fill=fill, **options)
    colour = torch.tensor(fill, dtype=torch.float32).reshape(-1, 1, 1)
    return (function(image.float() - colour, fill=None, **options) + colour).round().to(torch.uint8)


def main():
    cases = []

    def add(op, result, source, **parameters):
        cases.append({"op": op, "source": source, "parameters": parameters, "result": encode(result)})

    for source in ("rgb", "grey"):
        image = tensor(source)
        for op in ("adjust_brightness", "adjust_contrast", "adjust_saturation", "adjust_sharpness"):
            for factor in (0.0, 0.37, 1.0, 1.8):
                add(op, getattr(F, op)(image, factor), source, factor=factor)
        for factor in (-0.5, -0.2, 0.0, 0.13, 0.5):
            add("adjust_hue", F.adjust_hue(image, factor), source, factor=factor)
        for gamma, gain in ((0.45, 1.0), (2.2, 1.1), (1.0, 1.0)):
            add("adjust_gamma", F.adjust_gamma(image, gamma, gain), source, gamma=gamma, gain=gain)
        add("invert", F.invert(image), source)
        for bits in (0, 3, 8):
            add("posterize", F.posterize(image, bits), source, bits=bits)
        for threshold in (0.0, 127.5, 200.0):
            add("solarize", F.solarize(image, threshold), source, threshold=threshold)
        for channels in (1, 3):
            add("rgb_to_grayscale", F.rgb_to_grayscale(image, channels), source, channels=channels)
    for source in ("rgb", "grey", "dark", "flat"):
        add("autocontrast", F.autocontrast(tensor(source)), source)
        add("equalize", F.equalize(tensor(source)), source)
    for kernel_size, sigma in (((3, 3), (0.8, 0.8)), ((5, 9), (1.5, 3.0)), ((1, 7), (1.0, 0.3))):
        for source in ("rgb", "grey"):
            blurred = F.gaussian_blur(tensor(source), list(kernel_size), list(sigma))
            add("gaussian_blur", blurred, source, kernel_size=kernel_size, sigma=sigma)

    for mode, interpolation in MODES.items():
        for angle, expand, center, fill in (
            (30.0, False, None, [0, 0, 0]),
            (-17.5, True, None, [10, 200, 90]),
            (90.0, False, None, [1, 2, 3]),
            (180.0, False, None, [1, 2, 3]),
            (270.0, True, None, [1, 2, 3]),
            (45.0, False, (3.0, 4.5), [255, 0, 0]),
        ):
            for source in ("rgb", "square"):
                turned = filled(F.rotate, tensor(source), fill, angle=angle, interpolation=interpolation, expand=expand, center=center)
                add("rotate", turned, source, angle=angle, mode=mode, expand=expand, center=center, fill=fill)
        for angle, translate, scale, shear, center, fill in (
            (0.0, (3, -2), 1.0, (0.0, 0.0), None, [0]),
            (12.0, (0, 0), 1.3, (0.0, 0.0), None, [7]),
            (-40.0, (2, 1), 0.7, (10.0, -5.0), None, [250]),
            (0.0, (0, 0), 1.0, (16.7, 0.0), (0.0, 0.0), [0]),
            (0.0, (0, 0), 1.0, (0.0, -16.7), (0.0, 0.0), [0]),
            (5.0, (1, 1), 1.1, (3.0, 2.0), (4.0, 9.0), [128]),
        ):
            for source in ("rgb", "grey"):
                options = {"angle": angle, "translate": list(translate), "scale": scale, "shear": list(shear), "center": center}
                each = fill * IMAGES[source].shape[2]
                moved = filled(F.affine, tensor(source), each, interpolation=interpolation, **options)
                add("affine", moved, source, mode=mode, fill=fill, **options)
        corners = [[0, 0], [19, 0], [19, 11], [0, 11]]
        for to in ([[2, 1], [16, 3], [18, 9], [1, 11]], [[5, 4], [19, 0], [15, 8], [3, 7]]):
            seen = filled(F.perspective, tensor("rgb"), [40, 50, 60], startpoints=corners, endpoints=to, interpolation=interpolation)
            add("perspective", seen, "rgb", start=corners, end=to, mode=mode, fill=[40, 50, 60])

    for mode in ("constant", "edge", "reflect", "symmetric"):
        for padding in ([2, 3, 4, 5], [11, 0, 1, 11]):
            padded = F.pad(tensor("square"), padding, fill=77 if mode == "constant" else 0, padding_mode=mode)
            add("pad", padded, "square", padding=padding, mode=mode, fill=[77])
    padded = F.pad(tensor("square"), [1, 2, 3, 4], fill=[9, 8, 7])
    add("pad", padded, "square", padding=[1, 2, 3, 4], mode="constant", fill=[9, 8, 7])
    erased = F.erase(tensor("rgb"), 3, 5, 4, 9, torch.tensor([1, 2, 3], dtype=torch.uint8)[:, None, None])
    add("erase", erased, "rgb", corner=[3, 5], size=[4, 9], fill=[1, 2, 3])

    images = {name: encode(tensor(name)) for name in IMAGES}
    text = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    head = json.dumps(images, separators=(",", ":"))
    Path(__file__).with_suffix(".json").write_text(f'{{"images":{head},\n"cases":[\n{text}\n]}}\n')


main()
