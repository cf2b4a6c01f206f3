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

/// The calls of a layer whose state is one tensor.
macro_rules! calls_with_one_state {
    ($layer:ident) => {
        /// The outputs `[length, batch, directions·hidden]` and the last states
        /// `[layers·directions, batch, hidden]` for a sequence `[length, batch, input]`, starting
        /// from the states `h_0`, or from zeros. If the sequence has no batch axis, the outputs and
        /// states have none either.
        ///
        /// Poisoned if the shapes do not fit.
        #[track_caller]
        pub fn forward(&self, x: impl AsTensor, h_0: Option<&Tensor>) -> (Tensor, Tensor) {
            let _scope = NN.open();
            self.0.run_with_one_state(&self.to_string(), x.as_tensor(), None, h_0)
        }

        /// Like `forward` for a padded batch whose sequences have these lengths, integers `[batch]`
        /// (PyTorch's `pack_padded_sequence`). A sequence ends at its length: steps after it do not
        /// change the state, their outputs are 0, and their inputs have no effect. The reverse
        /// direction begins at the end of each sequence, and the last states are those of each
        /// sequence's own last step. The sequences can be in any order. A length of 0 leaves the
        /// initial state.
        ///
        /// In a training step, a length beyond the padded one is an error. Poisoned if the
        /// sequences have no batch axis, or if `lengths` is not a vector of integers with one for
        /// each sequence.
        ///
        /// ```
        #[doc = concat!("use fulmen_nn::{Module, ", stringify!($layer), "};")]
        /// use fulmen_tensor::{DType, Tensor};
        ///
        #[doc = concat!("let layer = ", stringify!($layer), "::new(3, 5);")]
        /// layer.initialize(0);
        /// let lengths = Tensor::from_slice(&[2i32, 4], [2]);
        /// let (y, h) = layer.forward_lengths(&Tensor::ones(DType::F32, [4, 2, 3]), &lengths, None);
        /// let first = y.index(1, 0);
        /// assert_eq!(first.narrow(0, 2, 2).eval()?.to_vec::<f32>()?, [0.0; 10]);
        /// let difference = first.index(0, 1) - h.index(0, 0).index(0, 0);
        /// assert!(difference.norm(2.0, 0).eval()?.to_vec::<f32>()?[0] < 1e-6);
        /// # Ok::<(), fulmen_tensor::Error>(())
        /// ```
        #[track_caller]
        pub fn forward_lengths(
            &self,
            x: impl AsTensor,
            lengths: impl AsTensor,
            h_0: Option<&Tensor>,
        ) -> (Tensor, Tensor) {
            let _scope = NN.open();
            let lengths = Some(lengths.as_tensor());
            self.0.run_with_one_state(&self.to_string(), x.as_tensor(), lengths, h_0)
        }
    };
}
use calls_with_one_state;

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
