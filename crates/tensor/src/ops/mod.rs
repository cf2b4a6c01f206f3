//! The operations, a file a family. Each has its shape rule, derivative, StableHLO form and public method together.

mod binary;
mod broadcast;
mod compare;
mod concatenate;
mod constant;
mod convert;
mod convolution;
mod dot;
mod dynamic_slice;
mod gather;
mod iota;
mod operators;
mod pad;
mod places;
mod pooling;
mod promote;
mod reduce;
mod reshape;
mod reverse;
mod scatter;
mod select;
mod sharding;
mod slice;
mod softmax;
mod stop_gradient;
mod takes;
pub(crate) mod threefry;
mod transpose;
mod triangle;
mod unary;

pub use binary::Operand;
pub use convolution::Convolution;
pub use pooling::Pooling;
pub use scatter::Combine;
