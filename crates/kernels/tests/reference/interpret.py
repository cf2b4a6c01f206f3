"""Interprets kernels that the tests wrote, and compares the results with those of the other form.

    pip install jax numpy
    python interpret.py FOLDER

jaxlib reads the Mosaic text of a kernel. Each step then runs as on a TPU: blocks are copied to vector memory by the
kernel's own index maps, and an output's block is copied back when the next step has another one. Memory that was never
written is NaN. FOLDER has a file NAME.json for each kernel: `module`, and `inputs` and `outputs` with `dtype`, `shape` and
`values`; the tables are the first inputs.
"""

import json
import re
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
from jax._src.interpreters import mlir
from jax._src.lib import tpu
from jax._src.lib.mlir import ir

PREFIX = "stable_mosaic."
DTYPES = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "i32": np.int32, "i1": np.bool_, "index": np.int64}
TOLERANCES = {"f32": 1e-5, "bf16": 2e-2}


def dtype_of(ty):
    return DTYPES[re.search(r"(bf16|f32|i32|i1|index)>?$", str(ty))[1]]


def shape_of(ty):
    return tuple(ty.shape) if isinstance(ty, ir.VectorType) else ()


def numbers(attribute):
    """The numbers of `array<i64: 1, 2>`."""
    return [int(word) for word in str(attribute).split(":")[1].rstrip(">").split(",")]


def constant(op):
    ty = op.results[0].type
    value = op.attributes["value"]
    if isinstance(value, ir.DenseElementsAttr):
        return np.full(shape_of(ty), value.get_splat_value().value, dtype_of(ty))
    return dtype_of(ty)(value.value)


COMPARISONS = {
    "arith.cmpi": {0: np.equal, 2: np.less, 3: np.less_equal},
    "arith.cmpf": {1: np.equal, 4: np.less, 5: np.less_equal},
}
BINARY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "maximum": np.maximum,
    "max": np.maximum,
    "and": np.logical_and,
}
UNARY = {"math.exp": np.exp, "math.log": np.log, "math.tanh": np.tanh, "math.rsqrt": lambda x: 1 / np.sqrt(x)}


def matmul(op, left, right, start):
    words = str(op.attributes["dimension_numbers"]).split("[")[1:3]
    axes = [int(word.split("]")[0]) for word in words]
    product = np.tensordot(left.astype(np.float32), right.astype(np.float32), (axes[0], axes[1]))
    return product.astype(start.dtype) + start


def reduce(op, x, start):
    axis = numbers(op.attributes["reduction_dims"])[0]
    is_sum = "add" in str(op.attributes["kind"])
    return np.add(x.sum(axis), start) if is_sum else np.maximum(x.max(axis), start)


def compute(op, name, args):
    """The value of an operation without regions and effects."""
    ty = op.results[0].type
    if name == "arith.constant":
        return constant(op)
    if name in COMPARISONS:
        return COMPARISONS[name][op.attributes["predicate"].value](*args)
    if name in UNARY:
        return UNARY[name](args[0]).astype(args[0].dtype)
    if name in ("arith.extf", "arith.truncf", "arith.index_cast"):
        return np.asarray(args[0]).astype(dtype_of(ty))
    if name in ("arith.divsi", "arith.remsi"):
        return (args[0] // args[1]) if name == "arith.divsi" else (args[0] % args[1])
    if name == "arith.divf":
        return args[0] / args[1]
    if name == "arith.select":
        return np.where(*args)
    if name == "memref.load":
        return args[0][int(args[1])]
    if name == "tpu.iota":
        shape = shape_of(ty)
        axis = numbers(op.attributes["dimensions"])[0]
        along = np.arange(shape[axis], dtype=np.int32)
        return np.broadcast_to(along.reshape([-1 if i == axis else 1 for i in range(len(shape))]), shape)
    if name == "tpu.transpose":
        return args[0].T
    if name == "tpu.matmul":
        return matmul(op, *args)
    if name == "vector.load":
        return args[0].copy()
    if name == "vector.broadcast":
        return np.broadcast_to(args[0], shape_of(ty))
    if name == "vector.shape_cast":
        return args[0].reshape(shape_of(ty))
    if name == "vector.multi_reduction":
        return reduce(op, *args)
    kind = name.removeprefix("arith.").removesuffix("f").removesuffix("i").removesuffix("s")
    return BINARY[kind](*args)


def run(block, values):
    """Runs the operations of a block, and returns the values that it returns."""
    for op in block.operations:
        op = op.operation
        name = op.name.removeprefix(PREFIX)
        args = [values[operand] for operand in op.operands]
        if name in ("func.return", "scf.yield"):
            return args
        if name == "tpu.vector_store":
            args[1][...] = args[0]
        elif name == "scf.if":
            run(op.regions[0 if args[0] else 1].blocks[0], values)
        else:
            values[op.results[0]] = compute(op, name, args)


def unset(shape, dtype):
    return np.zeros(shape, dtype) if np.dtype(dtype).kind == "i" else np.full(shape, np.nan, dtype)


def call(module, inputs, outputs):
    """Runs a kernel over its grid. `outputs` are filled."""
    functions = {op.attributes["sym_name"].value: op.operation.regions[0].blocks[0] for op in module.body.operations}
    main = next(op for op in module.body.operations if op.attributes["sym_name"].value == "main").attributes
    tables = main["scalar_prefetch"].value
    windows = [numbers(window["window_bounds"]) for window in main["window_params"]]
    arrays = inputs[tables:] + outputs
    body = functions["main"]
    first_scratch = len(body.arguments) - main["scratch_operands"].value
    grid = numbers(main["iteration_bounds"])
    scratch = [argument.type for argument in list(body.arguments)[first_scratch:]]
    scratch = [unset(ty.shape, dtype_of(ty.element_type)) for ty in scratch]
    held = [None] * len(arrays)
    buffers = [None] * len(arrays)

    def write_back(number):
        if number >= len(arrays) - len(outputs) and held[number] is not None:
            arrays[number][held[number]] = buffers[number]

    for position in np.ndindex(*grid):
        common = [np.int32(p) for p in position] + inputs[:tables]
        for number, bounds in enumerate(windows):
            transform = functions[f"transform_{number}"]
            blocks = run(transform, dict(zip(transform.arguments, common)))
            place = tuple(slice(int(b) * size, (int(b) + 1) * size) for b, size in zip(blocks, bounds))
            if place != held[number]:
                write_back(number)
                held[number] = place
                is_output = number >= len(arrays) - len(outputs)
                dtype = arrays[number].dtype
                buffers[number] = unset(bounds, dtype) if is_output else arrays[number][place].copy()
                assert buffers[number].shape == tuple(bounds), (number, place)
        run(body, dict(zip(body.arguments, common + buffers + scratch)))
    for number in range(len(arrays)):
        write_back(number)


def array(value):
    return np.array(value["values"], np.float64).reshape(value["shape"]).astype(DTYPES[value["dtype"]])


def main():
    context = mlir.make_ir_context()
    tpu.register_dialect(context)
    context.allow_unregistered_dialects = True
    failed = 0
    for path in sorted(Path(sys.argv[1]).glob("*.json")):
        case = json.loads(path.read_text())
        with context:
            module = ir.Module.parse(case["module"])
            outputs = [unset(value["shape"], DTYPES[value["dtype"]]) for value in case["outputs"]]
            call(module, [array(value) for value in case["inputs"]], outputs)
        for number, (ours, value) in enumerate(zip(outputs, case["outputs"])):
            expected = array(value).astype(np.float64)
            worst = np.abs(ours.astype(np.float64) - expected).max() / max(1e-3, np.abs(expected).max())
            is_close = worst <= TOLERANCES[value["dtype"]]
            failed += not is_close
            print(f"{path.stem} output {number}: {worst:.1e}{'' if is_close else ' DIFFERS'}")
    sys.exit(1 if failed else 0)


main()
