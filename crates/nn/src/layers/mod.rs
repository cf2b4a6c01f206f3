//! The layers, with PyTorch's names, defaults and parameter names. The crate root re-exports them.
//!
//! All layers are made the same way: `new` takes the required settings, and methods set the others,
//! which have PyTorch's defaults. `forward` takes a tensor or a reference to one.
//!
//! ```
//! use fulmen_nn::layers::{Conv2d, Dropout, LeakyRelu, Sequential};
//!
//! let block = Sequential::new()
//!     .add(Conv2d::new(3, 64, 3).padding(1).bias(false))
//!     .add(LeakyRelu::new(0.2))
//!     .add(Dropout::new(0.5));
//! assert_eq!(block.len(), 3);
//! ```

mod activations;
mod adaptive_pooling;
mod batch_norm;
mod bilinear;
mod conditional_batch_norm;
mod conv;
mod conv_transpose;
pub(crate) mod dropout;
mod embedding;
mod embedding_bag;
mod flatten;
mod group_norm;
mod identity;
mod instance_norm;
mod layer_norm;
mod linear;
mod local_response_norm;
mod mixture_of_experts;
mod multihead_attention;
mod normalize;
mod padding;
mod pooling;
mod prelu;
mod recurrent;
mod rms_norm;
mod running_stats;
mod sequential;
mod sizes;
mod spatial;
mod spectral_norm;
mod transformer;
mod transformer_layer;
mod upsample;

pub use activations::{
    Celu, Elu, Gelu, Glu, Hardshrink, Hardsigmoid, Hardswish, Hardtanh, LeakyRelu, LogSigmoid,
    LogSoftmax, Mish, Relu, Relu6, Selu, Sigmoid, Silu, Softmax, Softmin, Softplus, Softshrink,
    Softsign, Tanh, Tanhshrink, Threshold,
};
pub use adaptive_pooling::{
    AdaptiveAvgPool, AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d, AdaptiveMaxPool,
    AdaptiveMaxPool1d, AdaptiveMaxPool2d, AdaptiveMaxPool3d,
};
pub use batch_norm::{BatchNorm, BatchNorm1d, BatchNorm2d, BatchNorm3d};
pub use bilinear::Bilinear;
pub use conditional_batch_norm::ConditionalBatchNorm2d;
pub use conv::{Conv, Conv1d, Conv2d, Conv3d};
pub use conv_transpose::{ConvTranspose, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d};
pub use dropout::{AlphaDropout, DropPath, Dropout, Dropout1d, Dropout2d, Dropout3d};
pub use embedding::Embedding;
pub use embedding_bag::{BagMode, EmbeddingBag};
pub use flatten::{Flatten, Unflatten};
pub use group_norm::GroupNorm;
pub use identity::Identity;
pub use instance_norm::{InstanceNorm, InstanceNorm1d, InstanceNorm2d, InstanceNorm3d};
pub use layer_norm::LayerNorm;
pub use linear::Linear;
pub use local_response_norm::LocalResponseNorm;
pub use mixture_of_experts::{
    Experts, MixtureOfExperts, Router, RouterScores, Routing, SharedExperts,
};
pub use multihead_attention::{MultiheadAttention, SeparateProjections};
pub use padding::{
    CircularPad, CircularPad1d, CircularPad2d, CircularPad3d, ConstantPad, ConstantPad1d,
    ConstantPad2d, ConstantPad3d, ReflectionPad, ReflectionPad1d, ReflectionPad2d, ReflectionPad3d,
    ReplicationPad, ReplicationPad1d, ReplicationPad2d, ReplicationPad3d, Sides, ZeroPad,
    ZeroPad1d, ZeroPad2d, ZeroPad3d,
};
pub use pooling::{
    AvgPool, AvgPool1d, AvgPool2d, AvgPool3d, MaxPool, MaxPool1d, MaxPool2d, MaxPool3d,
};
pub use prelu::{Prelu, Rrelu};
pub use recurrent::{Gru, Lstm, Rnn, RnnNonlinearity};
pub use rms_norm::RmsNorm;
pub use sequential::{Forward, Sequential};
pub use sizes::Sizes;
pub use spectral_norm::{SpectralNorm, Weighted};
pub use transformer::{Transformer, TransformerDecoder, TransformerEncoder};
pub use transformer_layer::{TransformerDecoderLayer, TransformerEncoderLayer};
pub use upsample::{PixelShuffle, PixelUnshuffle, Upsample};
