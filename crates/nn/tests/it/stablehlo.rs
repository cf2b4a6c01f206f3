//! Exported programs: saved, loaded, run again, and run by JAX and IREE.

use std::path::{Path, PathBuf};
use std::process::Command;

use fulmen_nn::stablehlo::{ExportedProgram, to_stablehlo};
use fulmen_nn::{
    BatchNorm2d, Conv2d, Dropout, Gru, Linear, Module, TrainingMode, Visit, Visitor, activation,
    safetensors,
};
use fulmen_tensor::{Accelerator, DType, Devices, Literal, Runtime, Tensor, TensorType};

use super::common::set_simple_values;

/// A network with running statistics, dropout, a weight that `forward` does not use, and a constant
/// of more than 1 KiB.
#[derive(Module)]
struct Net {
    conv: Conv2d,
    bn: BatchNorm2d,
    dropout: Dropout,
    fc: Linear,
    unused: Linear,
}

impl Net {
    fn new() -> Net {
        let net = Net {
            conv: Conv2d::new(1, 4, 3).padding(1),
            bn: BatchNorm2d::new(4),
            dropout: Dropout::new(0.5),
            fc: Linear::new(4 * 8 * 8, 3),
            unused: Linear::new(2, 2),
        };
        set_simple_values(&net);
        for (name, buffer) in net.buffers() {
            if name.contains("running") {
                buffer.set(Tensor::from_slice(&[0.5f32, 2.0, 1.5, 1.0], [4]));
            }
        }
        net
    }

    fn forward(&self, x: &Tensor, scale: &Tensor) -> Vec<Tensor> {
        let h = activation::gelu(&self.bn.forward(&self.conv.forward(x)));
        let pattern: Vec<f32> = (0..512).map(|i| (i % 7) as f32 / 8.0).collect();
        let h = self.dropout.forward(&h.flatten(1, -1))
            + Tensor::from_slice(&pattern, [2, 256]) * scale;
        let logits = self.fc.forward(&h);
        let best = logits.argmax(-1);
        vec![logits.softmax(-1), best]
    }
}

/// Whether each switch of the network is in training mode.
fn modes(net: &Net) -> Vec<bool> {
    struct Modes(Vec<bool>);
    impl Visitor for Modes {
        fn mode(&mut self, _: &str, mode: &TrainingMode) {
            self.0.push(mode.is_training());
        }
    }
    let mut modes = Modes(Vec::new());
    net.visit(&mut Visit::new(&mut modes));
    modes.0
}

fn inputs() -> [(&'static str, TensorType); 2] {
    [
        ("image", TensorType::new(DType::F32, [2, 1, 8, 8])),
        ("scale", TensorType::scalar(DType::F32)),
    ]
}

fn values() -> [Literal; 2] {
    let image: Vec<f32> = (0..128).map(|i| ((i * 29) % 17) as f32 / 8.0 - 1.0).collect();
    [
        Literal::from_slice(&image, [2, 1, 8, 8]).unwrap(),
        Literal::from_slice(&[0.5f32], []).unwrap(),
    ]
}

fn export(net: &Net) -> ExportedProgram {
    to_stablehlo(net, &inputs(), |x| net.forward(&x[0], &x[1])).unwrap()
}

fn runtime() -> Runtime {
    Runtime::open(Accelerator::Cpu, &Devices::from(1)).unwrap()
}

fn run(program: &ExportedProgram) -> Vec<Literal> {
    let [image, scale] = values();
    program.compile(&runtime()).unwrap().call(&[&image, &scale]).unwrap()
}

#[test]
fn a_saved_program_computes_the_same_when_it_is_loaded() {
    let net = Net::new();
    let program = export(&net);
    assert!(modes(&net) == [true, true], "the modes are restored");
    let names: Vec<&str> = program.weights().iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "conv.weight",
            "conv.bias",
            "bn.weight",
            "bn.bias",
            "fc.weight",
            "fc.bias",
            "bn.running_mean",
            "bn.running_var",
            "constant.0"
        ]
    );
    assert!(!program.text().contains("loc("), "the text has no lines of the source");
    assert!(!program.text().contains("custom_call"));

    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("net");
    program.save(&folder).unwrap();
    let loaded = ExportedProgram::load(&folder).unwrap();
    assert_eq!(
        (loaded.text(), loaded.inputs()),
        (program.text(), &inputs().map(|(n, t)| (n.to_owned(), t))[..])
    );
    let [image, scale] = values();
    net.eval();
    let direct = runtime().eval_many(&net.forward(&image.to_tensor(), &scale.to_tensor())).unwrap();
    for outputs in [run(&program), run(&loaded)] {
        assert_eq!(outputs.len(), 2);
        assert_eq!(outputs[1].to_vec::<i32>().unwrap(), direct[1].to_vec::<i32>().unwrap());
        for (actual, expected) in outputs[0].to_f64().into_iter().zip(direct[0].to_f64()) {
            assert!((actual - expected).abs() < 1e-6, "{actual} is not {expected}");
        }
    }
    assert!(program.save(&folder).unwrap_err().to_string().contains("not empty"));
    let compiled = loaded.compile(&runtime()).unwrap();
    let wrong = compiled.call(&[&scale, &image]).err().unwrap().to_string();
    assert!(wrong.contains("argument 0 must be f32[2, 1, 8, 8], but is f32[]"), "{wrong}");
    let two = Runtime::open(Accelerator::Cpu, &Devices::from(2)).unwrap();
    let error = loaded.compile(&two).err().unwrap().to_string();
    assert!(error.contains("compiled for one device, but the runtime has 2"), "{error}");
}

#[test]
fn mistakes_have_the_users_line_and_leave_the_module_as_it_was() {
    let layer = Linear::new(3, 2);
    let x = || [("x", TensorType::new(DType::F32, [4, 3]))];
    let export = |layer: &Linear| to_stablehlo(layer, &x(), |x| vec![layer.forward(&x[0])]);
    let line = line!() - 1;
    let error = export(&layer).unwrap_err();
    assert!(error.to_string().contains("`weight` has no value to save"), "{error}");
    assert_eq!(error.location().unwrap().line(), line);
    assert!(!layer.weight.is_set());

    set_simple_values(&layer);
    let error = to_stablehlo(&layer, &x(), |x| vec![layer.forward(&x[0].t())]).unwrap_err();
    let line = line!() - 1;
    assert!(error.fault().is_some(), "{error}");
    assert_eq!(error.location().unwrap().line(), line);
    assert!(layer.weight.get().depends_on(&layer.weight.get()) && layer.weight.is_set());
    assert!(export(&layer).is_ok());

    let refused = |inputs: &[(&str, TensorType)], results: usize| {
        let forward = |x: &[Tensor]| vec![x[0].clone(); results];
        to_stablehlo(&layer, inputs, forward).unwrap_err().to_string()
    };
    assert!(refused(&[x(), x()].concat(), 1).contains("two inputs are named `x`"));
    assert!(refused(&x(), 0).contains("the program has no result"));
}

#[test]
fn weights_that_only_a_loop_uses_are_parameters() {
    let gru = Gru::new(3, 2);
    set_simple_values(&gru);
    let x = TensorType::new(DType::F32, [5, 4, 3]);
    let program = to_stablehlo(&gru, &[("x", x)], |x| {
        let (y, _) = gru.forward(&x[0], None);
        vec![y]
    });
    let program = program.unwrap();
    assert_eq!(program.weights().len(), gru.parameters().len());
    assert!(program.text().contains("stablehlo.while"));
}

/// A small saved program, and its folder.
fn saved(parent: &Path) -> PathBuf {
    let layer = Linear::new(3, 2);
    set_simple_values(&layer);
    let x = TensorType::new(DType::F32, [4, 3]);
    let program = to_stablehlo(&layer, &[("x", x)], |x| vec![layer.forward(&x[0])]).unwrap();
    let folder = parent.join("linear");
    program.save(&folder).unwrap();
    folder
}

/// Changes a file of a saved program, and gives it the right checksum.
fn change(folder: &Path, file: &str, from: &str, to: &str) {
    let path = folder.join(file);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{text}");
    std::fs::write(&path, text.replacen(from, to, 1)).unwrap();
    let crc = |text: &str| format!("{:08x}", crc32c::crc32c(text.as_bytes()));
    if file == "forward.mlir" {
        let description = folder.join("forward.json");
        let json = std::fs::read_to_string(&description).unwrap();
        let new = crc(&text.replacen(from, to, 1));
        std::fs::write(&description, json.replace(&crc(&text), &new)).unwrap();
    }
}

#[test]
fn a_damaged_or_forged_folder_is_an_error() {
    let refused = |damage: &dyn Fn(&Path), expected: &str| {
        let parent = tempfile::tempdir().unwrap();
        let folder = saved(parent.path());
        damage(&folder);
        let loaded = ExportedProgram::load(&folder).and_then(|p| p.compile(&runtime()));
        let error = loaded.err().unwrap_or_else(|| panic!("{expected}: accepted")).to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    };
    for file in ["forward.mlir", "forward.json", "weights.safetensors"] {
        refused(&|folder| std::fs::remove_file(folder.join(file)).unwrap(), file);
        refused(&|folder| std::fs::write(folder.join(file), "").unwrap(), file);
        refused(
            &|folder| {
                let path = folder.join(file);
                let mut bytes = std::fs::read(&path).unwrap();
                let last = bytes.len() - 2;
                bytes[last] ^= 0x40;
                std::fs::write(path, bytes).unwrap();
            },
            "not a valid",
        );
    }
    let json = |from: &'static str, to: &'static str| {
        move |folder: &Path| change(folder, "forward.json", from, to)
    };
    refused(&json("\"version\": 1", "\"version\": 2"), "it has version 2, expected 1");
    refused(&json("fulmen-stablehlo", "other"), "`format` must be");
    refused(&json("\"weight\"", "\"../weight\""), "it has no tensor `../weight`");
    refused(&json("\"f32\"", "\"f33\""), "must have a dtype and a shape");
    refused(
        &|folder| {
            let path = folder.join("forward.json");
            let text =
                std::fs::read_to_string(&path).unwrap().replace("[\n        4,", "[\n        5,");
            std::fs::write(path, text).unwrap();
        },
        "its parameters are [f32[4, 3]; f32[2, 3]; f32[2]], expected [f32[5, 3]; f32[2, 3]; f32[2]]",
    );
    let mlir = |from: &'static str, to: &'static str| {
        move |folder: &Path| change(folder, "forward.mlir", from, to)
    };
    refused(&mlir("tensor<4x3xf32>", "tensor<?x3xf32>"), "every dimension must be a number");
    refused(&mlir("stablehlo.dot_general", "stablehlo.dot_particular"), "dot_particular");
    refused(
        &mlir("stablehlo.dot_general", "stablehlo.custom_call @steal"),
        "line 4: a custom call of steal, which is not portable",
    );
}

/// Compares the results of JAX and IREE with those of Fulmen.
#[test]
#[ignore = "needs Python: pip install jax safetensors ml_dtypes iree-base-compiler iree-base-runtime; FULMEN_TEST_STABLEHLO=python cargo test -p fulmen-nn --test it -- --ignored jax_and_iree"]
fn jax_and_iree_run_an_exported_program() {
    let python = std::env::var("FULMEN_TEST_STABLEHLO").expect("FULMEN_TEST_STABLEHLO: a Python");
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("net");
    let program = export(&Net::new());
    program.save(&folder).unwrap();
    let [image, scale] = values();
    let mut tensors: Vec<(String, Literal)> =
        vec![("image".to_owned(), image), ("scale".to_owned(), scale)];
    for (i, result) in run(&program).into_iter().enumerate() {
        tensors.push((format!("result.{i}"), result));
    }
    let file = parent.path().join("values.safetensors");
    safetensors::write(&file, &tensors, &Default::default()).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/stablehlo.py");
    let output = Command::new(python).arg(script).arg(&folder).arg(&file).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    for line in
        ["portable artifact of StableHLO 1.4.0", "JAX: 2 results agree", "IREE: 2 results agree"]
    {
        assert!(text.contains(line), "no “{line}” in:\n{text}");
    }
}
