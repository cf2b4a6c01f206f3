//! The operations, a file a family. Each has its shape rule, derivative, StableHLO form and public method together.

mod binary;
mod broadcast;
mod compare;
mod concatenate;
mod constant;
mod control_flow;
mod convert;
mod convolution;
mod dot;
mod dynamic_slice;
mod gather;
mod iota;
mod operators;
mod optimization_barrier;
mod pad;
mod pad_modes;
mod places;
mod pooling;
mod promote;
mod reduce;
mod reshape;
mod reverse;
mod roll;
mod scatter;
mod select;
mod sharding;
mod slice;
mod softmax;
mod split;
mod stop_gradient;
mod takes;
pub(crate) mod threefry;
mod tile;
mod transpose;
mod triangle;
mod unary;

pub use binary::Operand;
pub use control_flow::{
    Bound, Scan, checkpoint, cond, custom_gradient, fori_loop, map, scan, switch, while_loop,
};
pub use convolution::Convolution;
pub use pad_modes::PadMode;
pub use pooling::Pooling;
pub use scatter::Combine;
