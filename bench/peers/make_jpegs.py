"""Generates JPEGs that take as long to decode as photographs: 500 x 375 by default, quality 90, about 67 kB each.

An image is colored noise whose amplitude decreases with the frequency as in nature, a few shapes with soft edges, and
grain. Image i is the same on every machine.

    make_jpegs.py FOLDER [COUNT [WIDTH HEIGHT]]
"""
import functools
import multiprocessing
import pathlib
import sys

import numpy
from PIL import Image, ImageDraw, ImageFilter


@functools.cache
def falloff(width, height):
    """The amplitude of each frequency of the half spectrum."""
    rows = numpy.fft.fftfreq(height)[:, None]
    columns = numpy.fft.rfftfreq(width)[None, :]
    return numpy.maximum(numpy.hypot(rows, columns), 1 / width) ** -1.35


def clouds(random, width, height):
    """Three correlated channels of noise, with the means and deviations of a photograph."""
    common = random.standard_normal((height, width))
    channels = []
    for _ in range(3):
        own = random.standard_normal((height, width))
        spectrum = numpy.fft.rfft2(0.8 * common + 0.6 * own) * falloff(width, height)
        noise = numpy.fft.irfft2(spectrum, s=(height, width))
        channels.append(48 * (noise - noise.mean()) / noise.std() + random.uniform(80, 170))
    return numpy.stack(channels, axis=-1)


def with_shapes(random, image):
    """The image with ellipses, rectangles and lines of three quarters opacity."""
    layer = image.copy()
    draw = ImageDraw.Draw(layer)
    (width, height), scale = image.size, image.width / 500
    for _ in range(random.integers(3, 9)):
        x, y = random.integers(0, width), random.integers(0, height)
        size = scale * random.integers(20, 160)
        colour = tuple(int(value) for value in random.integers(0, 256, 3))
        shape = random.integers(0, 3)
        if shape == 0:
            draw.ellipse([x - size, y - 0.7 * size, x + size, y + 0.7 * size], fill=colour)
        elif shape == 1:
            draw.rectangle([x, y, x + size, y + 0.8 * size], fill=colour)
        else:
            draw.line([x, y, x + size, y - size], fill=colour, width=int(scale * random.integers(1, 9)))
    return Image.blend(image, layer.filter(ImageFilter.GaussianBlur(0.7)), 0.75)


def make(index, width, height):
    random = numpy.random.default_rng(index)
    base = clouds(random, width, height).clip(0, 255).astype(numpy.uint8)
    image = numpy.asarray(with_shapes(random, Image.fromarray(base)), numpy.float32)
    grain = 5 * random.standard_normal((height, width, 1))
    return Image.fromarray((image + grain).clip(0, 255).astype(numpy.uint8))


def save(index, folder, width, height):
    # ImageNet's layout with ten classes.
    path = folder / f"class{index % 10}" / f"{index:05d}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    make(index, width, height).save(path, quality=90)


def main():
    folder = pathlib.Path(sys.argv[1])
    count, width, height = [int(word) for word in sys.argv[2:]] + [2000, 500, 375][len(sys.argv) - 2:]
    with multiprocessing.Pool() as pool:
        pool.map(functools.partial(save, folder=folder, width=width, height=height), range(count))


if __name__ == "__main__":
    main()
