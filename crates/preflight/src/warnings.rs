//! Finds what makes a step slower than necessary: sizes that leave parts of the matrix units or of
//! memory tiles empty, `f32` where `bf16` is enough, and work that devices repeat.
//!
//! Warnings come from a compiled program or, before compilation, from the recorded operations.
//!
//! ```
//! use fulmen_preflight::{Generation, warnings};
//! use fulmen_tensor::{DType, Function, TensorType};
//!
//! let types = [TensorType::new(DType::F32, [64, 16]), TensorType::new(DType::F32, [16, 24])];
//! let narrow = Function::trace("narrow", types, |[x, w]| x.matmul(&w));
//! let products = warnings::recorded_products(&narrow.recorded()?, 1);
//! let unit = Generation::find("v5e").unwrap().matrix_unit;
//! assert!(warnings::share_used(&products, unit).unwrap() < 0.1);
//! assert!(warnings::matrix_unit(&products, unit)[0].message.contains("of the 128×128 matrix unit"));
//! # Ok::<(), fulmen_tensor::Error>(())
//! ```

use std::collections::BTreeMap;

use fulmen_pjrt::ElementType;
use fulmen_pjrt::hlo::{LargeArray, Module, PlacedProduct, Precision, Product, Source};
use fulmen_tensor::{DType, Mesh, RecordedOp, Sharding, TensorType};

use crate::splits::steps;

/// Something that wastes time or memory, with the line of code that causes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Warning {
    /// What wastes time or memory, and how much.
    pub message: String,
    /// The line of the user's code, if known.
    pub source: Option<String>,
}

/// Products with a smaller share of all work are not reported.
const MIN_WORK_SHARE: f64 = 0.01;
/// A matrix unit that is filled to this share counts as full.
const FULL_SHARE: f64 = 0.9;
/// Less padding than this is not reported, in bytes.
const MIN_PADDING_BYTES: u64 = 1 << 20;
/// Devices that compute this many times their share are reported. Recomputed activations account
/// for a third.
const MIN_REPEATED: f64 = 1.5;
/// The maximum number of warnings of one kind.
const MAX_WARNINGS: usize = 5;

/// The largest possible share of the matrix unit's work that is not padding. Two of the three
/// lengths fill the unit's rows and columns. The third streams through the unit, eight at a time.
fn utilization(product: &Product, unit: u64) -> f64 {
    let share = |length: u64, multiple: u64| {
        length as f64 / length.max(1).next_multiple_of(multiple) as f64
    };
    let upright = share(product.columns, unit) * share(product.rows, 8);
    let transposed = share(product.rows, unit) * share(product.columns, 8);
    share(product.inner, unit) * upright.max(transposed)
}

/// The share of the matrix units' time, over all products, that is not spent on padding; `None` if
/// there are no products.
pub fn share_used(products: &[PlacedProduct], unit: u64) -> Option<f64> {
    let mut work = 0.0;
    let mut time = 0.0;
    for placed in products {
        let flops = placed.product.flops * placed.times as f64;
        let used = utilization(&placed.product, unit);
        if used > 0.0 {
            work += flops;
            time += flops / used;
        }
    }
    (time > 0.0).then(|| work / time)
}

/// The products that a program records with `matmul` and `convolution`, also in loops and branches,
/// as seen by one of the devices that share a batch. Their derivatives have the same lengths in a
/// different order.
pub fn recorded_products(recorded: &[RecordedOp], devices: usize) -> Vec<PlacedProduct> {
    let operations = with_bodies(recorded, 1);
    operations.iter().filter_map(|operation| recorded_product(operation, devices as u64)).collect()
}

/// An operation of a program or of a body.
struct Placed<'a> {
    list: &'a [RecordedOp],
    op: &'a RecordedOp,
    /// How often it runs in a step.
    times: u64,
}

impl Placed<'_> {
    /// The type of an operand.
    fn operand(&self, i: usize) -> Option<&TensorType> {
        let value = self.op.operands.get(i)?;
        self.list.get(value.op)?.types.get(value.output)
    }
}

/// The operations of a list that runs this often, and those of their bodies.
fn with_bodies(list: &[RecordedOp], times: u64) -> Vec<Placed<'_>> {
    let mut all = Vec::new();
    for op in list {
        all.push(Placed { list, op, times });
        let times = times.saturating_mul(steps(list, op));
        all.extend(op.bodies.iter().flat_map(|body| with_bodies(&body.ops, times)));
    }
    all
}

fn recorded_product(placed: &Placed<'_>, devices: u64) -> Option<PlacedProduct> {
    let r = placed.op;
    let ty = |i: usize| placed.operand(i);
    let left = ty(0)?.shape.dims();
    let right = ty(1)?.shape.dims();
    let result = r.types.first()?.shape.dims();
    let len = |dims: &[usize]| dims.iter().fold(1_u64, |n, &dim| n.saturating_mul(dim as u64));
    let (batch, rows, inner, columns) = match r.operation? {
        // The leading axes of the right side, if any, match those of the left. The first of them is
        // the batch.
        "matmul" if right.len() > 2 => {
            let [leading @ .., rows, inner] = left else { return None };
            (len(leading), *rows as u64, *inner as u64, *right.last()? as u64)
        }
        "matmul" => {
            let (inner, leading) = left.split_last()?;
            (1, len(leading).div_ceil(devices), *inner as u64, len(right.get(1..)?))
        }
        // `[batch, in, …]` and `[out, in / groups, …]` make `[batch, out, …]`. A derivative has its
        // axes in a different order.
        "convolution" => {
            let [images, channels, positions @ ..] = result else { return None };
            let [features, kernel @ ..] = right else { return None };
            if left.first() != Some(images) || channels != features {
                return None;
            }
            (1, (*images as u64 * len(positions)).div_ceil(devices), len(kernel), *features as u64)
        }
        _ => return None,
    };
    let flops = 2.0 * batch as f64 * rows as f64 * inner as f64 * columns as f64;
    let operands = ElementType::F32;
    let precision = Precision::Default;
    Some(PlacedProduct {
        product: Product {
            batch,
            rows,
            inner,
            columns,
            features: inner,
            operands,
            precision,
            flops,
        },
        name: String::new(),
        times: placed.times,
        op_name: String::new(),
        source: Some(Source { file: r.location.file().into(), line: r.location.line() }),
    })
}

/// The axes of a mesh that split a batch.
const BATCH_AXES: [&str; 3] = ["data", "fsdp", "expert"];

/// Devices that repeat each other's work: each computes more than its share of the recorded
/// products. That happens if weights are split over a mesh axis but the activations around them are
/// not, or if nothing is split over it. `shardings` are those of the program's parameters.
///
/// `None` if there is little such work, or if a loop has an unknown length.
pub fn repeated_work(
    recorded: &[RecordedOp],
    shardings: &[Sharding],
    mesh: &Mesh,
    compiled: &Module,
) -> Option<Warning> {
    let is_extra = |axis: &str| !BATCH_AXES.contains(&axis);
    let several = mesh.axes().iter().filter(|axis| axis.1 > 1).map(|axis| axis.0.as_str());
    let extra: Vec<&str> = several.filter(|axis| is_extra(axis)).collect();
    if extra.is_empty() || compiled.loops().iter().any(|l| l.trip_count.is_none()) {
        return None;
    }
    let own: f64 = compiled.products().iter().map(|p| p.product.flops * p.times as f64).sum();
    let share = recorded_flops(recorded)? / mesh.num_devices() as f64;
    let times = own / share;
    if !times.is_finite() || times < MIN_REPEATED {
        return None;
    }
    let is_split = |op: &&RecordedOp| {
        let sharding = op.parameter.and_then(|parameter| shardings.get(parameter));
        sharding.is_some_and(|sharding| sharding.axes().iter().flatten().any(|axis| is_extra(axis)))
    };
    let because = match recorded.iter().find(is_split) {
        Some(op) => format!(
            "Weights such as `{}` are split, but the activations around them are not",
            op.name.as_deref().unwrap_or_default()
        ),
        None => "Nothing is split over it".to_owned(),
    };
    Some(Warning {
        message: format!(
            "devices along the mesh axis `{}` repeat work: {times:.1} × the FLOPs of one device's share. {}; name the axes \
             of both (`with_axes`, `constrain`), for which ready-made models only need a strategy such as `tp=8`, or \
             constrain activations with `with_sharding`",
            extra.join("+"),
            because
        ),
        source: None,
    })
}

/// The floating-point operations of all recorded products; `None` if a loop has an unknown length.
fn recorded_flops(list: &[RecordedOp]) -> Option<f64> {
    let mut total = 0.0;
    for op in list {
        let bodies = op.bodies.iter().map(|body| recorded_flops(&body.ops));
        let inner = bodies.sum::<Option<f64>>()?;
        let times = match op.operation {
            _ if inner == 0.0 => 0,
            // A scan whose body takes no slice and returns none does not say its length.
            Some("scan") if steps(list, op) > 1 => steps(list, op),
            Some("scan" | "while_loop") => return None,
            _ => 1,
        };
        total += op.product_flops + inner * times as f64;
    }
    Some(total)
}

/// Products whose sizes leave a part of the matrix unit empty, the most wasteful first.
pub fn matrix_unit(products: &[PlacedProduct], unit: u64) -> Vec<Warning> {
    let work = |p: &PlacedProduct| p.product.flops * p.times as f64;
    let total_work: f64 = products.iter().map(work).sum();
    // Equal products on one line count once.
    let mut groups: BTreeMap<(String, [u64; 3]), (f64, f64, u64)> = BTreeMap::new();
    for placed in products {
        let product = &placed.product;
        let source = placed.source.as_ref().map(ToString::to_string).unwrap_or_default();
        let entry =
            groups.entry((source, [product.rows, product.inner, product.columns])).or_default();
        entry.0 += work(placed);
        entry.1 = utilization(product, unit);
        entry.2 += placed.times.saturating_mul(product.batch);
    }
    let mut groups: Vec<_> = groups
        .into_iter()
        .filter(|(_, (work, used, _))| {
            *work >= MIN_WORK_SHARE * total_work && *used < FULL_SHARE && *used > 0.0
        })
        .collect();
    let wasted = |(work, used, _): &(f64, f64, u64)| work * (1.0 / used - 1.0);
    groups.sort_by(|a, b| wasted(&b.1).total_cmp(&wasted(&a.1)));
    let remaining = groups.len().saturating_sub(MAX_WARNINGS);
    let mut warnings: Vec<Warning> = groups
        .into_iter()
        .take(MAX_WARNINGS)
        .map(|((source, [rows, inner, columns]), (work, used, times))| Warning {
            message: format!(
                "{times} × a product of {rows}×{inner} by {inner}×{columns} fills at most {:.0} % of the {unit}×{unit} matrix \
                 unit ({:.0} % of the step's products); lengths that are multiples of {unit} fill it",
                100.0 * used,
                100.0 * work / total_work
            ),
            source: Some(source).filter(|source| !source.is_empty()),
        })
        .collect();
    if remaining > 0 {
        let message = match remaining {
            1 => "1 more product does not fill the matrix unit".to_owned(),
            _ => format!("{remaining} more products do not fill the matrix unit"),
        };
        warnings.push(Warning { message, source: None });
    }
    warnings
}

/// Arrays that are mostly padding to tiles of 8 × 128, the most wasteful first.
pub(crate) fn tiles(arrays: &[LargeArray]) -> Vec<Warning> {
    let bytes = |array: &LargeArray| {
        let elements = array.ty.dims.iter().fold(1_u64, |n, &dim| n.saturating_mul(dim as u64));
        elements.saturating_mul(array.ty.element_type.size_in_bits() as u64).div_ceil(8)
    };
    // Group the arrays by type. Each group reports its first line.
    let mut groups: BTreeMap<String, (u64, u64, usize, Option<String>)> = BTreeMap::new();
    for array in arrays {
        let unpadded = bytes(array);
        if array.bytes.saturating_sub(unpadded) >= MIN_PADDING_BYTES
            && array.bytes >= unpadded.saturating_mul(3) / 2
        {
            let source = || array.source.as_ref().map(ToString::to_string);
            let (count, first) =
                groups.remove(&array.ty.to_string()).map_or((0, None), |entry| (entry.2, entry.3));
            groups.insert(
                array.ty.to_string(),
                (unpadded, array.bytes, count + 1, first.or_else(source)),
            );
        }
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, (unpadded, padded, n, _))| {
        std::cmp::Reverse((padded - unpadded).saturating_mul(*n as u64))
    });
    let warning = |(ty, (unpadded, padded, n, source)): (
        String,
        (u64, u64, usize, Option<String>),
    )| Warning {
        message: format!(
            "{n} × {ty} takes {:.1} × its bytes, because its fastest axes are padded to tiles of 8×128",
            padded as f64 / unpadded.max(1) as f64
        ),
        source,
    };
    groups.into_iter().take(MAX_WARNINGS).map(warning).collect()
}

/// Warns about products of `f32` in the recorded program. The compiled program doesn't show them:
/// at default precision, a matrix unit multiplies `f32` as `bf16`, so there they are `bf16`
/// already.
pub fn single_precision(recorded: &[RecordedOp], passes: Passes) -> Option<Warning> {
    let is_product = |placed: &Placed<'_>| {
        matches!(placed.op.operation, Some("matmul" | "dot_general" | "convolution"))
    };
    let operations = with_bodies(recorded, 1);
    let products: Vec<&Placed<'_>> = operations.iter().filter(|op| is_product(op)).collect();
    let is_f32 = |placed: &&&Placed<'_>| {
        let is_wide = |i: usize| placed.operand(i).is_some_and(|ty| ty.dtype == DType::F32);
        (0..placed.op.operands.len()).all(is_wide)
    };
    let wide: Vec<&&Placed<'_>> = products.iter().filter(is_f32).collect();
    let first = wide.first()?;
    let Passes { most, flops_share } = passes;
    let percent = (100.0 * flops_share).round();
    let multiplied = if most == 1 || percent < 1.0 {
        "rounds them to bf16 anyway".to_owned()
    } else if percent >= 100.0 {
        format!("takes {most} passes in bf16 over them, the cost of a higher matmul precision")
    } else {
        format!(
            "takes {most} passes in bf16 over those with a higher precision ({percent} % of all products' FLOPs), and \
             rounds the others to bf16"
        )
    };
    Some(Warning {
        message: format!(
            "{} of {} products take f32, and the matrix unit {multiplied}; bf16-mixed precision halves what is read and \
             kept for the backward pass",
            wide.len(),
            products.len()
        ),
        source: Some(first.op.location.to_string()),
    })
}

/// How often the matrix unit passes over products of f32 numbers at a higher precision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Passes {
    /// The largest number of passes of any product.
    pub most: u32,
    /// The share of these products in the FLOPs of all products, from 0 to 1.
    pub flops_share: f64,
}

impl Passes {
    /// One pass over every product.
    pub const ONE: Passes = Passes { most: 1, flops_share: 0.0 };

    /// The passes of a compiled program.
    pub(crate) fn new(products: &[PlacedProduct]) -> Passes {
        let mut passes = Passes::ONE;
        let mut all = 0.0;
        let mut repeated = 0.0;
        for PlacedProduct { product, times, .. } in products {
            let flops = product.flops * *times as f64;
            all += flops;
            if product.passes() > 1 {
                repeated += flops;
                passes.most = passes.most.max(product.passes());
            }
        }
        if all > 0.0 {
            passes.flops_share = repeated / all;
        }
        passes
    }
}

#[cfg(test)]
mod tests {
    use fulmen_pjrt::ArrayType;
    use fulmen_tensor::{Function, Tensor, grad, scan, while_loop};

    use super::*;

    fn product(rows: u64, inner: u64, columns: u64) -> PlacedProduct {
        let flops = 2.0 * rows as f64 * inner as f64 * columns as f64;
        let operands = ElementType::Bf16;
        let precision = Precision::Default;
        PlacedProduct {
            product: Product {
                batch: 1,
                rows,
                inner,
                columns,
                features: inner,
                operands,
                precision,
                flops,
            },
            name: String::new(),
            times: 1,
            op_name: String::new(),
            source: Some(Source { file: "m.rs".into(), line: inner as u32 }),
        }
    }

    #[test]
    fn a_full_matrix_unit_causes_no_warning() {
        assert_eq!(utilization(&product(1024, 256, 128).product, 128), 1.0);
        assert_eq!(utilization(&product(1024, 64, 128).product, 128), 0.5);
        // Ten columns, but the many rows can fill the unit's columns instead.
        assert_eq!(utilization(&product(1024, 256, 10).product, 128), 10.0 / 16.0);
        assert_eq!(utilization(&product(1024, 128, 128).product, 256), 0.5);
        assert!(matrix_unit(&[product(1024, 256, 128)], 128).is_empty());
        let warnings =
            matrix_unit(&[product(1024, 256, 128), product(4096, 100, 100), product(8, 8, 8)], 128);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert_eq!(warnings[0].source.as_deref(), Some("m.rs:100"));
        assert!(
            warnings[0].message.contains("1 × a product of 4096×100 by 100×100 fills at most 75 %"),
            "{warnings:?}"
        );
        assert!(matrix_unit(&[product(1024, 256, 128)], 256).is_empty(), "the rows fill the unit");
        assert_eq!(matrix_unit(&[product(1024, 128, 128)], 256).len(), 1);
    }

    #[test]
    fn mostly_padded_arrays_are_reported_by_type() {
        let array = |dims: &[usize], bytes, line| LargeArray {
            ty: ArrayType::new(ElementType::F32, dims),
            bytes,
            name: String::new(),
            opcode: String::new(),
            op_name: String::new(),
            source: Some(Source { file: "m.rs".into(), line }),
        };
        let padded = 8192 * 128 * 4;
        let arrays = [
            array(&[8192, 16], padded, 7),
            array(&[8192, 16], padded, 9),
            array(&[8192, 100], padded, 3),
        ];
        let warnings = tiles(&arrays);
        let [warning] = &warnings[..] else { panic!("{warnings:?}") };
        assert!(
            warning.message.starts_with("2 × f32[8192,16] takes 8.0 × its bytes"),
            "{warnings:?}"
        );
        assert_eq!(warning.source.as_deref(), Some("m.rs:7"));
    }

    #[test]
    fn all_recorded_products_count_also_those_of_loops_and_derivatives() {
        let weight = || Tensor::ones(DType::F32, [8, 8]);
        let flops = |f: &dyn Fn(&Tensor) -> Tensor| {
            let ty = TensorType::new(DType::F32, [4, 8]);
            let function = Function::trace("f", ty, |x| f(&x));
            recorded_flops(&function.recorded().unwrap())
        };
        let one = 2.0 * 4.0 * 8.0 * 8.0;
        assert_eq!(flops(&|x| x.matmul(weight())), Some(one));
        let three = |x: &Tensor| {
            let body = |c: Tensor, x: Tensor| ((c.matmul(weight()) + &x).tanh(), ());
            scan(x, Tensor::zeros(DType::F32, [3]), body).0
        };
        let unknown =
            |x: &Tensor| scan(x, Tensor::zeros(DType::F32, [3]), |c, _| (c.matmul(weight()), ())).0;
        assert_eq!(flops(&unknown), None);
        assert_eq!(flops(&three), Some(3.0 * one));
        assert_eq!(flops(&|x| grad(&three(x).tanh().sum_all(), &[x]).remove(0)), Some(6.0 * one));
        let endless = |x: &Tensor| while_loop(x, |c| c.sum_all().lt(9.0), |c| c.matmul(weight()));
        assert_eq!(flops(&endless), None);
    }

    #[test]
    fn products_of_f32_are_counted_as_recorded() {
        let f32s = [TensorType::new(DType::F32, [4, 8]), TensorType::new(DType::F32, [8, 2])];
        let wide = Function::trace("f", &f32s, |x| x[0].matmul(&x[1])).recorded().unwrap();
        let warning = single_precision(&wide, Passes::ONE).unwrap();
        assert!(
            warning.message.starts_with("1 of 1 products take f32, and the matrix unit rounds"),
            "{warning:?}"
        );
        assert!(warning.source.unwrap().contains("warnings.rs"));
        let six =
            |flops_share| single_precision(&wide, Passes { most: 6, flops_share }).unwrap().message;
        assert!(six(1.0).contains("takes 6 passes in bf16 over them"));
        // One product of an FFT does not make all of them slow.
        assert!(six(0.001).contains("rounds them to bf16 anyway"), "{}", six(0.001));
        assert!(six(0.25).contains("(25 % of all products' FLOPs)"), "{}", six(0.25));
        let bf16 = f32s.map(|ty| TensorType::new(DType::Bf16, ty.shape));
        let narrow = Function::trace("f", bf16, |[x, w]| x.matmul(&w)).recorded().unwrap();
        assert_eq!(single_precision(&narrow, Passes::ONE), None);
    }

    #[test]
    fn a_product_with_a_higher_precision_counts_by_its_share() {
        let mut in_fft = product(8, 8, 8);
        in_fft.product.operands = ElementType::F32;
        in_fft.product.precision = Precision::Highest;
        let others = PlacedProduct { times: 3, ..product(8, 8, 8) };
        let expected = Passes { most: 6, flops_share: 0.25 };
        assert_eq!(Passes::new(&[others, in_fft]), expected);
    }

    #[test]
    fn products_in_loops_count_as_often_as_they_run() {
        let types =
            [TensorType::new(DType::F32, [64, 16]), TensorType::new(DType::F32, [5, 16, 16])];
        let layers = Function::trace("f", types, |[x, w]| {
            scan(&x, &w, |h, weight| (h.matmul(&weight), ())).0
        });
        let recorded = layers.recorded().unwrap();
        let products = recorded_products(&recorded, 2);
        let sizes: Vec<_> = products.iter().map(|p| (p.product.rows, p.times)).collect();
        assert_eq!(sizes, [(32, 5)]);
        let message = single_precision(&recorded, Passes::ONE).unwrap().message;
        assert!(message.starts_with("1 of 1 products take f32"), "{message}");
    }
}
