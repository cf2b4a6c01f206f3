//! [`Rnn`]: the Elman recurrent layer.

use fulmen_tensor::{AsTensor, Tensor};

use super::cell::{Cell, RnnNonlinearity};
use super::stack::Stack;
use super::{builders, shown};
use crate::Module;
use crate::library::NN;

/// `h′ = tanh(x W_ihᵀ + b_ih + h W_hhᵀ + b_hh)` over a sequence. Like PyTorch's `nn.RNN`, with the
/// same parameter names (`weight_ih_l0`, `weight_hh_l0`, `bias_ih_l0`, `bias_hh_l0`, and those with
/// `_reverse`).
///
/// All parameters are initialized uniformly in `±1/√hidden`. The steps form one loop in the program
/// ([`scan`](fulmen_tensor::scan())).
///
/// ```
/// use fulmen_nn::{Module, Rnn, RnnNonlinearity};
/// use fulmen_tensor::{DType, Tensor};
///
/// let layer = Rnn::new(3, 5).nonlinearity(RnnNonlinearity::Relu).batch_first(true);
/// layer.initialize(0);
/// let (y, h) = layer.forward(&Tensor::ones(DType::F32, [2, 7, 3]), None);
/// assert_eq!((y.ty().to_string(), h.ty().to_string()), ("f32[2, 7, 5]".into(), "f32[1, 2, 5]".into()));
/// ```
#[derive(Clone, Debug, Module)]
#[must_use]
pub struct Rnn(#[module(flatten)] Stack);

impl Rnn {
    /// One unidirectional layer with biases and the hyperbolic tangent.
    pub fn new(input_size: usize, hidden_size: usize) -> Rnn {
        Rnn(Stack::new(Cell::Rnn(RnnNonlinearity::Tanh), input_size, hidden_size))
    }

    /// The nonlinearity at the end of a step.
    pub fn nonlinearity(mut self, nonlinearity: RnnNonlinearity) -> Rnn {
        self.0.cell = Cell::Rnn(nonlinearity);
        self
    }

    builders!(Rnn);

    /// The outputs `[length, batch, directions·hidden]` and the last states
    /// `[layers·directions, batch, hidden]` for a sequence `[length, batch, input]`, starting from
    /// the states `h_0`, or from zeros. If the sequence has no batch axis, the outputs and states
    /// have none either.
    ///
    /// Poisoned if the shapes do not fit.
    #[track_caller]
    pub fn forward(&self, x: impl AsTensor, h_0: Option<&Tensor>) -> (Tensor, Tensor) {
        let _scope = NN.open();
        self.0.run_with_one_state(&self.to_string(), x.as_tensor(), None, h_0)
    }

    /// Like [`Rnn::forward`] for a padded batch whose sequences have these lengths, integers
    /// `[batch]` (PyTorch's `pack_padded_sequence`). A sequence ends at its length: steps after it
    /// do not change the state, their outputs are 0, and their inputs have no effect. The reverse
    /// direction begins at the end of each sequence, and the last states are those of each
    /// sequence's own last step. The sequences can be in any order. A length of 0 leaves the
    /// initial state.
    ///
    /// In a training step, a length beyond the padded one is an error. Poisoned if the sequences
    /// have no batch axis, or if `lengths` is not a vector of integers with one for each sequence.
    ///
    /// ```
    /// use fulmen_nn::{Module, Rnn};
    /// use fulmen_tensor::{DType, Tensor};
    ///
    /// let layer = Rnn::new(3, 5);
    /// layer.initialize(0);
    /// let lengths = Tensor::from_slice(&[2i32, 4], [2]);
    /// let (y, h) = layer.forward_lengths(&Tensor::ones(DType::F32, [4, 2, 3]), &lengths, None);
    /// let first = y.index(1, 0);
    /// assert_eq!(first.narrow(0, 2, 2).eval()?.to_vec::<f32>()?, [0.0; 10]);
    /// assert_eq!(first.index(0, 1).eval()?.to_vec::<f32>()?, h.index(0, 0).index(0, 0).eval()?.to_vec::<f32>()?);
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
}

shown!(Rnn, "RNN");
