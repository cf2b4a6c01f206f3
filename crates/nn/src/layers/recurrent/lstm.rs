//! [`Lstm`]: long short-term memory.

use fulmen_tensor::{AsTensor, Tensor};

use super::cell::Cell;
use super::stack::Stack;
use super::{builders, shown};
use crate::Module;
use crate::library::NN;

/// Long short-term memory over a sequence. Like PyTorch's `nn.LSTM`, with the same parameter names;
/// see [`Rnn`](super::Rnn).
///
/// Let `i`, `f`, `g` and `o` be the parts of `x W_ihᵀ + b_ih + h W_hhᵀ + b_hh`, after a hyperbolic
/// tangent for `g` and a sigmoid for the others. Then `c′ = f c + i g` and `h′ = o tanh(c′)`. The
/// weights of the four are stacked in this order.
///
/// ```
/// use fulmen_nn::{Lstm, Module};
/// use fulmen_tensor::{DType, Tensor};
///
/// let layer = Lstm::new(3, 5);
/// layer.initialize(0);
/// let (y, (h, c)) = layer.forward(&Tensor::ones(DType::F32, [7, 2, 3]), None);
/// assert_eq!((y.ty().to_string(), c.ty().to_string()), ("f32[7, 2, 5]".into(), "f32[1, 2, 5]".into()));
/// // Continues where the sequence ended.
/// let (next, _) = layer.forward(&Tensor::ones(DType::F32, [1, 2, 3]), Some((&h, &c)));
/// assert_eq!(next.ty().to_string(), "f32[1, 2, 5]");
/// ```
#[derive(Clone, Debug, Module)]
#[must_use]
pub struct Lstm(#[module(flatten)] Stack);

impl Lstm {
    /// One unidirectional layer with biases.
    pub fn new(input_size: usize, hidden_size: usize) -> Lstm {
        Lstm(Stack::new(Cell::Lstm, input_size, hidden_size))
    }

    builders!(Lstm);

    /// Projects `h` to this many features with another weight, `weight_hr_l0`; 0 disables the
    /// projection.
    pub fn proj_size(mut self, proj_size: usize) -> Lstm {
        self.0.proj_size = proj_size;
        self.rebuilt()
    }

    /// The outputs and the last states `(h, c)`, starting from the states `(h_0, c_0)`, or from
    /// zeros. The shapes are those of [`Rnn::forward`](super::Rnn::forward); with a projection,
    /// outputs and `h` have its number of features.
    #[track_caller]
    pub fn forward(
        &self,
        x: impl AsTensor,
        state: Option<(&Tensor, &Tensor)>,
    ) -> (Tensor, (Tensor, Tensor)) {
        let _scope = NN.open();
        self.run(x.as_tensor(), None, state)
    }

    /// Like [`Lstm::forward`] for a padded batch whose sequences have these lengths, integers
    /// `[batch]`; see [`Rnn::forward_lengths`](super::Rnn::forward_lengths).
    ///
    /// ```
    /// use fulmen_nn::{Lstm, Module};
    /// use fulmen_tensor::{DType, Tensor};
    ///
    /// let layer = Lstm::new(3, 5).bidirectional(true);
    /// layer.initialize(0);
    /// let x = Tensor::ones(DType::F32, [7, 2, 3]);
    /// let lengths = Tensor::from_slice(&[7i32, 4], [2]);
    /// let (y, (h, _)) = layer.forward_lengths(&x, &lengths, None);
    /// // The second sequence is computed as if it were alone.
    /// let (alone, (h_alone, _)) = layer.forward(&x.narrow(0, 0, 4).narrow(1, 1, 1), None);
    /// let difference = (y.narrow(0, 0, 4).narrow(1, 1, 1) - alone).abs().max([0, 1, 2]);
    /// assert!(difference.eval()?.to_vec::<f32>()?[0] < 1e-6);
    /// let difference = (h.narrow(1, 1, 1) - h_alone).abs().max([0, 1, 2]);
    /// assert!(difference.eval()?.to_vec::<f32>()?[0] < 1e-6);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn forward_lengths(
        &self,
        x: impl AsTensor,
        lengths: impl AsTensor,
        state: Option<(&Tensor, &Tensor)>,
    ) -> (Tensor, (Tensor, Tensor)) {
        let _scope = NN.open();
        self.run(x.as_tensor(), Some(lengths.as_tensor()), state)
    }

    fn run(
        &self,
        x: &Tensor,
        lengths: Option<&Tensor>,
        state: Option<(&Tensor, &Tensor)>,
    ) -> (Tensor, (Tensor, Tensor)) {
        let first = state.map(|(h, c)| [h, c]);
        let first = first.as_ref().map(|state| state.as_slice());
        let (y, mut state) = self.0.run(&self.to_string(), x, lengths, first);
        let c = state.swap_remove(1);
        let h = state.swap_remove(0);
        (y, (h, c))
    }
}

shown!(Lstm, "LSTM");
