//! The layers, one a file, with PyTorch's names, defaults and parameter names.

mod adaptive_pooling;
mod batch_norm;
mod conv;
mod dropout;
mod embedding;
mod flatten;
mod functions;
mod layer_norm;
mod linear;
mod multihead_attention;
mod pair;
mod pooling;
mod sequential;

pub use adaptive_pooling::AdaptiveAvgPool2d;
pub use batch_norm::{BatchNorm1d, BatchNorm2d};
pub use conv::Conv2d;
pub use dropout::Dropout;
pub use embedding::Embedding;
pub use flatten::Flatten;
pub use functions::{Elu, Gelu, LeakyRelu, Relu, Sigmoid, Silu, Softplus, Tanh};
pub use layer_norm::LayerNorm;
pub use linear::Linear;
pub use multihead_attention::MultiheadAttention;
pub use pair::Pair;
pub use pooling::{AvgPool2d, MaxPool2d};
pub use sequential::{Forward, Sequential};
