//! Recurrent layers: [`Rnn`], [`Lstm`] and [`Gru`], with PyTorch's options, formulas and parameter
//! names.
//!
//! `stack.rs` has the common part, `cell.rs` a step of each. Shapes are fixed, so sequences of
//! different lengths are padded, and `forward_lengths` takes the lengths (PyTorch's
//! `PackedSequence`).

mod cell;
mod gru;
mod lstm;
mod rnn;
mod stack;

pub use cell::RnnNonlinearity;
pub use gru::Gru;
pub use lstm::Lstm;
pub use rnn::Rnn;

/// The builder methods of all three layers.
macro_rules! builders {
    ($layer:ident) => {
        /// The number of layers, each reading the output of the previous one; 1 by default.
        pub fn num_layers(mut self, num_layers: usize) -> $layer {
            self.0.num_layers = num_layers;
            self.rebuilt()
        }

        /// With or without biases; initially with.
        pub fn bias(mut self, bias: bool) -> $layer {
            self.0.bias = bias;
            self.rebuilt()
        }

        /// Whether sequences are `[batch, length, features]` instead of `[length, batch,
        /// features]`. This does not affect states.
        pub fn batch_first(mut self, batch_first: bool) -> $layer {
            self.0.batch_first = batch_first;
            self
        }

        /// The probability of dropout between the layers; initially 0.
        pub fn dropout(mut self, p: f64) -> $layer {
            self.0.dropout = $crate::Dropout::new(p);
            self
        }

        /// Whether each layer also reads the sequence backwards and concatenates the features of
        /// both directions.
        pub fn bidirectional(mut self, bidirectional: bool) -> $layer {
            self.0.bidirectional = bidirectional;
            self.rebuilt()
        }

        fn rebuilt(mut self) -> $layer {
            self.0.build();
            self
        }

        /// The number of input features.
        pub fn input_size(&self) -> usize {
            self.0.input_size
        }

        /// The number of features of the state.
        pub fn hidden_size(&self) -> usize {
            self.0.hidden_size
        }
    };
}
use builders;

/// The name of the layer in messages.
macro_rules! shown {
    ($layer:ident, $name:literal) => {
        impl std::fmt::Display for $layer {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!($name, "({} -> {})"), self.0.input_size, self.0.hidden_size)
            }
        }
    };
}
use shown;
