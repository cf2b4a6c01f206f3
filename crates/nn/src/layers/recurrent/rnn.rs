//! [`Rnn`]: the Elman recurrent layer.

use fulmen_tensor::{AsTensor, Tensor};

use super::cell::{Cell, RnnNonlinearity};
use super::stack::Stack;
use super::{builders, calls_with_one_state, shown};
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
    calls_with_one_state!(Rnn);
}

shown!(Rnn, "RNN");
