//! Fulmen trains neural networks on TPUs from Rust. This crate is the one to depend on: it re-exports the others.
//!
//! The README's example, compiled and run by the tests:
#![doc = include_str!("../../../README.md")]

pub use fulmen_coordination as coordination;
pub use fulmen_data as data;
pub use fulmen_nn as nn;
pub use fulmen_pjrt as pjrt;
pub use fulmen_tensor as tensor;
pub use fulmen_trainer as trainer;
pub use fulmen_trainer::cli;

/// What most programs use.
pub mod prelude {
    pub use fulmen_data::{DataLoader, Dataset, LastBatch};
    pub use fulmen_nn::optim::Optimizer;
    pub use fulmen_nn::{Forward, Module, loss, metrics, optim, schedule};
    pub use fulmen_tensor::{Accelerator, DType, Devices, Literal, Runtime, Shape, Tensor, TensorType, grad};
    pub use fulmen_trainer::callbacks::{EarlyStopping, Mode, ModelCheckpoint, ReduceLROnPlateau};
    pub use fulmen_trainer::{
        Batch, Options, Plan, Precision, Predictions, StepContext, Strategy, Trainer, TrainerArgs, TrainerBuilder,
        TrainingModule, WeightAveraging, Weights,
    };
}

/// The book's programs, compiled and run by the tests.
#[cfg(doctest)]
mod book {
    #[doc = include_str!("../../../docs/src/introduction.md")]
    mod introduction {}
    #[doc = include_str!("../../../docs/src/quick-start.md")]
    mod quick_start {}
    #[doc = include_str!("../../../docs/src/tensors.md")]
    mod tensors {}
    #[doc = include_str!("../../../docs/src/control-flow.md")]
    mod control_flow {}
    #[doc = include_str!("../../../docs/src/operations.md")]
    mod operations {}
    #[doc = include_str!("../../../docs/src/models.md")]
    mod models {}
    #[doc = include_str!("../../../docs/src/data.md")]
    mod data {}
    #[doc = include_str!("../../../docs/src/files.md")]
    mod files {}
    #[doc = include_str!("../../../docs/src/pictures.md")]
    mod pictures {}
    #[doc = include_str!("../../../docs/src/text.md")]
    mod text {}
    #[doc = include_str!("../../../docs/src/cache.md")]
    mod cache {}
    #[doc = include_str!("../../../docs/src/preparing.md")]
    mod preparing {}
    #[doc = include_str!("../../../docs/src/bottleneck.md")]
    mod bottleneck {}
    #[doc = include_str!("../../../docs/src/training.md")]
    mod training {}
    #[doc = include_str!("../../../docs/src/metrics.md")]
    mod metrics {}
    #[doc = include_str!("../../../docs/src/checkpoints.md")]
    mod checkpoints {}
    #[doc = include_str!("../../../docs/src/options.md")]
    mod options {}
    #[doc = include_str!("../../../docs/src/command-line.md")]
    mod command_line {}
    #[doc = include_str!("../../../docs/src/devices.md")]
    mod devices {}
    #[doc = include_str!("../../../docs/src/several-devices.md")]
    mod several_devices {}
    #[doc = include_str!("../../../docs/src/many-hosts.md")]
    mod many_hosts {}
    #[doc = include_str!("../../../docs/src/preflight.md")]
    mod preflight {}
    #[doc = include_str!("../../../docs/src/performance.md")]
    mod performance {}
    #[doc = include_str!("../../../docs/src/seen.md")]
    mod seen {}
}
