"""Makes small JPEGs of noise whose color has half the resolution, and their pixels as Pillow decodes them.

Run with pillow 13.0.0 and simplejpeg 1.9.0:
    python jpeg_edges.py        # writes jpeg_edges.bin beside this script

For each file: the width, the height, and the size of the file as u32, the file, and its pixels as RGB.
"""

import io
import pathlib
import struct

import numpy
import simplejpeg
from PIL import Image

random = numpy.random.default_rng(7)
# Up to a width of 4, libjpeg does not interpolate; widths and heights of 16 and 32 end with a block.
sizes = [(1, 1), (2, 2), (2, 9), (3, 4), (4, 4), (4, 13), (5, 4), (6, 6), (8, 8), (9, 10), (10, 9), (15, 17)]
sizes += [(16, 16), (18, 14), (32, 16), (34, 20), (50, 38)]
out = bytearray()
for width, height in sizes:
    for subsampling in "420", "422", "440":
        for quality in 50, 92:
            # Blocks of two by two pixels keep the noise in the color.
            noise = random.integers(0, 256, (height // 2 + 1, width // 2 + 1, 3), dtype=numpy.uint8)
            pixels = noise.repeat(2, axis=0).repeat(2, axis=1)[:height, :width]
            file = simplejpeg.encode_jpeg(numpy.ascontiguousarray(pixels), quality, "RGB", subsampling)
            decoded = numpy.asarray(Image.open(io.BytesIO(file)).convert("RGB"))
            assert decoded.shape == (height, width, 3)
            out += struct.pack("<III", width, height, len(file)) + file + decoded.tobytes()
pathlib.Path(__file__).with_suffix(".bin").write_bytes(out)
