"""Makes one table with null and NaN in every format that crates/tables reads, and what pandas says is missing in it.

Run with pandas 3.1.1 and pyarrow 26.0.1:
    python missing.py           # writes into missing/ beside this script
"""

import json
import pathlib
import shutil

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq

out = pathlib.Path(__file__).parent / "missing"
shutil.rmtree(out, ignore_errors=True)
out.mkdir()

nan = float("nan")
values = [1.5, nan, None, -2.0, nan, 0.25]
table = pa.table(
    {
        "f64": pa.array(values, pa.float64()),
        "f32": pa.array(values, pa.float32()),
        "f16": pa.array([None if v is None else np.float16(v) for v in values], pa.float16()),
        "pair": pa.array([[1.0, 2.0], [nan, 3.0], [4.0, None], [5.0, 6.0], [7.0, nan], [8.0, 9.0]], pa.list_(pa.float32())),
    }
)
assert table["f64"].null_count == 1, "NaN is stored as NaN"
pq.write_table(table, out / "x.parquet")
feather.write_feather(table, out / "x.arrow", compression="uncompressed")
scalars = ["f64", "f32", "f16"]
lines = [",".join(scalars)] + [",".join(["" if v is None else str(v)] * 3) for v in values]
(out / "x.csv").write_text("\n".join(lines) + "\n")
# Python's `json` writes NaN.
rows = [{name: row[name] for name in scalars} for row in table.to_pylist()]
(out / "x.jsonl").write_text("".join(json.dumps(row, default=float) + "\n" for row in rows))

frames = {
    "x.parquet": pd.read_parquet(out / "x.parquet"),
    "x.arrow": pd.read_feather(out / "x.arrow"),
    "x.csv": pd.read_csv(out / "x.csv"),
    "x.jsonl": pd.read_json(out / "x.jsonl", lines=True),
}
expected = {}
for name, frame in frames.items():
    expected[name] = {
        "missing": {column: frame[column].isna().tolist() for column in scalars},
        "filled": {column: frame[column].fillna(-1.0).astype(float).tolist() for column in scalars},
    }
pairs = frames["x.parquet"]["pair"]
expected["pair"] = {
    "missing": [pd.isna(pair).tolist() for pair in pairs],
    "filled": [pd.Series(pair).fillna(-1.0).tolist() for pair in pairs],
}
(out / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
