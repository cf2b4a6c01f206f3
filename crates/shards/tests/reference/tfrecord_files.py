"""Writes a small TFRecord file with the `tfrecord` package (its protocol buffers are TensorFlow's), and what is in it.

Made with Python 3.13, tfrecord 1.14.6, protobuf 7.36.2: python tfrecord_files.py (writes into tfrecord/ beside it).
"""

import gzip
import json
import pathlib

import numpy as np
from tfrecord import example_pb2
from tfrecord.tools.tfrecord2idx import create_index
from tfrecord.writer import TFRecordWriter

HERE = pathlib.Path(__file__).parent / "tfrecord"


def main():
    HERE.mkdir(exist_ok=True)
    path = HERE / "examples.tfrecord"
    expected = []
    writer = TFRecordWriter(str(path))
    for number in range(4):
        image = bytes(range(number * 50))
        floats = np.linspace(-1.5, 1e30, number + 1, dtype=np.float32)
        ints = [0, 1, -1, 2**63 - 1, -(2**63), number][: number + 3]
        writer.write(
            {"image": (image, "byte"), "floats": (floats, "float"), "ints": (ints, "int")},
        )
        expected.append(
            {"image": image.hex(), "floats": [float(value) for value in floats], "ints": ints}
        )
    writer.close()
    # Two strings, no list at all, and an empty one.
    features = example_pb2.Features()
    features.feature["two"].bytes_list.value.extend([b"a", b""])
    features.feature["none"].CopyFrom(example_pb2.Feature())
    features.feature["empty"].int64_list.CopyFrom(example_pb2.Int64List())
    (HERE / "odd.bin").write_bytes(example_pb2.Example(features=features).SerializeToString())
    (HERE / "examples.tfrecord.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    create_index(str(path), str(HERE / "index.txt"))
    index = [[int(n) for n in line.split()] for line in (HERE / "index.txt").read_text().splitlines()]
    (HERE / "index.txt").unlink()
    (HERE / "expected.json").write_text(json.dumps({"examples": expected, "index": index}, indent=1) + "\n")


main()
