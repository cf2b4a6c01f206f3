"""Runs an exported program with JAX and with IREE, and compares the results with Fulmen's.

    python stablehlo.py FOLDER VALUES

FOLDER is what ExportedProgram::save wrote. VALUES is a safetensors file with the inputs under their
names, and Fulmen's results as result.0, result.1 and so on. Also turns the text into a portable
artifact of the version of StableHLO that forward.json names.
"""

import json
import pathlib
import sys

import numpy as np
from safetensors.numpy import load_file

folder, values = pathlib.Path(sys.argv[1]), load_file(sys.argv[2])
description = json.loads((folder / "forward.json").read_text())
text = (folder / description["program"]).read_text()
weights = load_file(folder / description["weights_file"])
arguments = [values[given["name"]] for given in description["inputs"]]
arguments += [weights[given["name"]] for given in description["weights"]]
expected = [values[f"result.{i}"] for i in range(len(description["results"]))]


def compare(name, results):
    assert len(results) == len(expected), (name, len(results))
    for result, other in zip(results, expected):
        assert result.shape == other.shape and result.dtype == other.dtype, (name, result, other)
        np.testing.assert_allclose(result, other, rtol=1e-4, atol=1e-5, err_msg=name)
    print(f"{name}: {len(results)} results agree")


def portable_artifact():
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir, passmanager
    from jaxlib.mlir.dialects import stablehlo

    stablehlo.register_stablehlo_passes()
    version = description["stablehlo_version"]
    with mlir.make_ir_context() as context:
        module = ir.Module.parse(text, context)
        # CHLO, the operations of StableHLO that are written in terms of others, is not part of
        # portable artifacts.
        pipeline = "builtin.module(func.func(chlo-legalize-to-stablehlo))"
        passmanager.PassManager.parse(pipeline).run(module.operation)
        artifact = stablehlo.serialize_portable_artifact(module, version)
        stablehlo.deserialize_portable_artifact(context, artifact)
    print(f"portable artifact of StableHLO {version}: {len(artifact)} bytes")


def jax():
    import jax
    from jax._src.interpreters import mlir
    from jaxlib import xla_client
    from jaxlib.mlir import ir

    backend = jax.devices("cpu")[0].client
    devices = xla_client.DeviceList(tuple(backend.local_devices()[:1]))
    with mlir.make_ir_context() as context:
        module = mlir.module_to_bytecode(ir.Module.parse(text, context))
    program = backend.compile_and_load(module, devices, xla_client.CompileOptions())
    with jax.enable_x64(True):
        given = [jax.device_put(argument, backend.local_devices()[0]) for argument in arguments]
        results = program.execute_sharded(given).disassemble_into_single_device_arrays()
    compare("JAX", [np.asarray(result[0]) for result in results])


def iree():
    from iree import compiler, runtime

    program = compiler.compile_str(
        text, target_backends=["llvm-cpu"], input_type="stablehlo", extra_args=["--iree-llvmcpu-target-cpu=host"]
    )
    config = runtime.Config("local-task")
    module = runtime.load_vm_module(runtime.VmModule.copy_buffer(config.vm_instance, program), config)
    results = module.main(*arguments)
    results = results if isinstance(results, (list, tuple)) else [results]
    compare("IREE", [result.to_host() for result in results])


portable_artifact()
jax()
iree()
