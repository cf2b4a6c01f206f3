"""Makes the files that images.rs decodes, and what Pillow and torchvision make of them, as PNG.

Made with Python 3.13, Pillow 13.0.0 (libjpeg-turbo 3.2.0), torchvision 0.29.2, torch 2.15.0, numpy 2.5,
simplejpeg 1.9.0.

    images.py FOLDER      (crates/images/tests/reference/images)
"""
import pathlib
import sys

import numpy
import simplejpeg
import torch
import torchvision.transforms.functional as F
from PIL import Image
from torchvision.transforms import InterpolationMode

folder = pathlib.Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)


def photo(width, height, seed):
    """Smooth colours, an edge, and grain."""
    random = numpy.random.default_rng(seed)
    y, x = numpy.mgrid[0:height, 0:width]
    waves = [numpy.sin(x / (5 + 3 * c) + seed) * numpy.cos(y / (7 + 2 * c)) for c in range(3)]
    image = 120 + 90 * numpy.stack(waves, axis=-1)
    image[(x - width / 3) ** 2 + (y - height / 2) ** 2 < (height / 4) ** 2] += (80, -60, 20)
    image += random.normal(0, 6, (height, width, 1))
    return Image.fromarray(image.clip(0, 255).astype(numpy.uint8))


def expect(name, image):
    image.save(folder / f"{name}.expected.png", optimize=True)


base = photo(101, 75, 1)

# Decoding.
for name, options in {
    "s420": dict(subsampling="4:2:0"),
    "s422": dict(subsampling="4:2:2"),
    "s444": dict(subsampling="4:4:4"),
    "progressive": dict(subsampling="4:2:0", progressive=True),
    "restarts": dict(subsampling="4:2:0", restart_marker_rows=1),
}.items():
    base.save(folder / f"{name}.jpg", quality=88, **options)
    expect(name, Image.open(folder / f"{name}.jpg").convert("RGB"))
base.convert("L").save(folder / "gray.jpg", quality=88)
expect("gray", Image.open(folder / "gray.jpg").convert("RGB"))
base.convert("CMYK").save(folder / "cmyk.jpg", quality=88)
expect("cmyk", Image.open(folder / "cmyk.jpg").convert("RGB"))


def expect_jpeg(name, file):
    (folder / f"{name}.jpg").write_bytes(file)
    expect(name, Image.open(folder / f"{name}.jpg").convert("RGB"))


for name in "411", "440":
    expect_jpeg(f"s{name}", simplejpeg.encode_jpeg(numpy.asarray(base), 88, "RGB", name))
# The same data read as YCCK, and grey whose factors are not 1: Pillow writes neither.
ycck = bytearray((folder / "cmyk.jpg").read_bytes())
ycck[ycck.index(b"Adobe") + 11] = 2
expect_jpeg("ycck", ycck)
factors = bytearray((folder / "gray.jpg").read_bytes())
factors[factors.index(b"\xff\xc0") + 11] = 0x22
expect_jpeg("gray_factors", factors)

alpha = base.convert("RGBA")
alpha.putalpha(Image.linear_gradient("L").resize(base.size))
alpha.save(folder / "rgba.png")
expect("rgba", alpha.convert("RGB"))
base.quantize(31).save(folder / "palette.png")
expect("palette", Image.open(folder / "palette.png").convert("RGB"))
alpha.convert("LA").save(folder / "la.png")
expect("la", alpha.convert("LA").convert("RGB"))
base.convert("1").save(folder / "bits.png")
expect("bits", base.convert("1").convert("RGB"))
deep = (numpy.asarray(base.convert("L")).astype(numpy.uint16) * 257) ^ 0x5A
Image.fromarray(deep).save(folder / "deep.png")
expect("deep", Image.fromarray((deep >> 8).astype(numpy.uint8)).convert("RGB"))
base.save(folder / "lossless.webp", lossless=True)
expect("lossless", base)
base.save(folder / "lossy.webp", quality=80)
expect("lossy", Image.open(folder / "lossy.webp").convert("RGB"))

# Orientation: the same scene, stored turned and marked so.
small = photo(40, 24, 2)
for value in range(1, 9):
    exif = Image.Exif()
    exif[0x0112] = value
    small.save(folder / f"turned{value}.jpg", quality=95, subsampling="4:4:4", exif=exif)
    from PIL import ImageOps

    expect(f"turned{value}", ImageOps.exif_transpose(Image.open(folder / f"turned{value}.jpg")).convert("RGB"))

# Resizing, as torchvision does with Pillow images.
large = photo(160, 120, 3)
large.save(folder / "large.png")
modes = dict(nearest=InterpolationMode.NEAREST, bilinear=InterpolationMode.BILINEAR, bicubic=InterpolationMode.BICUBIC,
             lanczos=InterpolationMode.LANCZOS)
for name, mode in modes.items():
    expect(f"resize_{name}", F.resize(large, 48, mode))
    expect(f"enlarge_{name}", F.resize(F.center_crop(large, [40, 40]), [64, 80], mode))
expect("crop", F.center_crop(F.resize(large, 64, InterpolationMode.BILINEAR), [48, 56]))
expect("beyond", F.center_crop(large, [131, 180]))
# The tensor path with antialias, of which Pillow's is the model.
tensor = torch.from_numpy(numpy.asarray(large).copy()).permute(2, 0, 1)
made = F.resize(tensor, [48, 64], InterpolationMode.BILINEAR, antialias=True)
expect("tensor", Image.fromarray(made.permute(1, 2, 0).numpy()))
