//! Modules, layers, initializers, losses, metrics, optimizers, schedules, and weights in and out.
//!
//! A model is a struct whose fields are layers, parameters and settings. `#[derive(Module)]` gives
//! each of them a dotted name, the same as PyTorch's (`conv1.weight`), which is used to initialize,
//! save and load it. A layer's `forward` records an expression ([`Tensor`](fulmen_tensor::Tensor));
//! nothing runs until a value is requested.
//!
//! ```
//! use fulmen_nn::{Linear, Module, activation};
//! use fulmen_tensor::{DType, Tensor};
//!
//! #[derive(Module)]
//! struct Mlp {
//!     hidden: Linear,
//!     out: Linear,
//! }
//!
//! impl Mlp {
//!     fn forward(&self, x: &Tensor) -> Tensor {
//!         self.out.forward(&activation::relu(&self.hidden.forward(x)))
//!     }
//! }
//!
//! let model = Mlp { hidden: Linear::new(784, 512), out: Linear::new(512, 10) };
//! model.initialize(42);
//!
//! let names: Vec<_> = model.parameters().into_iter().map(|(name, _)| name).collect();
//! assert_eq!(names, ["hidden.weight", "hidden.bias", "out.weight", "out.bias"]);
//! assert_eq!(model.num_parameters(), 784 * 512 + 512 + 512 * 10 + 10);
//!
//! let logits = model.forward(&Tensor::zeros(DType::F32, [32, 784]));
//! assert_eq!(logits.ty().to_string(), "f32[32, 10]");
//! ```
//!
//! Out of scope: the training loop (`fulmen-trainer`) and datasets (`fulmen-data`). Nothing here
//! prints. Only functions that return values to the host wait for a device: saving weights, and
//! [`metrics::MetricState::eval`].

// The derive macro refers to this crate by name, also in this crate's own tests.
extern crate self as fulmen_nn;

pub mod activation;
pub mod attention;
pub mod augment;
pub mod auto_kernels;
pub mod axes;
mod buffer;
mod composed;
mod error;
pub mod init;
pub mod layers;
mod library;
pub mod loss;
mod method_name;
pub mod metrics;
mod model_summary;
mod module;
mod module_impls;
pub mod optim;
mod padding;
mod parameter;
mod precision;
mod random_stream;
pub mod safetensors;
mod scan_layers;
pub mod schedule;
pub mod stablehlo;
mod training_mode;
mod visit;
pub mod weights;

pub use buffer::Buffer;
#[doc(hidden)] // for `Lora`
pub use composed::LowRank;
pub use fulmen_derive::Module;
#[doc(inline)]
pub use fulmen_error::{Error, Result};
pub use init::Init;
pub use layers::{
    AdaptiveAvgPool, AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d, AdaptiveMaxPool,
    AdaptiveMaxPool1d, AdaptiveMaxPool2d, AdaptiveMaxPool3d, AlphaDropout, AvgPool, AvgPool1d,
    AvgPool2d, AvgPool3d, BagMode, BatchNorm, BatchNorm1d, BatchNorm2d, BatchNorm3d, Bilinear,
    Celu, CircularPad, CircularPad1d, CircularPad2d, CircularPad3d, ConditionalBatchNorm2d,
    ConstantPad, ConstantPad1d, ConstantPad2d, ConstantPad3d, Conv, Conv1d, Conv2d, Conv3d,
    ConvTranspose, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d, DropPath, Dropout, Dropout1d,
    Dropout2d, Dropout3d, Elu, Embedding, EmbeddingBag, Experts, Flatten, Forward, Gelu, Glu,
    GroupNorm, Gru, Hardshrink, Hardsigmoid, Hardswish, Hardtanh, Identity, InstanceNorm,
    InstanceNorm1d, InstanceNorm2d, InstanceNorm3d, LayerNorm, LeakyRelu, Linear,
    LocalResponseNorm, LogSigmoid, LogSoftmax, Lstm, MaxPool, MaxPool1d, MaxPool2d, MaxPool3d,
    Mish, MixtureOfExperts, MultiheadAttention, PixelShuffle, PixelUnshuffle, Prelu, ReflectionPad,
    ReflectionPad1d, ReflectionPad2d, ReflectionPad3d, Relu, Relu6, ReplicationPad,
    ReplicationPad1d, ReplicationPad2d, ReplicationPad3d, RmsNorm, Rnn, RnnNonlinearity, Router,
    RouterScores, Routing, Rrelu, Selu, SeparateProjections, Sequential, SharedExperts, Sides,
    Sigmoid, Silu, Sizes, Softmax, Softmin, Softplus, Softshrink, Softsign, SpectralNorm, Tanh,
    Tanhshrink, Threshold, Transformer, TransformerDecoder, TransformerDecoderLayer,
    TransformerEncoder, TransformerEncoderLayer, Unflatten, Upsample, Weighted, ZeroPad, ZeroPad1d,
    ZeroPad2d, ZeroPad3d,
};
pub use model_summary::ModelSummary;
pub use module::Module;
pub use parameter::Parameter;
pub use random_stream::RandomStream;
pub use scan_layers::{scan_layers, scan_layers_with_outputs, scanned};
pub use training_mode::{SavedModes, TrainingMode};
pub use visit::{Visit, Visitor};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
