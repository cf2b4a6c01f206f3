//! The common parts of the tests: the CPU plugin, its clients, and small programs.
#![allow(dead_code, unused_imports, reason = "each test file uses some of it")]

mod libtpu;

use fulmen_pjrt::locate::{Platform, locate};
use fulmen_pjrt::{
    Argument, Buffer, Client, CompileOptions, ElementType, Execution, LoadedExecutable, Plugin,
};

pub(crate) use libtpu::libtpu;

/// The CPU plugin that a user would get.
pub(crate) fn plugin() -> Plugin {
    Plugin::load(locate(Platform::Cpu, None).unwrap()).unwrap()
}

/// A client with this number of devices.
pub(crate) fn client(devices: i64) -> Client {
    plugin().create_client(&[("cpu_device_count", devices.into())]).unwrap()
}

/// The bytes of floats.
pub(crate) fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

/// The floats in bytes.
pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|chunk| f32::from_ne_bytes(chunk.try_into().unwrap())).collect()
}

/// Puts floats on the client's device with this index.
pub(crate) fn put(client: &Client, values: &[f32], device: usize) -> Buffer {
    let device = &client.devices()[device];
    client.buffer_from_host(&bytes(values), ElementType::F32, &[values.len()], device).unwrap()
}

/// The floats of a buffer.
pub(crate) fn get(buffer: &Buffer) -> Vec<f32> {
    floats(&buffer.read().unwrap().wait().unwrap())
}

/// Compiles for one device.
pub(crate) fn compile(client: &Client, mlir: &str) -> LoadedExecutable {
    client.compile(mlir, &CompileOptions::new()).unwrap()
}

/// Runs on one device.
pub(crate) fn run(program: &LoadedExecutable, arguments: Vec<Argument<'_>>) -> Execution {
    program.execute(vec![arguments]).unwrap()
}

/// `x + 1` over `f32[4]`, with an attribute on the argument.
pub(crate) fn increment(attribute: &str) -> String {
    format!(
        "func.func public @main(%x: tensor<4xf32> {attribute}) -> tensor<4xf32> {{
           %one = stablehlo.constant dense<1.0> : tensor<4xf32>
           %y = stablehlo.add %x, %one : tensor<4xf32>
           return %y : tensor<4xf32>
         }}"
    )
}

/// The sum of `f32[4]` over `n` replicas.
pub(crate) fn all_reduce(n: usize) -> String {
    let ids = (0..n).map(|id| id.to_string()).collect::<Vec<_>>().join(", ");
    format!(
        "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
           %sum = \"stablehlo.all_reduce\"(%x) <{{
             replica_groups = dense<[[{ids}]]> : tensor<1x{n}xi64>
           }}> ({{
             ^bb0(%a: tensor<f32>, %b: tensor<f32>):
               %c = stablehlo.add %a, %b : tensor<f32>
               stablehlo.return %c : tensor<f32>
           }}) : (tensor<4xf32>) -> tensor<4xf32>
           return %sum : tensor<4xf32>
         }}"
    )
}

/// Fails unless the message contains every part.
pub(crate) fn says(error: &fulmen_pjrt::Error, parts: &[&str]) {
    for part in parts {
        assert!(
            error.to_string().contains(part),
            "the message {:?} lacks {part:?}",
            error.to_string()
        );
    }
}

/// A shared object compiled from C.
pub(crate) fn shared_object(
    folder: &std::path::Path,
    name: &str,
    source: &str,
) -> std::path::PathBuf {
    let c = folder.join(format!("{name}.c"));
    let so = folder.join(format!("{name}.so"));
    std::fs::write(&c, source).unwrap();
    let built = std::process::Command::new("cc")
        .args(["-shared", "-fPIC", "-fexceptions", "-o"])
        .args([&so, &c])
        .status()
        .unwrap();
    assert!(built.success());
    so
}

/// Runs the test `name` of this binary again in a new process, with `variables` and
/// `FULMEN_TEST_CHILD`. Returns its output and error output, and fails if it fails.
pub(crate) fn in_child(name: &str, variables: &[(&str, &str)]) -> String {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture"]).env("FULMEN_TEST_CHILD", "1");
    for (variable, value) in variables {
        command.env(variable, value);
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "the child failed ({}):\n{text}",
        output.status
    );
    text
}

/// Whether this is a process that `in_child` started.
pub(crate) fn is_child() -> bool {
    std::env::var_os("FULMEN_TEST_CHILD").is_some()
}
