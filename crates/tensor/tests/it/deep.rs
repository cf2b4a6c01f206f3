//! A deep model with its derivatives, compiled for a TPU. As a scan, its program has one layer, and
//! with checkpoints it needs a fraction of the memory. Nothing runs.

#![allow(clippy::unwrap_used)] // a test helper may panic: that fails the test

use fulmen_pjrt::{CompileOptions, Effort, Plugin};
use fulmen_tensor::{DType, Function, Tensor, TensorType, checkpoint, grad, scan};

use crate::kept_answers::answer;

const LAYERS: usize = 6;
const WIDTH: usize = 256;
const HEADS: usize = 2;
const BATCH: usize = 8;
const TIME: usize = 256;

/// Attention and an MLP, with residual connections.
fn layer(x: &Tensor, w: &[Tensor]) -> Tensor {
    let [qkv, out, up, down] = w else { panic!("four weights") };
    let norm = |x: &Tensor| (x - x.mean_keepdim(-1)) * (x.var_keepdim(-1) + 1e-5).rsqrt();
    let heads = norm(x).matmul(qkv).reshape([BATCH, TIME, 3, HEADS, WIDTH / HEADS]);
    let [q, k, v] = [0, 1, 2].map(|i| heads.narrow(2, i, 1).squeeze(2).permute([0, 2, 1, 3]));
    let mixed = (q.matmul(&k.t()) * 0.1)
        .softmax(-1)
        .matmul(&v)
        .permute([0, 2, 1, 3])
        .reshape([BATCH, TIME, WIDTH]);
    let x = x + mixed.matmul(out);
    let hidden = norm(&x).matmul(up);
    &x + (&hidden * hidden.sigmoid()).matmul(down)
}

/// The gradients of the weights and the loss of all layers.
fn step(scanned: bool, checkpointed: bool) -> Function {
    let shapes = [[WIDTH, 3 * WIDTH], [WIDTH, WIDTH], [WIDTH, 4 * WIDTH], [4 * WIDTH, WIDTH]];
    let mut types = vec![TensorType::new(DType::Bf16, [BATCH, TIME, WIDTH])];
    types.extend(shapes.map(|[i, o]| TensorType::new(DType::Bf16, [LAYERS, i, o])));
    Function::trace("deep", &types, |p| {
        let run = |x: &Tensor, w: &[Tensor]| {
            if checkpointed { checkpoint(|(x, w)| layer(&x, &w), (x, w)) } else { layer(x, w) }
        };
        let weights: Vec<&Tensor> = p[1..].iter().collect();
        let last = if scanned {
            scan(&p[0], &weights, |x, w| (run(&x, &w), ())).0
        } else {
            let slices =
                |i: usize| weights.iter().map(|w| w.narrow(0, i, 1).squeeze(0)).collect::<Vec<_>>();
            (0..LAYERS).fold(p[0].clone(), |x, i| run(&x, &slices(i)))
        };
        let loss = (&last * &last).to_dtype(DType::F32).mean_all();
        let mut results = grad(&loss, &weights);
        results.push(loss);
        results
    })
}

fn options() -> CompileOptions {
    CompileOptions::new().optimization(Effort::O1)
}

/// The size of the temporary buffers, in bytes.
fn temp_bytes(plugin: &Plugin, function: &Function) -> f64 {
    let topology = plugin.topology("v5e:1x1").unwrap();
    let text = function.stablehlo().unwrap();
    let ask = || {
        let program = plugin.compile(&topology, &text, &options()).unwrap();
        Ok(program.memory_analysis().unwrap().temp_bytes.to_string())
    };
    answer("temp bytes", &topology, &text, &options(), ask).unwrap().parse().unwrap()
}

#[test]
fn a_scan_is_one_loop_forward_and_one_back() {
    let Some(plugin) = crate::libtpu::libtpu() else { return };
    let topology = plugin.topology("v5e:1x1").unwrap();
    let text = step(true, false).stablehlo().unwrap();
    let program = plugin.compile(&topology, &text, &options()).unwrap();
    let loops = program.hlo().unwrap().loops();
    let counts: Vec<_> = loops.iter().filter(|l| l.times == 1).map(|l| l.trip_count).collect();
    assert_eq!(counts, [Some(LAYERS as u64); 2], "{loops:?}");
    let source = loops[0].source.as_ref().unwrap();
    assert!(source.file.ends_with("deep.rs"), "{source:?}");
}

#[test]
fn checkpoints_save_memory_layer_by_layer_and_in_a_scan() {
    let Some(plugin) = crate::libtpu::libtpu() else { return };
    for scanned in [false, true] {
        let [kept, recomputed] =
            [false, true].map(|checkpointed| temp_bytes(&plugin, &step(scanned, checkpointed)));
        assert!(recomputed < 0.6 * kept, "scanned {scanned}: {recomputed} bytes instead of {kept}");
    }
}
