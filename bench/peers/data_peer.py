"""A peer of `bench data`: converts JPEG files to normalized float32 batches of 64, channels first, in one of the usual ways.

    data_peer.py --way WAY --folder FOLDER --workers N

Ways:
    pillow       torch's DataLoader, torchvision's transforms on Pillow images, as in most ImageNet scripts
    torchvision  torch's DataLoader, torchvision.io.decode_jpeg and transforms.v2 on uint8 tensors
    grain        Grain's DataLoader with Pillow and NumPy, common among JAX users
    tfdata       tf.data, which decodes only the crop

It prints one line of JSON when it is ready. For each line `epoch` on the standard input, it reads every file once, in a new
order, and answers {"images": the number of images after the first batch, "seconds": the time that they took}.
"""

import argparse
import json
import math
import os
import pathlib
import random
import sys
import time

BATCH, SIDE = 64, 224
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def batches_of_torch(files, workers, read):
    import torch

    class Files(torch.utils.data.Dataset):
        def __len__(self):
            return len(files)

        def __getitem__(self, index):
            return read(files[index]), index

    loader = torch.utils.data.DataLoader(Files(), batch_size=BATCH, shuffle=True, num_workers=workers, drop_last=True,
                                         persistent_workers=workers > 0)
    return lambda: (batch for batch, _ in loader)


def pillow(files, workers):
    from PIL import Image
    from torchvision import transforms

    steps = transforms.Compose([transforms.RandomResizedCrop(SIDE), transforms.RandomHorizontalFlip(),
                                transforms.ToTensor(), transforms.Normalize(MEAN, DEVIATION)])
    return batches_of_torch(files, workers, lambda file: steps(Image.open(file).convert("RGB")))


def torchvision(files, workers):
    import torch
    from torchvision.io import decode_jpeg, read_file
    from torchvision.transforms import v2

    steps = v2.Compose([v2.RandomResizedCrop(SIDE, antialias=True), v2.RandomHorizontalFlip(),
                        v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, DEVIATION)])
    return batches_of_torch(files, workers, lambda file: steps(decode_jpeg(read_file(file))))


def crop_box(width, height):
    """torchvision's RandomResizedCrop: left, top, right, bottom."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            x, y = random.randint(0, width - w), random.randint(0, height - h)
            return x, y, x + w, y + h
    side = min(width, height)
    x, y = (width - side) // 2, (height - side) // 2
    return x, y, x + side, y + side


def grain(files, workers):
    import grain.python as pygrain
    import numpy
    from absl import flags
    from PIL import Image

    # Grain's processes read absl's flags.
    flags.FLAGS(["data_peer"])

    class Files:
        def __len__(self):
            return len(files)

        def __getitem__(self, index):
            return files[index]

    class Read(pygrain.MapTransform):
        def map(self, file):
            image = Image.open(file).convert("RGB")
            image = image.resize((SIDE, SIDE), Image.BILINEAR, box=crop_box(*image.size))
            values = numpy.asarray(image)
            if random.random() < 0.5:
                values = values[:, ::-1]
            values = (values.astype(numpy.float32) / 255 - numpy.float32(MEAN)) / numpy.float32(DEVIATION)
            return numpy.ascontiguousarray(values.transpose(2, 0, 1))

    def batches():
        order = pygrain.IndexSampler(len(files), shuffle=True, seed=random.getrandbits(31), num_epochs=1,
                                     shard_options=pygrain.NoSharding())
        return iter(pygrain.DataLoader(data_source=Files(), sampler=order, worker_count=workers,
                                       operations=[Read(), pygrain.Batch(BATCH, drop_remainder=True)]))

    return batches


def tfdata(files, workers):
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    def read(file):
        data = tf.io.read_file(file)
        start, size, _ = tf.image.sample_distorted_bounding_box(
            tf.io.extract_jpeg_shape(data), tf.zeros([1, 0, 4]), min_object_covered=0.0,
            aspect_ratio_range=(3 / 4, 4 / 3), area_range=(0.08, 1.0), max_attempts=10,
            use_image_if_no_bounding_boxes=True)
        window = tf.concat([start[:2], size[:2]], 0)
        image = tf.image.decode_and_crop_jpeg(data, window, channels=3)
        image = tf.image.random_flip_left_right(tf.image.resize(image, [SIDE, SIDE], "bilinear"))
        return tf.transpose((image / 255.0 - MEAN) / DEVIATION, [2, 0, 1])

    data = tf.data.Dataset.from_tensor_slices(files).shuffle(len(files))
    data = data.map(read, num_parallel_calls=workers).batch(BATCH, drop_remainder=True).prefetch(2)
    return lambda: iter(data)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", required=True, choices=["pillow", "torchvision", "grain", "tfdata"])
    parser.add_argument("--folder", required=True)
    parser.add_argument("--workers", type=int, required=True)
    args = parser.parse_args()
    files = sorted(str(file) for file in pathlib.Path(args.folder).rglob("*.jpg"))
    batches = globals()[args.way](files, args.workers)
    print(json.dumps({"ready": args.way}), flush=True)
    for line in sys.stdin:
        if line.strip() != "epoch":
            break
        images, first = 0, None
        for batch in batches():
            assert tuple(batch.shape) == (BATCH, 3, SIDE, SIDE)
            if first is None:
                first = time.perf_counter()
            else:
                images += BATCH
        print(json.dumps({"images": images, "seconds": time.perf_counter() - first}), flush=True)


# Worker processes import this file again.
if __name__ == "__main__":
    main()
