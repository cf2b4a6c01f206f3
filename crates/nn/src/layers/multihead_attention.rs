//! [`MultiheadAttention`]: attention with weights of its own, in several heads.

use std::fmt;

use fulmen_tensor::Tensor;

use super::Linear;
use crate::attention::Attention;
use crate::{Dropout, Init, Module, Parameter};

/// Attention in several heads: queries, keys and values `[batch, length, embedding]` pass through linear layers, each
/// head attends with its share of the features, and a last linear layer mixes the heads. As PyTorch's
/// `nn.MultiheadAttention` with `batch_first=True`, with its parameters' names, so that its weights load.
///
/// Where PyTorch's masks are true for what is *not* to be seen, [`Attention::mask`]'s are true for what is.
///
/// ```
/// use fulmen_nn::attention::Attention;
/// use fulmen_nn::{Module, MultiheadAttention};
/// use fulmen_tensor::{DType, Tensor};
///
/// let attention = MultiheadAttention::new(64, 8);
/// attention.initialize(0);
/// let names: Vec<String> = attention.parameters().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"]);
///
/// let x = Tensor::ones(DType::F32, [2, 10, 64]);
/// let y = attention.forward(&x, &x, &x, &Attention::new().causal(true));
/// assert_eq!(y.ty().to_string(), "f32[2, 10, 64]");
/// ```
#[derive(Clone, Debug, Module)]
pub struct MultiheadAttention {
    /// `[3·embedding, embedding]`: that of the queries, then of the keys, then of the values.
    pub in_proj_weight: Parameter,
    /// `[3·embedding]`; zeros at first.
    pub in_proj_bias: Option<Parameter>,
    /// From the heads' results to the layer's.
    pub out_proj: Linear,
    dropout: Dropout,
    embed_dim: usize,
    num_heads: usize,
}

impl MultiheadAttention {
    /// With biases, without dropout. The number of heads must divide that of the features.
    #[track_caller]
    pub fn new(embed_dim: usize, num_heads: usize) -> MultiheadAttention {
        let layer = MultiheadAttention {
            in_proj_weight: Parameter::new([embed_dim.saturating_mul(3), embed_dim], Init::xavier_uniform(1.0)),
            in_proj_bias: None,
            out_proj: Linear::new(embed_dim, embed_dim),
            dropout: Dropout::new(0.0),
            embed_dim,
            num_heads,
        };
        layer.bias(true)
    }

    /// With or without biases.
    #[track_caller]
    pub fn bias(mut self, bias: bool) -> MultiheadAttention {
        let zeros = |n: usize| bias.then(|| Parameter::new([n], Init::ZEROS));
        self.in_proj_bias = zeros(self.embed_dim.saturating_mul(3));
        self.out_proj.bias = zeros(self.embed_dim);
        self
    }

    /// The probability with which a weight of the attention is dropped while training.
    pub fn dropout(mut self, p: f64) -> MultiheadAttention {
        self.dropout = Dropout::new(p);
        self
    }

    /// Why these cannot be, if they cannot.
    fn misfit(&self, inputs: [&Tensor; 3]) -> Option<String> {
        let MultiheadAttention { embed_dim, num_heads, .. } = self;
        if *num_heads == 0 || embed_dim % num_heads != 0 {
            return Some(format!("{num_heads} heads do not divide {embed_dim} features"));
        }
        let bad = inputs.into_iter().find(|x| x.rank() != 3 || x.size(-1) != *embed_dim)?;
        Some(format!("the input {} is not [batch, length, {embed_dim}]", bad.ty()))
    }

    /// What the queries find.
    ///
    /// `how` says what each query sees: a mask is broadcast to `[batch, heads, length, positions]`, so that one of
    /// `[batch, 1, 1, positions]` leaves out the padding of each sample.
    #[track_caller]
    pub fn forward(&self, query: &Tensor, key: &Tensor, value: &Tensor, how: &Attention) -> Tensor {
        if let Some(poisoned) = [query, key, value].into_iter().find(|t| t.fault().is_some()) {
            return poisoned.clone();
        }
        if let Some(message) = self.misfit([query, key, value]) {
            return Tensor::poison(&self.to_string(), message);
        }
        let e = self.embed_dim;
        let (q, k, v) = if query.is(key) && query.is(value) {
            let all = self.project(query, 0, 3);
            (all.narrow(-1, 0, e), all.narrow(-1, e, e), all.narrow(-1, 2 * e, e))
        } else {
            (self.project(query, 0, 1), self.project(key, 1, 1), self.project(value, 2, 1))
        };
        let how = how.clone().dropout(&self.dropout);
        let heads = how.forward(&self.split(&q), &self.split(&k), &self.split(&v));
        if heads.fault().is_some() {
            return heads;
        }
        let joined = heads.transpose(1, 2).reshape([query.size(0), query.size(1), e]);
        self.out_proj.forward(&joined)
    }

    /// The linear layers of the inputs from `first` on, `count` of them side by side.
    #[track_caller]
    fn project(&self, x: &Tensor, first: usize, count: usize) -> Tensor {
        let (start, length) = (first * self.embed_dim, count * self.embed_dim);
        let product = x.matmul(&self.in_proj_weight.get().narrow(0, start, length).t());
        match &self.in_proj_bias {
            Some(bias) => &product + bias.get().narrow(0, start, length).to_dtype(product.dtype()),
            None => product,
        }
    }

    /// `[batch, length, embedding]` to `[batch, heads, length, width]`.
    #[track_caller]
    fn split(&self, x: &Tensor) -> Tensor {
        x.reshape([x.size(0), x.size(1), self.num_heads, self.embed_dim / self.num_heads]).transpose(1, 2)
    }
}

impl fmt::Display for MultiheadAttention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MultiheadAttention({}, {} heads)", self.embed_dim, self.num_heads)
    }
}
