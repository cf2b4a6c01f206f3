//! [`MultiheadAttention`]: multi-head attention with weights.

use std::fmt;

use fulmen_durable::messages::quantity;
use fulmen_tensor::{AsTensor, Refusal, Tensor};

use super::Linear;
use crate::attention::{Attention, KeyValueCache};
use crate::library::{NN, live};
use crate::{Dropout, Init, Module, Parameter};

/// Multi-head attention: linear layers transform queries, keys and values `[batch, length,
/// embedding]`, each head attends with its share of the features, and a final linear layer combines
/// the heads. Like PyTorch's `nn.MultiheadAttention` with `batch_first=True`, with the same
/// parameter names, so its weights can be loaded.
///
/// PyTorch's masks are true for hidden positions; the masks of [`Attention::mask`] are true for
/// visible ones.
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
#[must_use]
pub struct MultiheadAttention {
    /// `[3·embedding, embedding]`: the weights of queries, keys and values. `None` if keys or
    /// values have a different number of features.
    pub in_proj_weight: Option<Parameter>,
    /// The weights of the queries `[embedding, embedding]`, the keys `[embedding, kdim]` and the
    /// values `[embedding, vdim]`, if those have different numbers of features.
    #[module(flatten)]
    pub separate: Option<SeparateProjections>,
    /// `[3·embedding]`; initially zeros.
    pub in_proj_bias: Option<Parameter>,
    /// The output projection.
    pub out_proj: Linear,
    dropout: Dropout,
    embed_dim: usize,
    num_heads: usize,
}

/// The weights of a [`MultiheadAttention`] whose keys or values have a different number of features
/// than its queries.
#[derive(Clone, Debug, Module)]
pub struct SeparateProjections {
    /// `[embedding, embedding]`.
    pub q_proj_weight: Parameter,
    /// `[embedding, kdim]`.
    pub k_proj_weight: Parameter,
    /// `[embedding, vdim]`.
    pub v_proj_weight: Parameter,
    kdim: usize,
    vdim: usize,
}

impl MultiheadAttention {
    /// With biases, without dropout. The number of heads must divide the number of features.
    pub fn new(embed_dim: usize, num_heads: usize) -> MultiheadAttention {
        let layer = MultiheadAttention {
            in_proj_weight: Some(joint_weight(embed_dim)),
            separate: None,
            in_proj_bias: None,
            out_proj: Linear::new(embed_dim, embed_dim),
            dropout: Dropout::new(0.0),
            embed_dim,
            num_heads,
        };
        layer.bias(true)
    }

    /// With or without biases.
    pub fn bias(mut self, bias: bool) -> MultiheadAttention {
        let zeros = |n: usize| bias.then(|| Parameter::new([n], Init::zeros()));
        self.in_proj_bias = zeros(self.embed_dim.saturating_mul(3));
        self.out_proj.bias = zeros(self.embed_dim);
        self
    }

    /// The probability of dropping an attention weight in training mode.
    pub fn dropout(mut self, p: f64) -> MultiheadAttention {
        self.dropout = Dropout::new(p);
        self
    }

    /// The number of features of keys and values, if it differs from the number for the queries.
    /// The three weights are then separate parameters, as in PyTorch. Otherwise, they are one
    /// parameter.
    pub fn kdim_vdim(mut self, kdim: usize, vdim: usize) -> MultiheadAttention {
        if [kdim, vdim] == [self.embed_dim; 2] {
            self.in_proj_weight = Some(joint_weight(self.embed_dim));
            self.separate = None;
            return self;
        }
        self.in_proj_weight = None;
        self.separate = Some(SeparateProjections {
            q_proj_weight: Parameter::new(
                [self.embed_dim, self.embed_dim],
                Init::xavier_uniform(1.0),
            ),
            k_proj_weight: Parameter::new([self.embed_dim, kdim], Init::xavier_uniform(1.0)),
            v_proj_weight: Parameter::new([self.embed_dim, vdim], Init::xavier_uniform(1.0)),
            kdim,
            vdim,
        });
        self
    }

    /// What is wrong with the inputs, if anything.
    fn check_inputs(&self, query: &Tensor, key: &Tensor, value: &Tensor) -> Option<String> {
        let MultiheadAttention { embed_dim, num_heads, .. } = self;
        if *num_heads == 0 || embed_dim % num_heads != 0 {
            return Some(format!("{num_heads} heads do not divide {embed_dim} features"));
        }
        let widths = match &self.separate {
            Some(separate) => [*embed_dim, separate.kdim, separate.vdim],
            None => [*embed_dim; 3],
        };
        let (bad, width) = [query, key, value]
            .into_iter()
            .zip(widths)
            .find(|(x, width)| x.rank() != 3 || x.size(-1) != *width)?;
        Some(format!("the input {} is not [batch, length, {width}]", bad.ty()))
    }

    /// Applies the attention.
    ///
    /// `attention` says what each query sees. Its mask broadcasts to
    /// `[batch, heads, length, positions]`, so a mask `[batch, 1, 1, positions]` hides the padding
    /// of each sample. A dropout in `attention` replaces the layer's dropout.
    ///
    /// Poisoned if the heads do not divide the features, and if inputs have other axes or features.
    #[track_caller]
    pub fn forward(
        &self,
        query: impl AsTensor,
        key: impl AsTensor,
        value: impl AsTensor,
        attention: &Attention,
    ) -> Tensor {
        let query = query.as_tensor();
        let key = key.as_tensor();
        let value = value.as_tensor();
        NN.record(self, || {
            let [q, k, v] = self.heads(query, key, value)?;
            let heads = attention.clone().or_dropout(&self.dropout).forward(&q, &k, &v);
            Ok(self.join(heads.live()?))
        })
    }

    /// [`forward`](MultiheadAttention::forward), and the attention weights `[batch, heads, length,
    /// positions]` after dropout. PyTorch returns their mean over the heads by default.
    #[track_caller]
    pub fn forward_with_weights(
        &self,
        query: impl AsTensor,
        key: impl AsTensor,
        value: impl AsTensor,
        attention: &Attention,
    ) -> (Tensor, Tensor) {
        NN.record(self, || {
            let [q, k, v] = self.heads(query.as_tensor(), key.as_tensor(), value.as_tensor())?;
            let (heads, weights) =
                attention.clone().or_dropout(&self.dropout).forward_with_weights(&q, &k, &v);
            Ok((self.join(heads.live()?), weights))
        })
    }

    /// Applies the attention to the next tokens `[batch, count, embedding]` of a generation, which
    /// see themselves and the past tokens in `cache`. Returns the result and the updated cache. The
    /// result equals that of [`forward`](MultiheadAttention::forward) with [`Attention::causal`] on
    /// the whole sequence at these positions. The cache must have this layer's number of heads and
    /// `embedding/heads` features.
    ///
    /// ```
    /// use fulmen_nn::attention::KeyValueCache;
    /// use fulmen_nn::{Module, MultiheadAttention};
    /// use fulmen_tensor::{DType, Tensor};
    ///
    /// let layer = MultiheadAttention::new(64, 8);
    /// layer.initialize(0);
    /// let cache = KeyValueCache::new(DType::F32, 2, 8, 100, 8);
    /// let (y, cache) = layer.forward_cached(&Tensor::ones(DType::F32, [2, 5, 64]), &cache); // the prompt
    /// let (z, _) = layer.forward_cached(&Tensor::ones(DType::F32, [2, 1, 64]), &cache); // a token
    /// assert_eq!((y.size(1), z.size(1)), (5, 1));
    /// ```
    #[track_caller]
    pub fn forward_cached(
        &self,
        x: impl AsTensor,
        cache: &KeyValueCache,
    ) -> (Tensor, KeyValueCache) {
        let x = x.as_tensor();
        NN.record(self, || {
            let [q, k, v] = self.heads(x, x, x)?;
            let cache = cache.append(&k, &v);
            let attention = Attention::new().mask(&cache.mask(x.size(1))).dropout(&self.dropout);
            Ok((self.join(attention.forward(&q, cache.keys(), cache.values()).live()?), cache))
        })
    }

    /// Queries, keys and values, each `[batch, heads, length, width]`.
    fn heads(&self, query: &Tensor, key: &Tensor, value: &Tensor) -> Result<[Tensor; 3], Refusal> {
        live(&[query, key, value])?;
        if let Some(message) = self.check_inputs(query, key, value) {
            return Err(message.into());
        }
        let e = self.embed_dim;
        let [q, k, v] = match (&self.in_proj_weight, &self.separate) {
            (_, Some(separate)) => [
                self.project(query, &separate.q_proj_weight.get(), 0),
                self.project(key, &separate.k_proj_weight.get(), 1),
                self.project(value, &separate.v_proj_weight.get(), 2),
            ],
            (Some(weight), None) if query.is(key) && query.is(value) => {
                let all = self.project(query, &weight.get(), 0);
                [all.narrow(-1, 0, e), all.narrow(-1, e, e), all.narrow(-1, 2 * e, e)]
            }
            (Some(weight), None) => {
                let weight = weight.get();
                [
                    self.project(query, &weight.narrow(0, 0, e), 0),
                    self.project(key, &weight.narrow(0, e, e), 1),
                    self.project(value, &weight.narrow(0, 2 * e, e), 2),
                ]
            }
            (None, None) => return Err("there are no weights for the inputs".into()),
        };
        live(&[&q, &k, &v])?;
        Ok([q, k, v].map(|x| self.split(&x)))
    }

    /// Combines the results of the heads by the output projection.
    fn join(&self, heads: &Tensor) -> Tensor {
        self.out_proj.forward(&heads.transpose(1, 2).reshape([
            heads.size(0),
            heads.size(2),
            self.embed_dim,
        ]))
    }

    /// Projects an input with this weight. Its biases start with those of input number `first`.
    fn project(&self, x: &Tensor, weight: &Tensor, first: usize) -> Tensor {
        let product = x.matmul(&weight.t());
        match &self.in_proj_bias {
            Some(bias) => {
                let bias = bias.get().narrow(0, first * self.embed_dim, weight.size(0));
                &product + bias.to_dtype(product.dtype())
            }
            None => product,
        }
    }

    /// `[batch, length, embedding]` to `[batch, heads, length, width]`.
    fn split(&self, x: &Tensor) -> Tensor {
        x.reshape([x.size(0), x.size(1), self.num_heads, self.embed_dim / self.num_heads])
            .transpose(1, 2)
    }
}

/// The joint weight of all three inputs.
fn joint_weight(embed_dim: usize) -> Parameter {
    Parameter::new([embed_dim.saturating_mul(3), embed_dim], Init::xavier_uniform(1.0))
}

impl fmt::Display for MultiheadAttention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heads = quantity(self.num_heads, "head");
        write!(f, "MultiheadAttention({}, {heads})", self.embed_dim)
    }
}
