//! The layers, one a file, with PyTorch's names, defaults and parameter names.

mod batch_norm;
mod conv;
mod dropout;
mod flatten;
mod functions;
mod linear;
mod pair;
mod pooling;
mod sequential;

pub use batch_norm::BatchNorm2d;
pub use conv::Conv2d;
pub use dropout::Dropout;
pub use flatten::Flatten;
pub use functions::{Elu, Gelu, LeakyRelu, Relu, Sigmoid, Silu, Softplus, Tanh};
pub use linear::Linear;
pub use pair::Pair;
pub use pooling::{AvgPool2d, MaxPool2d};
pub use sequential::{Forward, Sequential};
