"""Cuts the two photographs that come with scikit-learn into images of 32 x 32, with a class for each quarter of each
photograph: `python crops.py FOLDER` writes FOLDER/train/CLASS and FOLDER/val/CLASS."""

import sys
from pathlib import Path

from PIL import Image
from sklearn.datasets import load_sample_images

PHOTOGRAPHS = ["temple", "flower"]
QUARTERS = {"top-left": (0, 0), "top-right": (0, 320), "bottom-left": (213, 0), "bottom-right": (213, 320)}

for photograph, pixels in zip(PHOTOGRAPHS, load_sample_images().images):
    for quarter, (top, left) in QUARTERS.items():
        for split, first, step in (("train", 0, 8), ("val", 4, 24)):
            folder = Path(sys.argv[1], split, f"{photograph}-{quarter}")
            folder.mkdir(parents=True)
            for y in range(top + first, top + 213 - 64, step):
                for x in range(left + first, left + 320 - 64, step):
                    # Halved, so that an image shows a larger part.
                    image = Image.fromarray(pixels[y : y + 64, x : x + 64]).resize((32, 32))
                    image.save(folder / f"{y}-{x}.png")
