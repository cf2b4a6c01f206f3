//! The operations, one file for each family. A file holds the shape rule, derivative, StableHLO
//! form and public method of each operation.

mod adaptive_pooling;
mod arg_reduce;
mod binary;
mod bitwise;
mod bounds;
mod broadcast;
mod cholesky;
mod clamp;
mod classify;
mod compare;
mod complex;
mod concatenate;
mod constant;
mod control_flow;
mod convert;
mod convolution;
mod convolution_products;
mod cumulative;
mod diagonal;
mod dot;
mod dtype_set;
mod dynamic_slice;
mod einsum;
mod exponential;
mod fft;
mod gather;
mod interpolate;
mod iota;
mod masked;
mod moments;
mod norm;
mod operators;
mod optimization_barrier;
mod pad;
mod pad_modes;
mod pooling;
mod pooling_positions;
mod promote;
mod reduce;
mod resample;
mod reshape;
mod reverse;
mod roll;
mod rounding;
mod scatter;
mod select;
mod select_and_scatter;
mod sequence;
mod sharding;
mod slice;
mod softmax;
mod sort;
mod special;
mod split;
mod stop_gradient;

pub(crate) mod threefry;
mod tile;
mod top_k;
pub(crate) mod transpose;
mod triangle;
mod triangular_solve;
mod trigonometric;
mod unary;

pub use binary::Operand;
pub use control_flow::{
    Bound, Scan, call, checkpoint, cond, custom_gradient, fori_loop, map, scan, switch, while_loop,
};
pub use convolution::Convolution;
pub use interpolate::Interpolation;
pub use pad_modes::PadMode;
pub use pooling::Pooling;
pub use scatter::Combine;
pub use triangular_solve::TriangularSolve;
