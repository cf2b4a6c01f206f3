//! The matrix products of a compiled program: `dot` and `convolution`, including those in fusions.
//! Each product is described by rows, inner length and columns, as a matrix unit computes it.

use super::loops::RunCounts;
use super::module::{Module, Source};
use super::proto;
use super::shape::{Array, Shape};
use crate::element_type::ElementType;

/// The maximum number of window positions that are counted one by one; above it, padding is
/// ignored.
const MAX_POSITIONS: u64 = 1 << 22;

/// A matrix product: `batch` products of `rows × inner` by `inner × columns`.
#[derive(Clone, Debug, PartialEq)]
pub struct Product {
    /// The number of products of this size.
    pub batch: u64,
    /// The rows of the result. For a convolution: the batch size times the output positions.
    pub rows: u64,
    /// The length of the sum. For a convolution: the input features times the positions in the
    /// window.
    pub inner: u64,
    /// The columns of the result. For a convolution: the output features.
    pub columns: u64,
    /// The part of `inner` that runs over the features; the rest are positions in a window.
    pub features: u64,
    /// The wider element type of the two operands.
    pub operands: ElementType,
    /// The precision of products of `f32` operands.
    pub precision: Precision,
    /// Floating-point operations (multiplications and additions), without those on padding.
    pub flops: f64,
}

/// The precision of products of `f32` operands on a matrix unit for `bf16`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Precision {
    /// Rounded to `bf16`: one pass.
    #[default]
    Default,
    /// Three passes.
    High,
    /// Six passes, nearly the precision of `f32`.
    Highest,
}

impl Product {
    /// The number of passes of the matrix unit: one, or more for `f32` at a higher precision.
    pub fn passes(&self) -> u32 {
        match (self.operands, self.precision) {
            (ElementType::F32, Precision::High) => 3,
            (ElementType::F32, Precision::Highest) => 6,
            _ => 1,
        }
    }

    pub(super) fn read(
        instruction: &proto::Instruction,
        operand_shapes: &[&Shape],
        result: &Shape,
    ) -> Option<Product> {
        let left = operand_shapes.first()?.as_array()?;
        let right = operand_shapes.get(1)?.as_array()?;
        let mut product = match instruction.opcode.as_str() {
            "dot" => dot(instruction.dot_dimension_numbers.as_ref()?, left, right)?,
            "convolution" => convolution(instruction, left, right, result.as_array()?)?,
            _ => return None,
        };
        let precisions =
            instruction.precision_config.iter().flat_map(|config| &config.operand_precision);
        product.precision = match precisions.max() {
            Some(2) => Precision::Highest,
            Some(1) => Precision::High,
            _ => Precision::Default,
        };
        Some(product)
    }
}

fn wider(left: &Array, right: &Array) -> ElementType {
    let types = [left.ty.element_type, right.ty.element_type];
    if types[0].size_in_bits() >= types[1].size_in_bits() { types[0] } else { types[1] }
}

fn size(array: &Array, dim: i64) -> Option<u64> {
    array.ty.dims.get(usize::try_from(dim).ok()?).map(|&size| size as u64)
}

fn product_of(array: &Array, dims: &[i64]) -> Option<u64> {
    dims.iter().try_fold(1_u64, |n, &dim| Some(n.saturating_mul(size(array, dim)?)))
}

fn dot(numbers: &proto::DotDimensionNumbers, left: &Array, right: &Array) -> Option<Product> {
    let batch = product_of(left, &numbers.lhs_batch_dimensions)?;
    let inner = product_of(left, &numbers.lhs_contracting_dimensions)?;
    let rest = |array: &Array, used: [&[i64]; 2]| {
        let is_used = |dim: usize| {
            used.iter().any(|dims| dims.iter().any(|&d| usize::try_from(d) == Ok(dim)))
        };
        let free = array.ty.dims.iter().enumerate().filter(|(dim, _)| !is_used(*dim));
        free.fold(1_u64, |n, (_, &size)| n.saturating_mul(size as u64))
    };
    let rows = rest(left, [&numbers.lhs_batch_dimensions, &numbers.lhs_contracting_dimensions]);
    let columns = rest(right, [&numbers.rhs_batch_dimensions, &numbers.rhs_contracting_dimensions]);
    let flops = 2.0 * batch as f64 * rows as f64 * inner as f64 * columns as f64;
    let precision = Precision::Default;
    Some(Product {
        batch,
        rows,
        inner,
        columns,
        features: inner,
        operands: wider(left, right),
        precision,
        flops,
    })
}

fn convolution(
    instruction: &proto::Instruction,
    left: &Array,
    right: &Array,
    result: &Array,
) -> Option<Product> {
    let numbers = instruction.convolution_dimension_numbers.as_ref()?;
    let features = size(right, numbers.kernel_input_feature_dimension)?;
    let columns = size(right, numbers.kernel_output_feature_dimension)?;
    let window = instruction.window.as_ref().map_or(&[][..], |window| &window.dimensions);
    let mut window_size = 1_u64;
    // One product of one input and one weight for each pair of features and each sample.
    let mut pairs = 1.0;
    let mut batch = 1_u64;
    for (i, dim) in window.iter().enumerate() {
        let input = size(left, *numbers.input_spatial_dimensions.get(i)?)?;
        let output = size(result, *numbers.output_spatial_dimensions.get(i)?)?;
        let kernel = u64::try_from(dim.size).ok()?;
        let met = positions(dim, input, output, kernel);
        pairs *= met as f64;
        // libtpu represents the batch of a matrix product as a window of the same length that meets
        // each input once.
        if met == output && kernel == output && output > 1 && dim.stride != 1 {
            batch = batch.saturating_mul(output);
        } else {
            window_size = window_size.saturating_mul(kernel);
        }
    }
    let output = size(result, numbers.output_feature_dimension)?.max(1);
    let elements = result.num_elements();
    let spatial: u64 = numbers
        .output_spatial_dimensions
        .iter()
        .try_fold(1_u64, |n, &dim| Some(n.saturating_mul(size(result, dim)?)))?;
    let groups = u64::try_from(instruction.batch_group_count.max(1)).ok()?;
    let samples = elements / output / spatial.max(1);
    Some(Product {
        batch,
        rows: elements / output / batch.max(1),
        inner: features.saturating_mul(window_size),
        columns,
        features,
        operands: wider(left, right),
        precision: Precision::Default,
        flops: 2.0 * pairs * samples as f64 * output as f64 * features as f64 * groups as f64,
    })
}

/// How often the positions of a window meet a real input along one dimension, instead of padding or
/// a hole of a dilation.
fn positions(dim: &proto::WindowDimension, input: u64, output: u64, kernel: u64) -> u64 {
    let all = output.saturating_mul(kernel);
    if all > MAX_POSITIONS {
        return all.min(output.saturating_mul(input));
    }
    let stride = dim.stride.max(1);
    let hole = dim.base_dilation.max(1);
    let spread = dim.window_dilation.max(1);
    let (Ok(input), Ok(output), Ok(kernel)) =
        (i64::try_from(input), i64::try_from(output), i64::try_from(kernel))
    else {
        return all;
    };
    let mut hits = 0;
    for o in 0..output {
        for k in 0..kernel {
            let position = o
                .saturating_mul(stride)
                .saturating_add(k.saturating_mul(spread))
                .saturating_sub(dim.padding_low);
            hits += u64::from(position >= 0 && position % hole == 0 && position / hole < input);
        }
    }
    hits
}

/// A matrix product and its place in the program.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacedProduct {
    /// The product.
    pub product: Product,
    /// The instruction's name.
    pub name: String,
    /// How often one execution of the program runs it.
    pub times: u64,
    /// The operation's name in the program's text.
    pub op_name: String,
    /// The line of the user's code, if known.
    pub source: Option<Source>,
}

impl Module {
    /// The matrix products, including those in fusions.
    pub fn products(&self) -> Vec<PlacedProduct> {
        let times = RunCounts::new(self);
        let mut products = Vec::new();
        for (i, computation) in self.computations.iter().enumerate() {
            if times.runs(i) == 0 {
                continue;
            }
            for instruction in &computation.instructions {
                if let Some(product) = &instruction.product {
                    products.push(PlacedProduct {
                        product: product.clone(),
                        name: instruction.name.clone(),
                        times: times.runs(i),
                        op_name: instruction.op_name.clone(),
                        source: instruction.source.clone(),
                    });
                }
            }
        }
        products
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dim(size: i64, stride: i64, padding: i64, base: i64, window: i64) -> proto::WindowDimension {
        proto::WindowDimension {
            size,
            stride,
            padding_low: padding,
            base_dilation: base,
            window_dilation: window,
        }
    }

    #[test]
    fn padding_and_holes_do_not_count() {
        // 5 inputs, 3 wide, padded by 1: the ends meet 2 inputs each, the others 3.
        assert_eq!(positions(&dim(3, 1, 1, 1, 1), 5, 5, 3), 13);
        assert_eq!(positions(&dim(3, 2, 0, 1, 1), 5, 2, 3), 6);
        // The gradient of a stride of 2: every second input is a hole.
        assert_eq!(positions(&dim(1, 1, 0, 2, 1), 3, 5, 1), 3);
        assert_eq!(positions(&dim(2, 1, 0, 1, 3), 5, 2, 2), 4);
    }

    #[test]
    fn a_dot_is_read_by_its_dimensions() {
        let array = |dims: &[i64]| {
            Shape::read(&proto::Shape {
                element_type: 11,
                dimensions: dims.to_vec(),
                ..Default::default()
            })
            .unwrap()
        };
        let instruction = proto::Instruction {
            opcode: "dot".into(),
            dot_dimension_numbers: Some(proto::DotDimensionNumbers {
                lhs_contracting_dimensions: vec![2],
                rhs_contracting_dimensions: vec![1],
                lhs_batch_dimensions: vec![0],
                rhs_batch_dimensions: vec![0],
            }),
            precision_config: Some(proto::PrecisionConfig { operand_precision: vec![0, 2] }),
            ..Default::default()
        };
        let left = array(&[4, 10, 30]);
        let right = array(&[4, 30, 50]);
        let result = array(&[4, 10, 50]);
        let product = Product::read(&instruction, &[&left, &right], &result).unwrap();
        assert_eq!((product.batch, product.rows, product.inner, product.columns), (4, 10, 30, 50));
        assert_eq!((product.flops, product.passes()), (2.0 * 4.0 * 10.0 * 30.0 * 50.0, 6));
    }
}
