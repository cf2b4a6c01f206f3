//! libtpu compiles the kernels, without a TPU.

use fulmen_kernels::{FlashAttention, Index, Kernel, LinearCrossEntropy, rms_norm_residual};
use fulmen_pjrt::CompileOptions;
use fulmen_pjrt::locate::Platform;
use fulmen_tensor::{DType, Function, Mesh, Sharding, Tensor, TensorType, grad};

use crate::kept_answers::answer;
use crate::libtpu::libtpu;

const ONE: [&str; 1] = ["v5e:1x1"];
const ALL: [&str; 4] = ["v4:1x1x1", "v5e:1x1", "v5p:1x1x1", "v6e:1x1"];

/// Compiles a function, in which `kernels` kernels are, for these topologies of as many devices as the
/// mesh has. Returns the text.
fn compile(function: &Function, kernels: usize, topologies: &[&str], mesh: &Mesh) -> String {
    let text = function.stablehlo_on(Platform::Tpu, mesh).unwrap();
    assert_eq!(text.matches("custom_call @tpu_custom_call").count(), kernels);
    let Some(plugin) = libtpu() else { return text };
    for name in topologies {
        let topology = plugin.topology(name).unwrap();
        let options = CompileOptions::default().partitions(mesh.num_devices());
        let kept = answer("compiles", &topology, &text, &options, || {
            let compiled = plugin.compile(&topology, &text, &options);
            compiled.map(|_| String::new()).map_err(|error| error.to_string())
        });
        kept.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    text
}

fn one_device() -> Mesh {
    Mesh::new([("data", 1)]).unwrap()
}

fn attention(batch: usize, length: usize) -> Function {
    let q = TensorType::new(DType::Bf16, [batch, 4, length, 128]);
    let k = TensorType::new(DType::Bf16, [batch, 2, length, 128]);
    let ids = TensorType::new(DType::I32, [1, length]);
    let how = FlashAttention::new(0.1).causal(true).window(Some(700)).softcap(Some(30.0));
    Function::trace("attention", (q, k.clone(), k, ids), |(q, k, v, ids)| {
        let y = how.forward(&q, &k, &v, Some(&ids));
        let mut all = grad(&y.to_dtype(DType::F32).square().sum_all(), &[&q, &k, &v]);
        all.push(y);
        all
    })
}

fn norm() -> Function {
    let x = TensorType::new(DType::Bf16, [1000, 4096]);
    let weight = TensorType::new(DType::F32, [4096]);
    Function::trace("norm", (x.clone(), x, weight), |(x, residual, weight)| {
        let [norm, sum] = rms_norm_residual(&x, &residual, &weight, 1e-6);
        let loss = (norm.to_dtype(DType::F32).square() + sum.to_dtype(DType::F32)).sum_all();
        let mut all: Vec<Tensor> = grad(&loss, &[&x, &residual, &weight]);
        all.extend([norm, sum]);
        all
    })
}

/// The cross-entropy of a head, forward and backward.
fn loss(dtype: DType, groups: usize, tokens: usize, classes: usize, width: usize) -> Function {
    let x = TensorType::new(dtype, [groups, tokens, width]);
    let weight = TensorType::new(dtype, [classes, width]);
    let targets = TensorType::new(DType::I32, [groups, tokens]);
    let how = LinearCrossEntropy::new().softcap(Some(30.0));
    Function::trace("loss", (x, weight, targets), |(x, weight, targets)| {
        let sums = how.forward(&x, &weight, &targets);
        let losses = &sums.log_sum_exp - &sums.of_target * 0.9 - &sums.sum * 1e-6;
        let mut all = grad(&losses.sum_all(), &[x, weight]);
        all.push(losses);
        all
    })
}

/// A kernel without inputs.
fn filled() -> Function {
    Function::trace("filled", (), |()| {
        let kernel = Kernel::record("filled", &[4], |k| {
            let ty = TensorType::new(DType::F32, [32, 128]);
            let y = k.output(&ty, &[8, 128], [k.program(0), Index::from(0)]);
            y.store(&k.full(DType::F32, [8, 128], 2.0));
        });
        kernel.unwrap().call(&[] as &[Tensor])
    })
}

#[test]
fn libtpu_compiles_the_kernels() {
    compile(&filled(), 1, &ONE, &one_device());
    compile(&loss(DType::Bf16, 1, 1500, 50_257, 768), 3, &ONE, &one_device());
    compile(&attention(1, 1500), 3, &ONE, &one_device());
    compile(&norm(), 2, &ONE, &one_device());
}

#[test]
#[ignore = "half a minute: cargo test -p fulmen-kernels --test it every_generation -- --ignored"]
fn libtpu_compiles_the_kernels_for_every_generation() {
    compile(&loss(DType::Bf16, 1, 8192, 128_256, 4096), 3, &ALL, &one_device());
    compile(&attention(1, 1500), 3, &ALL, &one_device());
    compile(&norm(), 2, &ALL, &one_device());
}

/// What `auto` of `fulmen_nn`'s attention takes on an approved TPU.
#[test]
#[ignore = "two minutes: cargo test -p fulmen-kernels --test it of_every_width -- --ignored"]
fn libtpu_compiles_attention_of_every_width_that_auto_takes() {
    for (dtype, width, length) in [DType::F32, DType::Bf16].into_iter().flat_map(|dtype| {
        [(1, 128), (8, 130), (64, 1500), (80, 1500), (128, 200), (256, 1500)]
            .map(|(width, length)| (dtype, width, length))
    }) {
        let x = TensorType::new(dtype, [2, 2, length, width]);
        let function = Function::trace("attention", (x.clone(), x.clone(), x), |(q, k, v)| {
            let y = FlashAttention::new(0.1).causal(true).forward(&q, &k, &v, None);
            let mut all = grad(&y.to_dtype(DType::F32).square().sum_all(), &[&q, &k, &v]);
            all.push(y);
            all
        });
        compile(&function, 3, &ALL, &one_device());
    }
}

#[test]
#[ignore = "minutes: cargo test -p fulmen-kernels --test it heads_of_every_width -- --ignored"]
fn libtpu_compiles_the_loss_of_heads_of_every_width_that_auto_takes() {
    for (dtype, widest) in [(DType::Bf16, 8192), (DType::F32, 4096)] {
        for (tokens, classes, width) in [
            (128, 1000, 8),
            (200, 50_257, 768),
            (1000, 32_000, 1000),
            (4096, 151_936, 2048),
            (4096, 128_256, 1280),
            (4096, 128_256, widest / 2),
            (4096, 128_256, widest),
        ] {
            compile(&loss(dtype, 1, tokens, classes, width), 3, &ALL, &one_device());
        }
    }
}

#[test]
fn devices_share_the_groups_of_a_loss() {
    let mesh = Mesh::new([("data", 2), ("fsdp", 2)]).unwrap();
    let sharding = Sharding::over([vec!["data", "fsdp"]]);
    let split = [0, 2].into_iter().fold(loss(DType::Bf16, 4, 512, 1024, 256), |function, i| {
        function.shard_parameter(i, sharding.clone())
    });
    let text = compile(&split, 3, &["v5e:2x2"], &mesh);
    assert_eq!(text.matches("sdy.manual_computation").count(), 3);
    // The parts of the gradient of the weight.
    assert!(text.contains("-> tensor<1x1024x256xbf16>"), "{text}");
}

#[test]
fn devices_share_the_sequences_of_a_batch() {
    let mesh = Mesh::new([("data", 2), ("fsdp", 2)]).unwrap();
    let function = attention(8, 512);
    let sharding = Sharding::over([vec!["data", "fsdp"]]);
    let split = (0..3).fold(function, |function, i| function.shard_parameter(i, sharding.clone()));
    let text = compile(&split, 3, &["v5e:2x2"], &mesh);
    assert_eq!(text.matches("sdy.manual_computation").count(), 3);
    assert!(text.contains(": tensor<2x4x512x128xbf16>, "), "{text}");
    let whole = attention(2, 512).stablehlo_on(Platform::Tpu, &mesh).unwrap();
    assert!(!whole.contains("sdy.manual_computation"));
}
