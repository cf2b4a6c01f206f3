//! Tensor expressions: recorded, differentiated, lowered to StableHLO, and run by a PJRT plugin.
//!
//! ```
//! use fulmen_tensor::{Tensor, grad};
//!
//! let w = Tensor::from_slice(&[1.0f32, -2.0, 0.5], [3, 1]);
//! let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3]);
//! let loss = x.matmul(&w).tanh().mean_all();
//! let dw = &grad(&loss, &[&w])[0];
//! assert_eq!(dw.ty().to_string(), "f32[3, 1]");
//! println!("{:?}", dw.eval()?.to_vec::<f32>()?);
//! # Ok::<(), fulmen_tensor::Error>(())
//! ```
//!
//! A [`Tensor`] is an expression for a value. Recording an operation never runs, blocks or panics.
//! A mistake poisons the tensor, and [`Tensor::eval`] returns it as an [`Error`] with your file and
//! line. [`grad()`] turns an expression into the expressions of its gradients. A [`Function`] is an
//! expression with inputs. A [`Runtime`] compiles it once, and the [`Compiled`] program runs on
//! values that stay on the devices.
//!
//! Out of scope: models, optimizers, training loops.

// A training step may ignore the result of a call that it makes for its effect, such as the loss
// that `StepContext::minimize` returns.
#![allow(clippy::return_self_not_must_use)]

// Derived code names this crate.
extern crate self as fulmen_tensor;

mod accelerator;
mod ahead_of_time;
mod anomalies;
mod apply;
mod array;
mod as_axes;
mod as_tensor;
mod autocast;
mod axis_order;
mod compiled;
mod devices;
mod disk_cache;
mod dtype;
mod emit;
mod error;
mod function;
mod grad;
mod gradient_flow;
mod graph;
mod hash;
mod host_reads;
mod index_checks;
#[doc(hidden)]
pub mod internal;
mod jit;
mod literal;
mod lower;
mod mesh;
mod metrics;
mod missing_values;
mod names;
mod notes;
mod operation;
mod ops;
mod partitioner;
mod passes;
mod precision;
mod printing;
pub mod random;
mod recompiles;
mod recorded_op;
mod refused_operations;
mod region;
mod runtime;
mod scope;
mod shape;
mod sharding;
mod stored_value;
mod tensor;
mod test_programs;
#[cfg(test)]
#[path = "../tests/it/notes.rs"]
mod tests_notes;
mod transfer;
mod tree;
mod variable;
mod whole_axes;

pub use accelerator::Accelerator;
pub use anomalies::Anomalies;
pub use array::{Argument, DeviceArray, DevicePart};
pub use as_axes::AsAxes;
pub use as_tensor::AsTensor;
pub use autocast::autocast;
pub use compiled::{Compiled, Completion, Outputs};
pub use devices::Devices;
pub use dtype::{DType, Element};
pub use fulmen_derive::Tree;
#[doc(inline)]
pub use fulmen_error::{Error, Fault, Result};
pub use function::Function;
pub use grad::{grad, value_and_grad};
pub use jit::Jit;
pub use literal::Literal;
pub use mesh::Mesh;
pub use metrics::{MetricSnapshot, Metrics, MetricsSnapshot, Rates, SampleRange, Unit};
pub use num_complex::Complex;
pub use ops::TriangularSolve;
pub use ops::{
    Bound, Combine, Convolution, Interpolation, Operand, PadMode, Pooling, Scan, call, checkpoint,
    cond, custom_gradient, fori_loop, map, scan, switch, while_loop,
};
pub use precision::MatmulPrecision;
pub use recorded_op::{RecordedBody, RecordedOp, RecordedValue};
pub use runtime::{PeerStore, Peers, Preloaded, Runtime};
pub use scope::{FromFault, Refusal, Scope};
pub use shape::{Shape, TensorType};
pub use sharding::{Block, Sharding};
pub use stored_value::StoredValue;
pub use tensor::Tensor;
pub use transfer::PendingLiterals;
#[doc(hidden)]
pub use tree::names_within;
pub use tree::{IntoTree, Tree};
pub use variable::Variable;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
