"""Reads the parts of a cache with pyarrow and writes what it sees to reference/cache.json.

The parts in reference/cache were written by the test `pyarrow_reads_the_same_values` (with UPDATE_EXPECT=1), which
compares new ones with them byte by byte. Made with pyarrow 26.0.1 and numpy: python reference/cache.py
"""

import json
import pathlib

import pyarrow as pa
import pyarrow.ipc

here = pathlib.Path(__file__).parent
parts = []
for path in sorted((here / "cache").glob("part-*.arrow")):
    with pa.memory_map(str(path)) as file:
        before = pa.total_allocated_bytes()
        reader = pa.ipc.open_file(file)
        assert reader.num_record_batches == 1
        batch = reader.get_batch(0)
        batch.validate(full=True)
        columns = {}
        for field, column in zip(reader.schema, batch.columns):
            if isinstance(field.type, pa.FixedShapeTensorType):
                array = column.to_numpy_ndarray()
                # The columns lie in the map as they are, aligned.
                assert column.storage.flatten().buffers()[1].address % 64 == 0
                values = array.ravel().tolist()
                shape = list(array.shape[1:])
            else:
                assert column.buffers()[-1].address % 64 == 0
                values = [v.hex() if isinstance(v, bytes) else v for v in column.to_pylist()]
                shape = []
            metadata = {k.decode(): v.decode() for k, v in field.metadata.items()}
            columns[field.name] = {"type": str(field.type), "shape": shape, "field": metadata["fulmen.field"], "values": values}
        assert pa.total_allocated_bytes() - before < 1000, "pyarrow copied"
        metadata = {k.decode(): v.decode() for k, v in reader.schema.metadata.items()}
        parts.append({"rows": batch.num_rows, "metadata": metadata, "columns": columns})
(here / "cache.json").write_text(json.dumps({"pyarrow": pa.__version__, "parts": parts}, indent=1) + "\n")
