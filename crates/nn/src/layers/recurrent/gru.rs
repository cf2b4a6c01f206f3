//! [`Gru`]: gated recurrent units.

use fulmen_tensor::{AsTensor, Tensor};

use super::cell::Cell;
use super::stack::Stack;
use super::{builders, calls_with_one_state, shown};
use crate::Module;
use crate::library::NN;

/// Gated recurrent units over a sequence. Like PyTorch's `nn.GRU`, with the same parameter names;
/// see [`Rnn`](super::Rnn).
///
/// With `r` and `z` the sigmoids of their parts of `x W_ihᵀ + b_ih + h W_hhᵀ + b_hh`, and `n =
/// tanh(x W_inᵀ + b_in + r (h W_hnᵀ + b_hn))`, the next state is `(1 − z) n + z h`. The weights of
/// `r`, `z` and `n` are stacked in this order.
///
/// ```
/// use fulmen_nn::{Gru, Module};
/// use fulmen_tensor::{DType, Tensor};
///
/// let layer = Gru::new(3, 5).num_layers(2).bidirectional(true);
/// layer.initialize(0);
/// let (y, h) = layer.forward(&Tensor::ones(DType::F32, [7, 2, 3]), None);
/// assert_eq!((y.ty().to_string(), h.ty().to_string()), ("f32[7, 2, 10]".into(), "f32[4, 2, 5]".into()));
/// ```
#[derive(Clone, Debug, Module)]
#[must_use]
pub struct Gru(#[module(flatten)] Stack);

impl Gru {
    /// One unidirectional layer with biases.
    pub fn new(input_size: usize, hidden_size: usize) -> Gru {
        Gru(Stack::new(Cell::Gru, input_size, hidden_size))
    }

    builders!(Gru);
    calls_with_one_state!(Gru);
}

shown!(Gru, "GRU");
