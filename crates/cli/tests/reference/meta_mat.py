"""Writes meta.mat, a file of the form of ImageNet's, with scipy 1.x: python meta_mat.py"""

from pathlib import Path

import numpy as np
from scipy.io import savemat

FIELDS = ["ILSVRC2012_ID", "WNID", "words", "gloss", "num_children", "children", "wordnet_height", "num_train_images"]
ROWS = [
    (1, "n02119789", "kit fox, Vulpes macrotis", "small grey fox", 0, np.zeros((1, 0)), 0, 1300),
    (2, "n02100735", "English setter", "an English breed", 0, np.zeros((1, 0)), 0, 1300),
    (3, "n01440764", "tench, Tinca tinca", "a café's \U0001f98a", 0, np.zeros((1, 0)), 0, 1300),
    (4, "n00001740", "", "that which is", 3, np.array([[1, 2, 300]], np.float64), 1, 0),
]

synsets = np.empty((len(ROWS), 1), dtype=[(field, object) for field in FIELDS])
for place, row in enumerate(ROWS):
    for field, value in zip(FIELDS, row):
        synsets[place, 0][field] = np.uint16(value) if isinstance(value, int) else value
savemat(
    Path(__file__).parent / "meta.mat",
    {
        "synsets": synsets,
        "numbers": np.array([[-1.5, 2, 1e300], [4, 5, -6]]),
        "single": np.float32(0.25),
        "bytes": np.array([[-1, 127]], np.int8),
        "large": np.int64(-3_000_000_000),
    },
    do_compression=True,
)
