//! Fulmen trains neural networks on TPUs from Rust. Depend on this crate: it re-exports the others.
//!
#![doc = include_str!("../README.md")]

#[cfg(feature = "jemalloc")]
mod jemalloc;

// These are modules instead of renamed crates, so that the documentation shows their items, and
// compiler messages name types by paths that a user can write.

/// The command line for your binary: subcommands, a configuration file, and a flag for every option
/// of the Trainer.
pub mod cli {
    #[doc(inline)]
    pub use fulmen_trainer_cli::*;
}

/// Coordination of several processes that train one model: joining, barriers, agreement, and a
/// key-value store.
#[cfg(feature = "multi-host")]
pub mod coordination {
    #[doc(inline)]
    pub use fulmen_coordination::*;
}

/// A language of tiles for kernels, which libtpu compiles for TPUs, and the kernels that layers use.
#[cfg(feature = "kernels")]
pub mod kernels {
    #[doc(inline)]
    pub use fulmen_kernels::*;
}

/// The layers below tensors. To train, you need them only to find, download or diagnose a plugin.
pub mod low_level {
    /// PJRT plugins, clients, devices, topologies, buffers and executables.
    pub mod pjrt {
        #[doc(inline)]
        pub use fulmen_pjrt::*;
    }
}

/// Standard models, with the parameter names of torchvision, transformers and diffusers.
#[cfg(feature = "models")]
pub mod models {
    #[doc(inline)]
    pub use fulmen_models::*;
}

/// Modules, layers, losses, metrics, optimizers, schedules, and weight files.
pub mod nn {
    #[doc(inline)]
    pub use fulmen_nn::*;
}

/// Tensor expressions: operations, derivatives, control flow, lowering to StableHLO, and running.
pub mod tensor {
    #[doc(inline)]
    pub use fulmen_tensor::*;
}

/// The Trainer: the training loop, callbacks, checkpoints, loggers, options, and preflight.
pub mod trainer {
    #[doc(inline)]
    pub use fulmen_trainer::*;
}

/// Datasets, samplers, streams and loaders. Each file format has its own module, behind a feature
/// of this crate.
pub mod data {
    #[doc(inline)]
    pub use fulmen_data::*;

    /// A cache of decoded samples in memory-mapped Arrow files.
    #[cfg(feature = "cache")]
    pub mod cache {
        #[doc(inline)]
        pub use fulmen_cache::*;
    }

    /// Files and folders on local disks, and in object stores with the feature `cloud`.
    #[cfg(feature = "files")]
    pub mod files {
        #[doc(inline)]
        pub use fulmen_files::*;
    }

    /// Images: decoding, folders by class, CIFAR, and torchvision's transforms.
    #[cfg(feature = "images")]
    pub mod images {
        #[doc(inline)]
        pub use fulmen_images::*;
    }

    /// WebDataset tar shards and TFRecord files.
    #[cfg(feature = "shards")]
    pub mod shards {
        #[doc(inline)]
        pub use fulmen_shards::*;
    }

    /// CSV, JSON lines, text files, Arrow, Parquet, and Hugging Face dataset folders.
    #[cfg(feature = "tables")]
    pub mod tables {
        #[doc(inline)]
        pub use fulmen_tables::*;
    }

    /// Texts as tokens: tokenizers, packing, masking, and token files.
    #[cfg(feature = "text")]
    pub mod text {
        #[doc(inline)]
        pub use fulmen_text::*;
    }
}

#[doc(inline)]
pub use fulmen_trainer::{Error, Result, init_logging, run_layer};

/// The names that you need most often: layers, losses, optimizers, metrics, in-memory data, the
/// loader, the Trainer and its callbacks.
///
/// The schedules [`Linear`](fulmen_nn::schedule::Linear) and
/// [`Sequential`](fulmen_nn::schedule::Sequential) share their names with layers. Write
/// `schedule::Linear`, as for optimizers (`optim::AdamW`).
pub mod prelude {
    #[cfg(feature = "cache")]
    pub use fulmen_cache::CacheExt;
    pub use fulmen_data::{DataLoader, Dataset, TensorDataset, random_split};
    pub use fulmen_nn::layers::*;
    pub use fulmen_nn::loss::Reduction;
    pub use fulmen_nn::optim::Optimizer;
    pub use fulmen_nn::{Init, Module, Parameter, activation, loss, metrics, optim, schedule};
    pub use fulmen_tensor::{
        Accelerator, AsTensor, DType, Devices, Literal, Runtime, Shape, Tensor, TensorType, grad,
    };
    pub use fulmen_trainer::callbacks::{EarlyStopping, Mode, ModelCheckpoint, ReduceLROnPlateau};
    pub use fulmen_trainer::{
        Actions, Batch, Callback, EvaluationSet, EvaluationSets, FitStart, FitSummary, LogPoint,
        Optimizers, Options, Plan, Precision, Predictions, Progress, ReduceFx, StepContext,
        Strategy, TrainStep, Trainer, TrainerArgs, TrainerBuilder, TrainingFn, TrainingModule,
        WeightAveraging, Weights,
    };
}
