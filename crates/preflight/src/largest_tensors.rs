//! Finds the largest tensors of a recorded step, with the user's lines: where to look when a step
//! does not fit. This is an estimate from the recorded program, because a program that does not fit
//! is not compiled.

use std::collections::BTreeMap;
use std::fmt;

use fulmen_durable::messages::{grouped, memory};
use fulmen_tensor::{RecordedOp, TensorType};

use crate::Step;
use crate::lifetimes::{Lifetime, is_passed_on, lifetimes};
use crate::splits::{OpSplits, Split, splits};

/// Equal tensors from one line.
#[derive(Clone, Debug, PartialEq)]
pub struct LargeTensor {
    /// The name of a parameter, or the operation that makes the tensor.
    pub name: String,
    /// The type of the whole tensor, over all devices.
    pub ty: TensorType,
    /// The number of such tensors.
    pub count: u64,
    /// The size of one of them on one device, in bytes.
    pub device_bytes: u64,
    /// The user's line that recorded the tensor, or for a parameter, the first line that uses it.
    pub source: String,
}

impl LargeTensor {
    /// The size of all of them on one device, in bytes.
    pub fn total_bytes(&self) -> u64 {
        self.device_bytes.saturating_mul(self.count)
    }
}

impl fmt::Display for LargeTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LargeTensor { name, ty, count, source, .. } = self;
        let count = grouped(*count as f64);
        write!(f, "{:>10}  {count} × {ty} {name}  at {source}", memory(self.total_bytes()))
    }
}

/// The `limit` largest groups of tensors that are in memory at the same time, the largest first. They
/// are estimated from the recorded operations, also those of loops and branches. Operations recorded
/// in internal files are the optimizer's arithmetic, which needs no additional memory.
///
/// ```
/// use fulmen_preflight::{Step, largest_tensors};
/// use fulmen_tensor::{DType, Function, Mesh, TensorType};
///
/// let types = [[64, 16], [16, 512]].map(|shape| TensorType::new(DType::F32, shape));
/// let product = Function::trace("product", types, |[x, w]| x.matmul(&w).sum_all());
/// let step = Step::new(&product, &Mesh::new([("data", 1)])?)?;
/// let largest = &largest_tensors(&step, 3)[0];
/// assert_eq!((largest.name.as_str(), largest.total_bytes()), ("matmul", 64 * 512 * 4));
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
pub fn largest_tensors(step: &Step, limit: usize) -> Vec<LargeTensor> {
    let recorded = &step.recorded;
    let splits = splits(recorded, &step.mesh, &|parameter| {
        let (sharding, ty) = step.parameters.get(parameter)?;
        Some(Split::new(sharding, &step.mesh, ty.shape.rank()))
    });
    // The lifetimes of the tensors in each group.
    let mut groups: BTreeMap<(String, String, u64), (TensorType, Vec<Lifetime>)> = BTreeMap::new();
    for lifetime in lifetimes(recorded, &splits, &step.mesh) {
        if (step.is_internal)(lifetime.source.file()) {
            continue;
        }
        let key = (lifetime.name.to_owned(), lifetime.source.to_string(), lifetime.device_bytes);
        let group = groups.entry(key).or_insert_with(|| (lifetime.ty.clone(), Vec::new()));
        group.1.push(lifetime);
    }
    let mut tensors = parameters(step, &splits);
    for ((name, source, device_bytes), (ty, lifetimes)) in groups {
        tensors.push(LargeTensor {
            name,
            ty,
            count: most_at_once(&lifetimes),
            device_bytes,
            source,
        });
    }
    tensors.sort_by_key(|tensor| std::cmp::Reverse(tensor.total_bytes()));
    tensors.truncate(limit);
    // Leave out tensors a thousand times smaller than the largest: without them, the step would not
    // fit either.
    let threshold = tensors.first().map_or(0, |tensor| tensor.total_bytes() / 1000);
    tensors.retain(|tensor| tensor.total_bytes() > threshold);
    tensors
}

/// The parameters and the constant values of a step, which are in memory all the time.
fn parameters(step: &Step, splits: &[OpSplits]) -> Vec<LargeTensor> {
    let recorded = &step.recorded;
    let uses: BTreeMap<&str, String> = (recorded.iter().enumerate())
        .filter_map(|(i, value)| Some((value.name.as_deref()?, first_use(step, recorded, i)?)))
        .collect();
    let mut tensors: Vec<LargeTensor> = Vec::new();
    for (value, split) in recorded.iter().zip(splits).filter(|(v, _)| v.operation.is_none()) {
        let (name, line) = match &value.name {
            Some(name) => {
                // Optimizer state is named after its parameter.
                let parameter = (step.parameter_of)(name);
                let line = uses.get(name.as_str()).or_else(|| uses.get(parameter?));
                (name.clone(), line.cloned())
            }
            None if (step.is_internal)(value.location.file()) => continue,
            None => ("constant value".to_owned(), None),
        };
        let ty = value.types[0].clone();
        let device_bytes = split.results[0].bytes(&ty, &step.mesh);
        let source = line.unwrap_or_else(|| value.location.to_string());
        let is_same = |t: &&mut LargeTensor| {
            t.name == name && t.source == source && t.device_bytes == device_bytes
        };
        match tensors.iter_mut().find(is_same) {
            Some(same) => same.count += 1,
            None => tensors.push(LargeTensor { name, ty, count: 1, device_bytes, source }),
        }
    }
    tensors
}

/// The largest number of these tensors that are in memory at the same time.
fn most_at_once(lifetimes: &[Lifetime]) -> u64 {
    let mut changes: Vec<(usize, bool, u64)> = Vec::new();
    for lifetime in lifetimes {
        changes.push((lifetime.until, false, lifetime.count));
        changes.push((lifetime.from, true, lifetime.count));
    }
    // At one time, the ends come first.
    changes.sort_unstable();
    let mut now = 0_u64;
    let mut most = 0;
    for (_, begins, count) in changes {
        now = if begins { now.saturating_add(count) } else { now.saturating_sub(count) };
        most = most.max(now);
    }
    most
}

/// The user's line that first computes with a value, after operations that only pass it on. In a loop
/// or a branch, this is a line of the body.
fn first_use(step: &Step, ops: &[RecordedOp], value: usize) -> Option<String> {
    let uses = |user: &RecordedOp| user.operands.iter().any(|operand| operand.op == value);
    let users = || ops.iter().enumerate().skip(value + 1).filter(|(_, user)| uses(user));
    let in_body = |user: &RecordedOp| {
        user.bodies.iter().find_map(|body| {
            let is_value = |&operand: &usize| user.operands[operand].op == value;
            let parameter = body.operands.iter().position(is_value)?;
            let own = body.ops.iter().position(|own| own.parameter == Some(parameter))?;
            first_use(step, &body.ops, own)
        })
    };
    let line = |user: &RecordedOp| {
        let is_internal = (step.is_internal)(user.location.file());
        in_body(user).or_else(|| (!is_internal).then(|| user.location.to_string()))
    };
    users().find_map(|(_, user)| line(user)).or_else(|| {
        let (next, _) = users().find(|(_, user)| is_passed_on(user))?;
        first_use(step, ops, next)
    })
}

#[cfg(test)]
mod tests {
    use fulmen_pjrt::locate::{Platform, locate};
    use fulmen_pjrt::{CompileOptions, Effort, Plugin};
    use fulmen_tensor::{
        DType, Function, Mesh, Sharding, Tensor, checkpoint, cond, grad, scan, while_loop,
    };

    use super::*;

    fn f32s(shape: &[usize]) -> TensorType {
        TensorType::new(DType::F32, shape)
    }

    /// The largest tensors of a function whose parameters are split in this way.
    fn largest_on(function: Function, mesh: &Mesh, shardings: &[Sharding]) -> Vec<LargeTensor> {
        let function = (shardings.iter().enumerate())
            .fold(function, |f, (i, sharding)| f.shard_parameter(i, sharding.clone()));
        largest_tensors(&Step::new(&function, mesh).unwrap(), 10)
    }

    fn largest_of(function: Function) -> Vec<LargeTensor> {
        largest_on(function, &Mesh::new([("data", 1)]).unwrap(), &[])
    }

    fn rows() -> Sharding {
        Sharding::new([Some("data")])
    }

    #[test]
    fn a_split_batch_stays_split_when_its_axis_moves_or_merges() {
        let mesh = Mesh::new([("data", 256)]).unwrap();
        let parts = |from: &[usize], f: fn(&Tensor) -> Tensor| {
            let function = Function::trace("f", f32s(from), |x| f(&x).cumsum(0));
            let whole = function.results()[0].ty().size_in_bytes() as u64;
            let large = largest_on(function, &mesh, &[rows()]);
            whole / large.iter().find(|t| t.name != "input").unwrap().device_bytes
        };
        // Tokens of all samples as rows, and back.
        assert_eq!(parts(&[512, 128, 64], |x| x.flatten(0, 1)), 256);
        assert_eq!(parts(&[65536, 64], |x| x.reshape([512, 128, 64])), 256);
        // Heads in front of positions; attention's scores.
        assert_eq!(parts(&[512, 128, 4, 16], |x| x.transpose(1, 2)), 256);
        assert_eq!(parts(&[512, 4, 128, 16], |x| x.matmul(&x.transpose(2, 3))), 256);
        // Square matrices too: the names of the axes count, not their lengths.
        assert_eq!(parts(&[256, 256], |x| x.transpose(0, 1).reshape([256, 16, 16])), 1);
        // The gradient of a weight.
        assert_eq!(parts(&[512, 512], |x| x.transpose(0, 1).matmul(x)), 1);
    }

    #[test]
    fn activations_are_split_over_the_batch_and_over_the_parts_of_weights() {
        let mesh = Mesh::new([("data", 8), ("model", 4)]).unwrap();
        let types = [f32s(&[256, 16, 64]), f32s(&[64, 1024]), f32s(&[1024, 64])];
        let function = Function::trace("f", types, |[a, b, c]| {
            let rows = a.flatten(0, 1);
            rows.matmul(&b).relu().matmul(&c).square().sum_all()
        });
        let columns = Sharding::new([None, Some("model")]);
        let large = largest_on(function, &mesh, &[rows(), columns, Sharding::new([Some("model")])]);
        let sizes: Vec<_> = large.iter().map(|t| (t.name.as_str(), t.device_bytes)).collect();
        let rows = 256 * 16 / 8;
        assert_eq!(sizes[0], ("matmul", rows * (1024 / 4) * 4), "{large:?}");
        assert!(sizes.contains(&("matmul", rows * 64 * 4)), "{large:?}");
    }

    #[test]
    fn a_gradient_that_is_split_is_whole_for_one_tensor_at_a_time() {
        let mesh = Mesh::new([("data", 8)]).unwrap();
        let mut types = vec![f32s(&[512, 512]); 4];
        types.push(f32s(&[64, 512]));
        let function = Function::trace("f", &types, |x| {
            let loss = x[..4]
                .iter()
                .fold(x[4].clone(), |h, weight| h.matmul(&weight.all_gather(&rows())).tanh());
            let gradients = grad(loss.sum_all(), &x[..4].iter().collect::<Vec<_>>());
            let norm = gradients.iter().map(|g| g.square().sum_all()).reduce(|a, b| a + b).unwrap();
            gradients.iter().map(|g| g * &norm).collect::<Vec<_>>()
        });
        let large = largest_on(function, &mesh, &vec![rows(); 5]);
        let gradients: Vec<_> = large
            .iter()
            .filter(|t| t.ty == f32s(&[512, 512]) && !t.name.starts_with("input"))
            .collect();
        let sizes: Vec<_> = gradients.iter().map(|t| (t.device_bytes, t.count)).collect();
        assert_eq!(sizes, [(512 * 512 * 4, 1), (512 * 512 * 4 / 8, 4)], "{large:?}");
    }

    #[test]
    fn the_largest_come_first_with_their_size_on_one_device() {
        let types = [f32s(&[64, 100]), f32s(&[100, 1000])];
        let line = line!() + 2;
        let function = Function::trace("f", types, |[x, w]| {
            let y = x.matmul(&w).tanh();
            y.sum_all()
        });
        let large = largest_on(function, &Mesh::new([("data", 8)]).unwrap(), &[rows()]);
        let groups: Vec<_> =
            large.iter().map(|t| (t.name.as_str(), t.device_bytes, t.count)).collect();
        // Each device has an eighth of the rows. The compiler computes `tanh` where it is summed up.
        let expected =
            [("input 1", 400_000, 1), ("matmul", 8 * 1000 * 4, 1), ("input 0", 8 * 100 * 4, 1)];
        assert_eq!(groups, expected, "{large:?}");
        assert!(
            large.iter().all(|t| t.source.contains(&format!("largest_tensors.rs:{line}:"))),
            "{large:?}"
        );
    }

    #[test]
    fn a_value_of_the_smaller_dtype_is_kept_for_the_derivative() {
        let types =
            [TensorType::new(DType::Bf16, [64, 64]), TensorType::new(DType::Bf16, [64, 4096])];
        let large = largest_of(Function::trace("f", types, |[x, w]| {
            let y = x.matmul(&w).to_dtype(DType::F32).exp();
            grad(y.sum_all(), &[&w])
        }));
        assert!(large.iter().all(|t| t.ty.dtype == DType::Bf16), "{large:?}");
    }

    #[test]
    fn tensors_in_branches_and_loops_have_their_lines() {
        let types = [f32s(&[8, 64]), f32s(&[64, 2048])];
        let line = line!() + 1;
        let inside = |x: &[Tensor]| x[0].matmul(&x[1]).cumsum(1).sum_keepdim(1) + &x[0];
        let in_cond = largest_of(Function::trace("f", &types, |x| {
            let pred = x[0].sum_all().gt(0.0);
            cond(&pred, x, |x| inside(&x), |x| x[0].clone())
        }));
        let in_loop = largest_of(Function::trace("f", &types, |x| {
            while_loop(&x[0], |h| h.sum_all().lt(9.0), |h| inside(&[h, x[1].clone()]))
        }));
        for large in [in_cond, in_loop] {
            let product = large.iter().find(|t| t.name == "matmul").unwrap();
            assert_eq!((product.device_bytes, product.count), (8 * 2048 * 4, 1), "{large:?}");
            let source = format!("largest_tensors.rs:{line}:");
            assert!(
                large.iter().all(|t| t.source.contains(&source) || t.name == "input 0"),
                "{large:?}"
            );
        }
    }

    const LAYERS: usize = 3;
    const BATCH: usize = 4;
    const LENGTH: usize = 1024;
    const WIDTH: usize = 256;
    const HEADS: usize = 8;

    /// One layer of a GPT on `[batch, length, width]`, and the line of its attention's scores.
    fn layer(x: &Tensor, weights: &[Tensor]) -> (Tensor, u32) {
        let batch = x.shape()[0];
        let heads =
            |w: &Tensor| x.matmul(w).reshape([batch, LENGTH, HEADS, WIDTH / HEADS]).transpose(1, 2);
        let [q, k, v] = [0, 1, 2].map(|i| heads(&weights[i]));
        let positions = Tensor::arange(DType::I32, LENGTH);
        let is_past = positions.unsqueeze(1).ge(&positions);
        let line = line!() + 1;
        let scores = q.matmul(&k.transpose(2, 3)).masked_fill(&is_past.not(), -1e9).softmax(-1);
        let values = scores.matmul(&v).transpose(1, 2).reshape([batch, LENGTH, WIDTH]);
        let x = x + values.matmul(&weights[3]);
        (&x + x.matmul(&weights[4]).tanh().matmul(&weights[5]), line)
    }

    /// The gradients of a GPT of scanned layers, or else of layers one after the other.
    fn gpt(batch: usize, dtype: DType, scanned: bool, checkpointed: bool) -> (Function, u32) {
        let weight = |rows, columns| f32s(&[LAYERS, rows, columns]);
        let mut types = vec![weight(WIDTH, WIDTH); 4];
        types.extend([
            weight(WIDTH, 4 * WIDTH),
            weight(4 * WIDTH, WIDTH),
            f32s(&[batch, LENGTH, WIDTH]),
        ]);
        let mut line = 0;
        let function = Function::trace("gpt", &types, |inputs| {
            let mut one = |x: &Tensor, weights: &[Tensor]| {
                let inputs: Vec<&Tensor> = std::iter::once(x).chain(weights).collect();
                let inner = |line: &mut u32, inputs: &[Tensor]| {
                    let weights: Vec<Tensor> =
                        inputs[1..].iter().map(|w| w.to_dtype(dtype)).collect();
                    let (y, at) = layer(&inputs[0], &weights);
                    *line = at;
                    vec![y]
                };
                if checkpointed {
                    checkpoint(|inputs| inner(&mut line, &inputs), &inputs).remove(0)
                } else {
                    inner(&mut line, &owned(&inputs)).remove(0)
                }
            };
            let x = inputs[6].to_dtype(dtype);
            let weights: Vec<&Tensor> = inputs[..6].iter().collect();
            let y = if scanned {
                scan(&x, &weights, |h, weights| (one(&h, &weights), ())).0
            } else {
                (0..LAYERS).fold(x, |x, i| {
                    let weights: Vec<Tensor> =
                        weights.iter().map(|w| w.narrow(0, i, 1).squeeze(0)).collect();
                    one(&x, &weights)
                })
            };
            grad(y.to_dtype(DType::F32).square().mean_all(), &weights)
        });
        (function, line)
    }

    fn owned(tensors: &[&Tensor]) -> Vec<Tensor> {
        tensors.iter().map(|&t| t.clone()).collect()
    }

    /// What a compiler says that a function needs on each device.
    fn needed(platform: Platform, function: &Function, slice: &str, mesh: &Mesh) -> Option<u64> {
        let (plugin, topology) = match platform {
            Platform::Tpu => {
                let plugin = crate::libtpu::libtpu()?;
                let topology = crate::topology(&plugin, &slice.parse().unwrap()).unwrap();
                (plugin, topology)
            }
            _ => {
                let plugin = Plugin::load(locate(platform, None).unwrap()).unwrap();
                let topology = plugin.create_client(&[]).unwrap().topology().unwrap();
                (plugin, topology)
            }
        };
        let text = function.stablehlo_on(platform, mesh).unwrap();
        let options = CompileOptions::new().partitions(mesh.num_devices()).optimization(Effort::O1);
        let compiled = plugin.compile(&topology, &text, &options).unwrap();
        Some(u64::try_from(compiled.memory_analysis().unwrap().total_bytes()).unwrap())
    }

    /// The scores come first, with as many of them as the backward pass needs, and no tensor is
    /// larger than what a compiler says that the step needs.
    #[test]
    #[ignore = "slow: ci/slow"]
    fn the_scores_of_scanned_layers_come_first_and_no_tensor_exceeds_the_compilers_estimate() {
        let mesh = Mesh::new([("data", 1)]).unwrap();
        let layers = LAYERS as u64;
        for (dtype, scanned, checkpointed, count, platforms) in [
            (DType::F32, true, false, layers, &[Platform::Cpu][..]),
            (DType::Bf16, true, false, layers, &[Platform::Tpu]),
            (DType::F32, true, true, 1, &[Platform::Cpu, Platform::Tpu]),
            (DType::F32, false, false, layers, &[]),
        ] {
            let (function, line) = gpt(BATCH, dtype, scanned, checkpointed);
            let large = largest_tensors(&Step::new(&function, &mesh).unwrap(), 10);
            let case = format!("{dtype} {scanned} {checkpointed}: {large:#?}");
            let scores = &large[0];
            assert!(scores.source.contains(&format!("largest_tensors.rs:{line}:")), "{case}");
            assert_eq!(scores.ty.shape.dims(), [BATCH, HEADS, LENGTH, LENGTH], "{case}");
            assert_eq!(scores.count, count, "{case}");
            for &platform in platforms {
                let Some(needed) = needed(platform, &function, "v5e:1x1", &mesh) else { continue };
                assert!(large.iter().all(|t| t.total_bytes() <= needed), "{needed} {case}");
            }
        }
    }

    #[test]
    fn the_scores_of_a_split_batch_are_at_most_what_a_device_needs() {
        let mesh = Mesh::new([("data", 8)]).unwrap();
        let (function, line) = gpt(8 * BATCH, DType::F32, true, false);
        let function = function.shard_parameter(6, rows());
        let large = largest_tensors(&Step::new(&function, &mesh).unwrap(), 10);
        assert!(large[0].source.contains(&format!("largest_tensors.rs:{line}:")), "{large:?}");
        let one = (BATCH * HEADS * LENGTH * LENGTH * 4) as u64;
        assert_eq!((large[0].device_bytes, large[0].count), (one, LAYERS as u64), "{large:?}");
        if let Some(needed) = needed(Platform::Tpu, &function, "v5e:2x4", &mesh) {
            assert!(large.iter().all(|t| t.total_bytes() <= needed), "{needed} {large:?}");
        }
    }
}
