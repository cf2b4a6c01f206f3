"""Makes the Parquet, Arrow and Hugging Face files that crates/tables/tests/it reads, and what is in them.

Run with pyarrow 26.0.1, datasets 5.2.0, pandas 3.1.1, pillow 13.0.0:
    python tables.py            # writes into tables/ beside this script
"""

import io
import json
import pathlib
import shutil

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
from PIL import Image

out = pathlib.Path(__file__).parent / "tables"
shutil.rmtree(out, ignore_errors=True)
out.mkdir()

rows = 300
r = np.random.default_rng(5)
floats = [None if i % 17 == 3 else float(x) for i, x in enumerate(r.standard_normal(rows))]
table = pa.table(
    {
        "f64": pa.array(floats, pa.float64()),
        "f32": pa.array(r.standard_normal(rows).astype(np.float32)),
        "f16": pa.array(r.standard_normal(rows).astype(np.float16)),
        "i8": pa.array(r.integers(-128, 128, rows), pa.int8()),
        "i64": pa.array(r.integers(-(2**62), 2**62, rows), pa.int64()),
        "u16": pa.array(r.integers(0, 2**16, rows), pa.uint16()),
        "u64": pa.array([2**64 - 1 - i for i in range(rows)], pa.uint64()),
        "flag": pa.array([None if i % 50 == 7 else i % 3 == 0 for i in range(rows)], pa.bool_()),
        "text": pa.array([None if i % 41 == 5 else f"row {i} é" for i in range(rows)], pa.string()),
        "large": pa.array([f"large {i}" for i in range(rows)], pa.large_string()),
        "category": pa.array([["cat", "dog", "eel"][i * 7 % 3] for i in range(rows)]).dictionary_encode(),
        "raw": pa.array([bytes([i % 256, 0, 255]) for i in range(rows)], pa.binary()),
        "vector": pa.array([[i + 0.5, -i, i * 1e-3, 2.0] for i in range(rows)], pa.list_(pa.float64())),
        "fixed": pa.array([[i, i + 1, -i] for i in range(rows)], pa.list_(pa.int32(), 3)),
        "matrix": pa.array([[[i, 1], [2, 3], [4, -i]] for i in range(rows)], pa.list_(pa.list_(pa.int64()))),
        "ragged": pa.array([list(range(i % 5)) for i in range(rows)], pa.list_(pa.int64())),
        "picture": pa.array(
            [None if i % 29 == 4 else {"bytes": bytes([i % 256]) * 3, "path": f"{i}.png"} for i in range(rows)],
            pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
        ),
        "boxes": pa.array(
            [[{"x": float(j), "kind": f"k{j}"} for j in range(i % 3)] for i in range(rows)],
            pa.list_(pa.struct([("x", pa.float32()), ("kind", pa.string())])),
        ),
        "day": pa.array([i * 86_400_000 for i in range(rows)], pa.timestamp("ms")),
    }
)
columns = table.column_names

# Three row groups, plain and with every compression that the crate reads; one file with small pages and an index of them.
pq.write_table(table, out / "plain.parquet", row_group_size=100, compression="none")
for compression in ["snappy", "gzip", "brotli", "lz4", "zstd"]:
    pq.write_table(table.slice(0, 60), out / f"{compression}.parquet", row_group_size=25, compression=compression)
pq.write_table(
    table, out / "paged.parquet", row_group_size=300, compression="zstd", data_page_size=256, write_page_index=True,
    write_batch_size=16, data_page_version="2.0",
)
pq.write_table(table.slice(0, 0), out / "empty.parquet")
# Pages with checksums: of both versions, uncompressed so that no decoder sees the damage, in a dictionary and beside it.
for version in ["1.0", "2.0"]:
    pq.write_table(
        table.slice(0, 60).select(["f64", "i64", "text", "category", "ragged"]), out / f"checksums_{version[0]}.parquet",
        row_group_size=30, compression="none", use_dictionary=["text", "category"], write_page_checksum=True,
        data_page_version=version,
    )

# Arrow files: both formats, both compressions, batches of 64 rows.
for name, compression in [("plain", None), ("lz4", "lz4"), ("zstd", "zstd")]:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(out / f"{name}.arrow", table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=64)
with pa.ipc.new_stream(out / "stream.arrows", table.schema) as writer:
    writer.write_table(table, max_chunksize=64)
feather.write_feather(pd.DataFrame({"a": [1, 2, 3], "b": ["x", None, "z"]}), out / "pandas.feather")


def plain(value):
    """A value as JSON."""
    if isinstance(value, bytes):
        return list(value)
    if isinstance(value, list):
        return [plain(element) for element in value]
    if isinstance(value, dict):
        return {key: plain(element) for key, element in value.items()}
    if hasattr(value, "timestamp"):
        return int(pd.Timestamp(value).value // 1_000_000)
    if isinstance(value, np.floating):
        return float(value)
    return value


shown = [0, 3, 5, 7, 63, 64, 99, 100, 250, 299]
expected = {"columns": columns, "rows": {str(i): {c: plain(table[c][i].as_py()) for c in columns} for i in shown}}
(out / "expected.json").write_text(json.dumps(expected, ensure_ascii=False))

# A dataset of images with classes, as `save_to_disk` and as the hub keep it.
def image(seed):
    data = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(data).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": f"{seed}.png"}


def split(count, start):
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["zebra", "ant", "moose"]),
            "caption": datasets.Value("string"),
            "tokens": datasets.List(datasets.Value("int32")),
            "grid": datasets.Array2D((2, 3), "float32"),
        }
    )
    numbers = range(start, start + count)
    return datasets.Dataset.from_dict(
        {
            "image": [image(i) for i in numbers],
            "label": [i % 3 for i in numbers],
            "caption": [f"caption {i}" for i in numbers],
            "tokens": [[i, i + 1, i + 2, i + 3] for i in numbers],
            "grid": [[[i, 1, 2], [3, 4, i]] for i in numbers],
        },
        features=features,
    )


train, test = split(23, 0), split(5, 100)
both = datasets.DatasetDict({"train": train, "test": test})
both.save_to_disk(str(out / "saved"), num_shards={"train": 2, "test": 1})
train.save_to_disk(str(out / "saved_one"))
train.select([3, 1, 2]).save_to_disk(str(out / "saved_selected"))

hub = out / "hub"
(hub / "data").mkdir(parents=True)
for number in range(2):
    part = train.shard(2, number, contiguous=True)
    part.to_parquet(str(hub / "data" / f"train-{number:05}-of-00002.parquet"), batch_size=6)
test.to_parquet(str(hub / "data" / "test-00000-of-00001.parquet"))

# A README names two configurations whose files lie where no pattern would look.
configured = out / "configured"
(configured / "part_a").mkdir(parents=True)
(configured / "part_b").mkdir()
train.to_parquet(str(configured / "part_a" / "first.parquet"))
test.to_parquet(str(configured / "part_b" / "second.parquet"))
(configured / "README.md").write_text(
    """---
license: mit
dataset_info:
- config_name: small
  features:
  - name: caption
    dtype: string
configs:
- config_name: small
  data_files:
  - split: train
    path: "part_b/*.parquet"
- config_name: full
  default: true
  data_files:
  - split: train
    path: part_a/first.parquet
  - split: test
    path:
    - part_b/*
---
# A dataset
""",
)
# What other tools left beside the data is not part of it.
for file in out.rglob("*.crc"):
    file.unlink()
print(sum(file.stat().st_size for file in out.rglob("*") if file.is_file()), "bytes")
