//! Compiles a step for each slice and reads the compiler's analysis of it.

use std::collections::BTreeMap;
use std::time::Instant;

use fulmen_pjrt::hlo::Cost;
use fulmen_pjrt::locate::Platform;
use fulmen_pjrt::{CompileOptions, DeviceDescription, Effort, Executable, Plugin};
use fulmen_tensor::{Function, Mesh, RecordedOp, Sharding, TensorType};

use crate::line_costs::{cost_by_line, line};
use crate::warnings::Passes;
use crate::{
    Error, Feasibility, Generation, LineCost, Prices, Report, Result, Roofline, Slice, StepCost,
    StepSetting, Warning, largest_tensors, report::sent_bytes, roofline, topology, warnings,
};

/// How many of the largest tensors are reported.
const MAX_TENSORS: usize = 10;
/// How many of the compiled program's arrays are checked for padding.
const MAX_ARRAYS: usize = 200;

/// `fit` compiles with the compiler's default effort. This level takes half the time. In the steps
/// that were compiled at both levels, FLOPs and bytes differed by less than 0.1 %.
const EFFORT: Effort = Effort::O1;

/// A step to estimate, for a given number of devices.
#[derive(Clone)]
pub struct Step {
    /// The program for TPUs.
    pub stablehlo: String,
    /// The recorded operations.
    pub recorded: Vec<RecordedOp>,
    /// The mesh of the program.
    pub mesh: Mesh,
    /// The sharding and the type of each parameter.
    pub parameters: Vec<(Sharding, TensorType)>,
    /// Whether a file belongs to Fulmen, so that its lines are not shown as the user's.
    pub is_internal: fn(&str) -> bool,
    /// Maps the name of a value to the name of a parameter, if the value is the optimizer's state
    /// for that parameter.
    pub parameter_of: fn(&str) -> Option<&str>,
    /// Steps in an epoch.
    pub steps_per_epoch: Option<u64>,
    /// The training settings.
    pub setting: Option<StepSetting>,
    /// How the step differs from the one that was requested.
    pub note: Option<String>,
    /// The bytes that a checkpoint copies on each device, so that training can continue while it is
    /// written.
    pub copied_bytes: Option<u64>,
    /// The same step for TPUs with kernels, if only a selftest is missing to take them.
    pub with_kernel: Option<String>,
}

impl Step {
    /// Makes a step from a function over a mesh. All lines of the function count as the user's.
    ///
    /// # Errors
    /// The function records a mistake, or the mesh cannot split a parameter.
    pub fn new(function: &Function, mesh: &Mesh) -> fulmen_tensor::Result<Step> {
        let types = function.parameters().iter().map(|parameter| parameter.ty().clone());
        Ok(Step {
            stablehlo: function.stablehlo_on(Platform::Tpu, mesh)?,
            recorded: function.recorded()?,
            mesh: mesh.clone(),
            parameters: function.parameter_shardings().iter().cloned().zip(types).collect(),
            is_internal: |_| false,
            parameter_of: |_| None,
            steps_per_epoch: None,
            setting: None,
            note: None,
            copied_bytes: None,
            with_kernel: None,
        })
    }
}

/// Estimates a step for each slice. `step` gives the step for a slice's devices. A step that does
/// not fit is a result, not an error: see [`Report::all_fit`]. The [crate](crate) has an example.
///
/// # Errors
/// The errors of `step`; libtpu does not know a slice; libtpu rejects the program for a reason
/// other than memory.
pub fn estimate<E: From<Error>>(
    plugin: &Plugin,
    slices: &[Slice],
    prices: Option<&Prices>,
    mut step: impl FnMut(&Slice) -> Result<Step, E>,
) -> Result<Report, E> {
    let mut feasibilities = Vec::with_capacity(slices.len());
    for slice in slices {
        let mut feasibility = estimate_slice(plugin, slice, &step(slice)?)?;
        let price = prices.and_then(|prices| prices.for_slice(slice));
        feasibility.usd_per_hour =
            price.map(|price| price.usd_per_chip_hour * slice.num_chips() as f64);
        feasibilities.push(feasibility);
    }
    let prices = prices.map(|prices| (prices.date.clone(), prices.source.clone()));
    Ok(Report { slices: feasibilities, prices, loader: None })
}

fn estimate_slice(plugin: &Plugin, slice: &Slice, step: &Step) -> Result<Feasibility> {
    let action = || format!("estimating the step for {slice}");
    let topology = topology(plugin, slice)?;
    let mut feasibility = Feasibility {
        slice: slice.clone(),
        hbm_available_bytes: topology
            .devices()
            .iter()
            .filter_map(DeviceDescription::memory_bytes)
            .min()
            .unwrap_or(slice.generation().hbm_bytes / slice.generation().devices as u64),
        hbm_needed_bytes: None,
        hbm_with_kernel_bytes: None,
        compile_s: 0.0,
        step: None,
        largest: Vec::new(),
        warnings: Vec::new(),
        setting: step.setting.clone(),
        note: step.note.clone(),
        copied_bytes: step.copied_bytes,
        steps_per_epoch: step.steps_per_epoch,
        usd_per_hour: None,
        against: Vec::new(),
    };
    let start = Instant::now();
    // libtpu reads from the devices which of them are in one slice.
    let devices: Vec<i32> = topology.devices().iter().map(DeviceDescription::id).collect();
    let options = CompileOptions::new()
        .partitions(slice.num_devices())
        .device_assignment([devices])
        .optimization(EFFORT);
    let compile = |stablehlo: &str| plugin.compile(&topology, stablehlo, &options);
    let compiled = compile(&step.stablehlo);
    feasibility.compile_s = start.elapsed().as_secs_f64();
    match compiled {
        Ok(program) => {
            add_cost(&mut feasibility, &program, step).map_err(|e| Error::runtime(action(), e))?
        }
        Err(error) if error.is_out_of_memory() => {
            let (needed, available) = needed_and_available(&error.to_string());
            feasibility.hbm_needed_bytes = needed;
            if let Some(available) = available {
                feasibility.hbm_available_bytes = available.min(feasibility.hbm_available_bytes);
            }
            feasibility.largest = largest_tensors(step, MAX_TENSORS);
            feasibility.warnings.extend(warnings::single_precision(&step.recorded, Passes::ONE));
        }
        Err(error) => return Err(Error::runtime(action(), error)),
    }
    if let Some(stablehlo) = &step.with_kernel {
        add_kernel(&mut feasibility, compile(stablehlo))
            .map_err(|e| Error::runtime(action(), e))?;
    }
    Ok(feasibility)
}

/// Fills in the memory of the step with kernels. A kernel that libtpu refuses is a
/// warning: the step does without it.
fn add_kernel(
    feasibility: &mut Feasibility,
    compiled: fulmen_pjrt::Result<Executable>,
) -> fulmen_pjrt::Result<()> {
    match compiled {
        Ok(program) => {
            let total = program.memory_analysis()?.total_bytes();
            feasibility.hbm_with_kernel_bytes = u64::try_from(total).ok();
        }
        Err(error) if error.is_out_of_memory() => {
            let (needed, _) = needed_and_available(&error.to_string());
            feasibility.hbm_with_kernel_bytes = needed;
        }
        Err(error) => feasibility.warnings.push(Warning {
            message: format!("libtpu refuses the step with kernels: {error}"),
            source: None,
        }),
    }
    Ok(())
}

/// Fills in the compiler's analysis of a program that fits.
fn add_cost(
    feasibility: &mut Feasibility,
    program: &Executable,
    step: &Step,
) -> fulmen_pjrt::Result<()> {
    let analysis = program.cost_analysis()?;
    let memory = program.memory_analysis()?;
    let module = program.hlo()?;
    let positive = |bytes: i64| u64::try_from(bytes).unwrap_or(0);
    feasibility.hbm_needed_bytes = Some(positive(memory.total_bytes()));

    let further = module.cost_of_further_runs();
    let counted_once = (analysis.flops().unwrap_or(0.0), analysis.bytes_accessed().unwrap_or(0.0));
    let flops = counted_once.0 + further.flops;
    let bytes_accessed = counted_once.1 + further.bytes;
    let products = module.products();
    let collectives = module.collectives();
    let loops = module.loops();
    let further_passes = |p: &fulmen_pjrt::hlo::PlacedProduct| {
        p.product.flops * p.times as f64 * f64::from(p.product.passes().saturating_sub(1))
    };
    let work = roofline::StepWork {
        flops,
        further_passes: products.iter().fold(0.0, |n, p| n + further_passes(p)),
        bytes: module.main_memory_traffic(),
        sent_bytes: sent_bytes(&collectives, false),
        dcn_bytes: sent_bytes(&collectives, true),
    };
    let chip = feasibility.slice.generation();
    feasibility.warnings = warnings::matrix_unit(&products, chip.matrix_unit);
    feasibility.warnings.extend(warnings::tiles(&module.largest_arrays(MAX_ARRAYS)));
    feasibility.warnings.extend(warnings::single_precision(&step.recorded, Passes::new(&products)));
    let shardings: Vec<Sharding> = step.parameters.iter().map(|(own, _)| own.clone()).collect();
    let repeated = warnings::repeated_work(&step.recorded, &shardings, &step.mesh, &module);
    feasibility.warnings.extend(repeated);
    feasibility.step = Some(StepCost {
        flops,
        bytes_accessed,
        hbm_traffic: work.bytes,
        counted_once,
        loops: (loops.len(), loops.iter().filter(|l| l.trip_count.is_none()).count()),
        collectives,
        roofline: Roofline::new(&work, &feasibility.slice),
        optimal_seconds: analysis.optimal_seconds().filter(|&seconds| seconds > 0.0),
        argument_bytes: positive(memory.argument_bytes),
        temp_bytes: positive(memory.temp_bytes),
        lines: lines(&module, chip, step),
    });
    Ok(())
}

/// The cost of each line of the user's code.
fn lines(module: &fulmen_pjrt::hlo::Module, chip: &Generation, step: &Step) -> Vec<LineCost> {
    let mut costs: BTreeMap<Option<String>, (Cost, u64)> = cost_by_line(module, step.is_internal)
        .into_iter()
        .map(|(line, cost)| (line, (cost, 0)))
        .collect();
    for array in module.largest_arrays(MAX_ARRAYS) {
        costs.entry(line(array.source, step.is_internal)).or_default().1 += array.bytes;
    }
    let mut lines: Vec<LineCost> = costs
        .into_iter()
        .map(|(source, (cost, array_bytes))| LineCost {
            source,
            flops: cost.flops,
            hbm_traffic: cost.bytes,
            array_bytes,
            least_s: (cost.flops / chip.device_flops())
                .max(cost.bytes / chip.device_hbm_bandwidth()),
        })
        .filter(|line| line.least_s > 0.0 || line.array_bytes > 0)
        .collect();
    lines.sort_by(|a, b| b.least_s.total_cmp(&a.least_s));
    lines
}

/// Reads libtpu's message about a program that does not fit: `... memory required for HLO
/// temporaries (37.29G) exceeds available HBM (15.75G)`.
fn needed_and_available(message: &str) -> (Option<u64>, Option<u64>) {
    let mut sizes = message.split('(').skip(1).filter_map(|rest| size(rest.split_once(')')?.0));
    (sizes.next(), sizes.next())
}

/// A number with libtpu's suffix for a power of 1024.
fn size(text: &str) -> Option<u64> {
    let letter = text.chars().last()?;
    let power = "BKMGTP".find(letter)?;
    let number: f64 = text[..text.len() - letter.len_utf8()].trim().parse().ok()?;
    let bytes = number * 1024f64.powi(i32::try_from(power).ok()?);
    (bytes.is_finite() && bytes >= 0.0).then_some(bytes as u64)
}

#[cfg(test)]
mod tests {
    use fulmen_pjrt::hlo::CollectiveKind;
    use fulmen_tensor::{DType, MatmulPrecision, Tensor, checkpoint, grad};

    use super::*;

    /// A product, its relu and a sum of both, on one device.
    fn step(batch: usize, width: usize) -> Step {
        let types = [
            TensorType::new(DType::F32, [batch, width]),
            TensorType::new(DType::F32, [width, width]),
        ];
        let function = Function::trace("step", types, |[x, w]| x.matmul(&w).relu().sum_all());
        Step { steps_per_epoch: Some(100), ..Step::new(&function, &mesh()).unwrap() }
    }

    fn mesh() -> Mesh {
        Mesh::new([("data", 1)]).unwrap()
    }

    fn estimate_all(
        plugin: &Plugin,
        slices: &[Slice],
        prices: Option<&Prices>,
        step: impl Fn(&Slice) -> Step,
    ) -> Result<Report> {
        estimate(plugin, slices, prices, |slice| Ok(step(slice)))
    }

    #[test]
    fn a_step_is_estimated_without_a_tpu() {
        let Some(plugin) = crate::libtpu::libtpu() else { return };
        let slices = Slice::parse_list("v5e:1x1,v6e-1").unwrap();
        let prices = Prices::built_in().unwrap();
        let report = estimate_all(&plugin, &slices, Some(&prices), |_| step(4096, 1000)).unwrap();
        println!("{report}\n{}", report.json());
        let page = report.html("step");
        for part in ["id=\"slices\"", "id=\"roofline\"", "id=\"memory\"", "estimate.rs:", "v6e:1x1"]
        {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert!(report.all_fit());
        let [v5e, v6e] = &report.slices[..] else { panic!("{report}") };
        let flops = 2.0 * 4096.0 * 1000.0 * 1000.0;
        for feasibility in [v5e, v6e] {
            let cost = feasibility.step.as_ref().unwrap();
            assert!((1.0..1.01).contains(&(cost.flops / flops)), "{report}");
            assert!(cost.collectives.is_empty() && cost.loops == (0, 0));
            // At least the arguments must be read.
            let read = 4.0 * (4096.0 * 1000.0 + 1000.0 * 1000.0);
            assert!((1.0..1.1).contains(&(cost.hbm_traffic / read)), "{report}");
            assert!(cost.bytes_accessed >= read, "{report}");
            let moved = cost.lines.iter().fold(0.0, |n, line| n + line.hbm_traffic);
            assert!((moved / cost.hbm_traffic - 1.0).abs() < 1e-9, "{:?}", cost.lines);
            let product = cost.lines.iter().find(|line| line.flops >= flops).unwrap();
            assert!(product.source.as_ref().unwrap().contains("estimate.rs:"), "{product:?}");
            assert!(feasibility.hbm_needed_bytes.unwrap() as f64 > read, "{report}");
            assert_eq!(feasibility.epoch_hours().unwrap(), 100.0 * cost.roofline.step_s / 3600.0);
        }
        assert_eq!((v5e.hbm_available_bytes >> 20, v6e.usd_per_hour), (16125, Some(2.70)));
        let texts: Vec<_> = v5e.warnings.iter().map(|w| w.message.as_str()).collect();
        assert!(texts.iter().any(|t| t.contains("1 of 1 products take f32")), "{texts:?}");
        let copying = Feasibility { copied_bytes: Some(1 << 40), ..v5e.clone() }.to_string();
        let waits = "a copy of 1024.00 GiB does not fit next to the step, where 15.";
        assert!(copying.contains(waits), "{copying}");
        let json: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
        assert_eq!(json["topologies"][1]["topology"], "v6e:1x1");
        assert_eq!(
            json["topologies"][0]["optimal_seconds"].is_null(),
            v5e.step.as_ref().unwrap().optimal_seconds.is_none()
        );
        assert_eq!(json["cheapest_first"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn f32_in_higher_precision_takes_further_passes() {
        let Some(plugin) = crate::libtpu::libtpu() else { return };
        let slices = Slice::parse_list("v5e:1x1").unwrap();
        let seconds = |precision| {
            let types = [
                TensorType::new(DType::F32, [4096, 1024]),
                TensorType::new(DType::F32, [1024, 1024]),
            ];
            let function =
                Function::trace("step", types, |[x, w]| x.matmul(&w)).matmul_precision(precision);
            let step = Step::new(&function, &mesh()).unwrap();
            let report = estimate_all(&plugin, &slices, None, |_| step.clone()).unwrap();
            println!("{report} {}", report.json());
            report.slices[0].step.as_ref().unwrap().roofline.matrix_s
        };
        let once = seconds(MatmulPrecision::Default);
        assert_eq!((seconds(MatmulPrecision::High) / once).round(), 3.0);
        assert_eq!((seconds(MatmulPrecision::Highest) / once).round(), 6.0);
    }

    /// The rows of a table that a batch does not use are not read, and a change of some rows does not
    /// write the others.
    #[test]
    fn a_look_up_moves_the_rows_that_it_uses() {
        let Some(plugin) = crate::libtpu::libtpu() else { return };
        const ROWS: usize = 1 << 20;
        const WIDTH: usize = 128;
        const BATCH: usize = 4096;
        let types = [
            TensorType::new(DType::F32, [ROWS, WIDTH]),
            TensorType::new(DType::I32, [BATCH]),
            TensorType::new(DType::F32, [BATCH, WIDTH]),
        ];
        let traffic = |function: Function| {
            let step = Step::new(&function, &mesh()).unwrap();
            let slices = Slice::parse_list("v5e:1x1").unwrap();
            let report = estimate_all(&plugin, &slices, None, |_| step.clone()).unwrap();
            let cost = report.slices[0].step.clone().unwrap();
            if let Some(estimate) = cost.optimal_seconds {
                assert!(cost.roofline.step_s <= estimate, "{report}");
            }
            cost.hbm_traffic
        };
        let table = (4 * ROWS * WIDTH) as f64;
        let rows = (4 * BATCH * WIDTH) as f64;
        let read = Function::trace("read", &types, |x| x[0].take(0, &x[1]) + &x[2]);
        let read = traffic(read);
        assert!((2.0 * rows..0.1 * table).contains(&read), "{read} {rows} {table}");
        let change = Function::trace("change", &types, |x| x[0].index_add(0, &x[1], &x[2]));
        let change = traffic(change.donate(0, 0).unwrap());
        assert!((2.0 * rows..0.1 * table).contains(&change), "{change} {rows} {table}");
    }

    #[test]
    fn blocks_that_are_recomputed_gather_their_weights_in_bf16() {
        let Some(plugin) = crate::libtpu::libtpu() else { return };
        const BLOCKS: usize = 16;
        const WIDTH: usize = 2048;
        let rows = Sharding::new([Some("data")]);
        let f32s = |dims| TensorType::new(DType::F32, dims);
        let mut types = vec![f32s([WIDTH, WIDTH]); BLOCKS];
        types.push(f32s([512, WIDTH]));
        let function = Function::trace("step", &types, |inputs| {
            let weights = &inputs[..BLOCKS];
            let x = inputs[BLOCKS].clone();
            let block = |h: &Tensor, weight: &Tensor| {
                let product = h.to_dtype(DType::Bf16).matmul(&weight.to_dtype(DType::Bf16));
                product.to_dtype(DType::F32).tanh() + h
            };
            let y = weights.iter().fold(x, |h, weight| {
                let weight = weight.all_gather(&rows);
                checkpoint(|h| block(&h, &weight), &h)
            });
            grad(&(&y * &y).mean_all(), weights)
        });
        let function = (0..types.len())
            .fold(function, |function, i| function.shard_parameter(i, rows.clone()));
        let function =
            (0..BLOCKS).fold(function, |function, i| function.shard_result(i, rows.clone()));
        let slices = Slice::parse_list("v5e:2x4").unwrap();
        let mesh = Mesh::new([("data", 8)]).unwrap();
        let step = Step::new(&function, &mesh).unwrap();
        let report = estimate_all(&plugin, &slices, None, |_| step.clone()).unwrap();
        let cost = report.slices[0].step.as_ref().unwrap();
        let weight_bytes = (2 * WIDTH * WIDTH) as u64;
        let gathers = cost.collectives.iter().filter(|c| c.kind == CollectiveKind::AllGather);
        // Forward and backward. The last block's values of the forward pass are still there.
        let bytes: Vec<u64> = gathers.map(|c| c.bytes).collect();
        assert!((2 * BLOCKS - 1..=2 * BLOCKS).contains(&bytes.len()), "{bytes:?}");
        assert!(bytes.iter().all(|&bytes| bytes == weight_bytes), "{bytes:?}");
    }

    #[test]
    fn each_device_selects_the_experts_of_its_own_tokens() {
        let Some(plugin) = crate::libtpu::libtpu() else { return };
        let rows = Sharding::new([Some("data")]);
        let scores = TensorType::new(DType::F32, [4096, 64]);
        let function = Function::trace("step", scores, |scores| scores.exp().topk(6));
        let function = function.shard_parameter(0, rows.clone());
        let function = function.shard_result(0, rows.clone()).shard_result(1, rows);
        let slices = Slice::parse_list("v5e:2x4").unwrap();
        let mesh = Mesh::new([("data", 8)]).unwrap();
        let step = Step::new(&function, &mesh).unwrap();
        let report = estimate_all(&plugin, &slices, None, |_| step.clone()).unwrap();
        let cost = report.slices[0].step.as_ref().unwrap();
        assert!(cost.collectives.is_empty(), "{:?}", cost.collectives);
    }

    /// The sum of a gradient over two slices: each device gets a quarter of the sum within its slice,
    /// adds the same quarter of the other slice, and gathers the quarters.
    #[test]
    fn what_crosses_slices_is_counted_apart() {
        let Some(plugin) = crate::libtpu::libtpu() else { return };
        const WIDTH: usize = 512;
        let types = [
            TensorType::new(DType::F32, [WIDTH, WIDTH]),
            TensorType::new(DType::F32, [1024, WIDTH]),
        ];
        let batch = Sharding::over([vec!["data", "fsdp"]]);
        let function = Function::trace("step", types, |[weight, x]| {
            let y = x.matmul(&weight).tanh();
            grad(&y.mean_all(), &[weight])
        })
        .shard_parameter(1, batch);
        let mesh = Mesh::new([("data", 2), ("fsdp", 4)]).unwrap();
        let step = Step::new(&function, &mesh).unwrap();
        let slices = Slice::parse_list("2*v5e:2x2,v5e:2x4").unwrap();
        let prices = Prices::built_in().unwrap();
        let report = estimate_all(&plugin, &slices, Some(&prices), |_| step.clone()).unwrap();
        println!("{report}\n{}", report.json());
        let [two, one] = &report.slices[..] else { panic!("{report}") };
        let weight_bytes = (4 * WIDTH * WIDTH) as u64;
        let cost = two.step.as_ref().unwrap();
        let shape = |c: &fulmen_pjrt::hlo::Collective| {
            (c.kind, c.is_between_slices, c.group_size, c.bytes, c.times)
        };
        let mut found: Vec<_> = cost.collectives.iter().map(shape).collect();
        found.sort();
        let expected = [
            (CollectiveKind::AllReduce, true, 2, weight_bytes / 4, 1),
            (CollectiveKind::AllGather, false, 4, weight_bytes, 1),
            (CollectiveKind::ReduceScatter, false, 4, weight_bytes, 1),
        ];
        assert_eq!(found, expected);
        let sent = (weight_bytes / 4) as f64;
        assert_eq!(cost.dcn_sent_bytes(), sent);
        assert_eq!(cost.roofline.dcn_s, sent / 3.125e9);
        let text = two.to_string();
        for expected in [
            "2*v5e:2x2: 2 slices with together 8 chips, 8 devices\n  hosts       2 with 112 vCPUs, 192 GB each\n",
            "sends       1 × all-reduce over 2 slices, 262.14 kB\n",
            "network     262.14 kB a device to other slices, at 3.12 GB/s a chip (6.4 Tbit/s of a pod",
            "83.9 µs for the data center network)\n",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        let json: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
        assert_eq!(json["topologies"][0]["data_center_network"]["sent_bytes"], sent);
        assert_eq!(json["topologies"][0]["slices"], 2);
        // The same chips as one slice.
        let cost = one.step.as_ref().unwrap();
        assert!(cost.collectives.iter().all(|c| !c.is_between_slices), "{:?}", cost.collectives);
        assert_eq!((cost.dcn_sent_bytes(), cost.roofline.dcn_s), (0.0, 0.0));
        assert!(!one.to_string().contains("network"), "{one}");
        assert!(json["topologies"][1]["data_center_network"].is_null());
        assert_eq!(two.usd_per_hour, one.usd_per_hour);
    }

    #[test]
    fn a_step_that_does_not_fit_is_a_result_with_the_largest_tensors() {
        let Some(plugin) = crate::libtpu::libtpu() else { return };
        let slices = Slice::parse_list("v5e:1x1").unwrap();
        // 10 GB of weights and 30 GB of input.
        let report = estimate_all(&plugin, &slices, None, |_| step(150_000, 50_000)).unwrap();
        println!("{report}\n{}", report.json());
        assert!(!report.all_fit());
        let feasibility = &report.slices[0];
        assert_eq!(feasibility.hbm_available_bytes >> 30, 15);
        assert!(feasibility.hbm_needed_bytes.unwrap() >= 40_000_000_000 * 9 / 10, "{report}");
        let largest: Vec<_> =
            feasibility.largest.iter().map(|t| (t.name.as_str(), t.total_bytes())).collect();
        assert!(largest[..2].contains(&("input 0", 30_000_000_000)), "{largest:?}");
        assert!(feasibility.largest.iter().all(|t| t.source.contains("preflight")), "{report}");
        assert!(report.to_string().contains("DOES NOT FIT: needs"), "{report}");
    }

    #[test]
    fn a_slice_that_does_not_exist_is_an_error() {
        let Some(plugin) = crate::libtpu::libtpu() else { return };
        let slices = Slice::parse_list("v5e:3x5").unwrap();
        let error = estimate_all(&plugin, &slices, None, |_| step(8, 8)).unwrap_err();
        assert!(error.is_runtime() && error.to_string().contains("describing v5e:3x5"), "{error}");
    }

    #[test]
    fn the_message_about_a_program_that_does_not_fit_is_parsed() {
        let message = "E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO temporaries \
                       (37.29G) exceeds available HBM (15.75G). HLO module: main.";
        let gib = 1024f64.powi(3);
        let (needed, available) = needed_and_available(message);
        assert_eq!((needed, available), (Some((37.29 * gib) as u64), Some((15.75 * gib) as u64)));
        assert_eq!(needed_and_available("no sizes (here) at (all)"), (None, None));
        assert_eq!(
            (size("512.00M"), size("2K"), size("G"), size("-1G"), size("é")),
            (Some(512 << 20), Some(2048), None, None, None)
        );
    }
}
