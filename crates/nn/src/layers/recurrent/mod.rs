//! Recurrent layers: [`Rnn`], [`Lstm`] and [`Gru`], with PyTorch's options, formulas and parameter names.
//!
//! What the three have in common stands in `stack.rs`, a step of each in `cell.rs`. Sequences of different lengths in one
//! batch (PyTorch's `PackedSequence`) are not here: shapes are fixed.

mod cell;
mod gru;
mod lstm;
mod rnn;
mod stack;

pub use cell::RnnNonlinearity;
pub use gru::Gru;
pub use lstm::Lstm;
pub use rnn::Rnn;

/// The methods that say how a layer is built, which all three have.
macro_rules! builders {
    ($layer:ident) => {
        /// The number of layers, each of which reads the output of the one before; 1 by default.
        pub fn num_layers(mut self, num_layers: usize) -> $layer {
            self.0.num_layers = num_layers;
            self.rebuilt()
        }

        /// With or without biases; with, at first.
        pub fn bias(mut self, bias: bool) -> $layer {
            self.0.bias = bias;
            self.rebuilt()
        }

        /// Whether sequences are `[batch, length, features]` and not `[length, batch, features]`. States are not
        /// concerned.
        pub fn batch_first(mut self, batch_first: bool) -> $layer {
            self.0.batch_first = batch_first;
            self
        }

        /// Dropout between the layers, with this probability; 0 at first.
        pub fn dropout(mut self, p: f64) -> $layer {
            self.0.dropout = $crate::Dropout::new(p);
            self
        }

        /// Whether each layer also reads from the end to the beginning, its features beside those of the other way.
        pub fn bidirectional(mut self, bidirectional: bool) -> $layer {
            self.0.bidirectional = bidirectional;
            self.rebuilt()
        }

        fn rebuilt(mut self) -> $layer {
            self.0.build();
            self
        }

        /// Features that come in.
        pub fn input_size(&self) -> usize {
            self.0.input_size
        }

        /// Features of the state.
        pub fn hidden_size(&self) -> usize {
            self.0.hidden_size
        }
    };
}
use builders;

/// The name that a layer has in messages.
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
