//! Fulmen trains neural networks on TPUs from Rust. This crate is the one to depend on: it re-exports the others.
//!
//! The README's example, compiled and run by the tests:
#![doc = include_str!("../../../README.md")]

pub use fulmen_data as data;
pub use fulmen_nn as nn;
pub use fulmen_pjrt as pjrt;
pub use fulmen_tensor as tensor;
pub use fulmen_trainer as trainer;

/// What most programs use.
pub mod prelude {
    pub use fulmen_data::{DataLoader, Dataset, LastBatch};
    pub use fulmen_nn::optim::Optimizer;
    pub use fulmen_nn::{Forward, Module, loss, metrics, optim, schedule};
    pub use fulmen_tensor::{Accelerator, DType, Literal, Runtime, Shape, Tensor, TensorType, grad};
    pub use fulmen_trainer::callbacks::{EarlyStopping, Mode, ModelCheckpoint};
    pub use fulmen_trainer::{Batch, Plan, StepContext, Trainer, TrainerArgs, TrainingModule, Weights};
}
