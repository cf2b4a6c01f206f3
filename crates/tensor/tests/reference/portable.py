"""Serializes each program of a folder as a portable artifact of StableHLO 1.4.0.

    python portable.py FOLDER
"""

import pathlib
import sys

from jax._src.interpreters import mlir
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import stablehlo

VERSION = "1.4.0"

stablehlo.register_stablehlo_passes()
failures = []
files = sorted(pathlib.Path(sys.argv[1]).iterdir())
for file in files:
    text = file.read_text()
    with mlir.make_ir_context() as context:
        try:
            module = ir.Module.parse(text, context)
            # CHLO is not part of portable artifacts.
            pipeline = "builtin.module(func.func(chlo-legalize-to-stablehlo))"
            passmanager.PassManager.parse(pipeline).run(module.operation)
            stablehlo.serialize_portable_artifact(module, VERSION)
        except Exception as error:
            failures.append(f"{text}\n{error}")
if failures:
    sys.exit("\n\n".join(failures))
print(f"{len(files)} programs")
