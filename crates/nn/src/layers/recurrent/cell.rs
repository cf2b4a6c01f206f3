//! One step of each recurrent layer.

use fulmen_tensor::Tensor;

/// The nonlinearity at the end of a step of [`Rnn`](super::Rnn).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RnnNonlinearity {
    /// The hyperbolic tangent.
    #[default]
    Tanh,
    /// `max(x, 0)`.
    Relu,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cell {
    Rnn(RnnNonlinearity),
    Lstm,
    Gru,
}

/// The weights of the state in a step.
pub(super) struct Recurrence {
    /// `[gates·hidden, hidden]`, or `[gates·hidden, proj_size]`.
    pub(super) hh: Tensor,
    /// `[gates·hidden]`.
    pub(super) bias_hh: Option<Tensor>,
    /// `[proj_size, hidden]`.
    pub(super) hr: Option<Tensor>,
}

/// `x Wᵀ + b`, in the dtype of the product.
pub(super) fn affine(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
    let product = x.matmul(&weight.t());
    match bias {
        Some(bias) => &product + bias.to_dtype(product.dtype()),
        None => product,
    }
}

impl Cell {
    /// The number of gates, each a vector of the state's size.
    pub(super) fn gates(self) -> usize {
        match self {
            Cell::Rnn(_) => 1,
            Cell::Lstm => 4,
            Cell::Gru => 3,
        }
    }

    /// The number of tensors in the state.
    pub(super) fn states(self) -> usize {
        if self == Cell::Lstm { 2 } else { 1 }
    }

    /// The next state, whose first tensor is the output, from the input's part of the gates
    /// `[batch, gates·hidden]` and the state.
    pub(super) fn step(
        self,
        input: &Tensor,
        state: &[Tensor],
        w: &Recurrence,
        hidden: usize,
    ) -> Vec<Tensor> {
        let recurrent = affine(&state[0], &w.hh, w.bias_hh.as_ref());
        let part = |x: &Tensor, i: usize| x.narrow(-1, i * hidden, hidden);
        match self {
            Cell::Rnn(RnnNonlinearity::Tanh) => vec![(input + recurrent).tanh()],
            Cell::Rnn(RnnNonlinearity::Relu) => vec![(input + recurrent).relu()],
            Cell::Lstm => {
                let gates = input + recurrent;
                let [i, f, o] = [0, 1, 3].map(|gate| part(&gates, gate).sigmoid());
                let c = f * &state[1] + i * part(&gates, 2).tanh();
                let h = o * c.tanh();
                vec![w.hr.as_ref().map_or_else(|| h.clone(), |hr| affine(&h, hr, None)), c]
            }
            Cell::Gru => {
                let [r, z] =
                    [0, 1].map(|gate| (part(input, gate) + part(&recurrent, gate)).sigmoid());
                let n = (part(input, 2) + r * part(&recurrent, 2)).tanh();
                vec![&n + z * (&state[0] - &n)]
            }
        }
    }
}
