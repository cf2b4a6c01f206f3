//! [`TransformerEncoderLayer`] and [`TransformerDecoderLayer`]: attention and a feed-forward
//! network, with normalizations and residuals. `transformer.rs` has stacks of them.

use std::fmt;
use std::sync::Arc;

use fulmen_tensor::{AsTensor, Scope, Tensor};

use super::activations::Relu;
use super::{Dropout, LayerNorm, Linear, MultiheadAttention};
use crate::attention::{Attention, KeyValueCache};
use crate::library::NN;
use crate::{Forward, Module, Visit};

/// The settings of a layer, with PyTorch's defaults.
#[derive(Clone, Copy, Debug)]
struct Settings {
    d_model: usize,
    nhead: usize,
    dim_feedforward: usize,
    dropout: f64,
    eps: f64,
    bias: bool,
}

impl Settings {
    fn new(d_model: usize, nhead: usize) -> Settings {
        Settings { d_model, nhead, dim_feedforward: 2048, dropout: 0.1, eps: 1e-5, bias: true }
    }

    fn attention(&self) -> MultiheadAttention {
        MultiheadAttention::new(self.d_model, self.nhead).bias(self.bias).dropout(self.dropout)
    }

    fn norm(&self) -> LayerNorm {
        LayerNorm::new([self.d_model]).eps(self.eps).bias(self.bias)
    }

    fn dropout(&self) -> Dropout {
        Dropout::new(self.dropout)
    }
}

/// The activation between the two linear layers. Clones share it.
#[derive(Clone)]
struct Activation(Arc<dyn Forward + Send + Sync>);

impl Module for Activation {
    fn visit(&self, visit: &mut Visit<'_>) {
        visit.flatten(&*self.0);
    }
}

impl fmt::Debug for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Activation")
    }
}

/// `linear2(dropout(activation(linear1(x))))`.
fn feed_forward(
    x: &Tensor,
    linear1: &Linear,
    activation: &Activation,
    dropout: &Dropout,
    linear2: &Linear,
) -> Tensor {
    let hidden = linear1.forward(x);
    let hidden = {
        let _user = Scope::leave();
        activation.0.forward(&hidden)
    };
    linear2.forward(&dropout.forward(&hidden))
}

macro_rules! layer {
    (
        $(#[$doc:meta])*
        $name:ident { $($(#[$of:meta])* $field:ident: $kind:ident = $make:ident,)* }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Module)]
        #[must_use]
        pub struct $name {
            $($(#[$of])* pub $field: $kind,)*
            /// The first linear layer of the feed-forward network.
            pub linear1: Linear,
            /// The second linear layer of the feed-forward network.
            pub linear2: Linear,
            dropout: Dropout,
            activation: Activation,
            norm_first: bool,
            #[module(skip)]
            settings: Settings,
        }

        impl $name {
            /// A layer with `d_model` features and `nhead` heads: 2048 features in the feed-forward
            /// network, dropout 0.1, ReLU, `eps` 1e-5, biases, normalization after the residuals.
            /// The builder methods recreate the parameters, so call them before initialization.
            pub fn new(d_model: usize, nhead: usize) -> $name {
                $name::build(Settings::new(d_model, nhead), Activation(Arc::new(Relu)), false)
            }

            fn build(settings: Settings, activation: Activation, norm_first: bool) -> $name {
                let Settings { d_model, dim_feedforward, bias, .. } = settings;
                $name {
                    $($field: settings.$make(),)*
                    linear1: Linear::new(d_model, dim_feedforward).bias(bias),
                    linear2: Linear::new(dim_feedforward, d_model).bias(bias),
                    dropout: settings.dropout(),
                    activation,
                    norm_first,
                    settings,
                }
            }

            /// The number of features between the two linear layers.
            pub fn dim_feedforward(self, features: usize) -> $name {
                let settings = Settings { dim_feedforward: features, ..self.settings };
                $name::build(settings, self.activation, self.norm_first)
            }

            /// The probability of all dropouts in the layer.
            pub fn dropout(self, p: f64) -> $name {
                $name::build(Settings { dropout: p, ..self.settings }, self.activation, self.norm_first)
            }

            /// The constant that normalizations add to the variance.
            pub fn layer_norm_eps(self, eps: f64) -> $name {
                $name::build(Settings { eps, ..self.settings }, self.activation, self.norm_first)
            }

            /// With or without biases, of linear layers, attention and normalizations.
            pub fn bias(self, bias: bool) -> $name {
                $name::build(Settings { bias, ..self.settings }, self.activation, self.norm_first)
            }

            /// The activation between the two linear layers, such as [`Gelu`](crate::Gelu).
            pub fn activation(mut self, activation: impl Forward + Send + Sync + 'static) -> $name {
                self.activation = Activation(Arc::new(activation));
                self
            }

            /// Whether to normalize the inputs of attention and feed-forward network instead of the
            /// sums after them.
            pub fn norm_first(mut self, norm_first: bool) -> $name {
                self.norm_first = norm_first;
                self
            }
        }
    };
}

layer! {
    /// Self-attention and a feed-forward network over `[batch, length, d_model]`. Like PyTorch's
    /// `nn.TransformerEncoderLayer` with `batch_first=True`, with the same parameter names. With
    /// [`Attention::causal`] it is the layer of a decoder-only model.
    ///
    /// Dropout is active in training mode only. To hide the padding of a batch, pass
    /// [`forward`](TransformerEncoderLayer::forward) an [`Attention`] with a mask.
    ///
    /// ```
    /// use fulmen_nn::attention::Attention;
    /// use fulmen_nn::{Gelu, Module, TransformerEncoderLayer};
    /// use fulmen_tensor::{DType, Tensor};
    ///
    /// let layer = TransformerEncoderLayer::new(64, 8).dim_feedforward(256).activation(Gelu::default()).norm_first(true);
    /// layer.initialize(0);
    /// layer.eval();
    /// let x = Tensor::ones(DType::F32, [2, 10, 64]);
    /// let padding = Tensor::ones(DType::Bool, [2, 1, 1, 10]); // true where there is a token
    /// assert_eq!(layer.forward(&x, &Attention::new().mask(&padding)).ty(), x.ty());
    /// ```
    TransformerEncoderLayer {
        /// Self-attention.
        self_attn: MultiheadAttention = attention,
        /// The normalization of the attention.
        norm1: LayerNorm = norm,
        /// The normalization of the feed-forward network.
        norm2: LayerNorm = norm,
        /// The dropout after the attention.
        dropout1: Dropout = dropout,
        /// The dropout after the feed-forward network.
        dropout2: Dropout = dropout,
    }
}

impl TransformerEncoderLayer {
    /// The output of the layer. `attention` says what each position sees.
    ///
    /// Poisoned if the input is not `[batch, length, d_model]` or the heads do not divide the
    /// features.
    #[track_caller]
    pub fn forward(&self, src: impl AsTensor, attention: &Attention) -> Tensor {
        let _scope = NN.open();
        let src = src.as_tensor();
        if self.norm_first {
            let x = src + self.attend(&self.norm1.forward(src), attention);
            &x + self.feed(&self.norm2.forward(&x))
        } else {
            let x = self.norm1.forward(&(src + self.attend(src, attention)));
            self.norm2.forward(&(&x + self.feed(&x)))
        }
    }

    /// Applies the layer to the next tokens `[batch, count, d_model]` of a generation. Returns the
    /// result and the updated cache. The result equals that of
    /// [`forward`](TransformerEncoderLayer::forward) with [`Attention::causal`] on the whole
    /// sequence at these positions. See [`MultiheadAttention::forward_cached`].
    #[track_caller]
    pub fn forward_cached(
        &self,
        src: impl AsTensor,
        cache: &KeyValueCache,
    ) -> (Tensor, KeyValueCache) {
        let _scope = NN.open();
        let src = src.as_tensor();
        if self.norm_first {
            let (attended, cache) = self.self_attn.forward_cached(&self.norm1.forward(src), cache);
            let x = src + self.dropout1.forward(&attended);
            (&x + self.feed(&self.norm2.forward(&x)), cache)
        } else {
            let (attended, cache) = self.self_attn.forward_cached(src, cache);
            let x = self.norm1.forward(&(src + self.dropout1.forward(&attended)));
            (self.norm2.forward(&(&x + self.feed(&x))), cache)
        }
    }

    fn attend(&self, x: &Tensor, attention: &Attention) -> Tensor {
        self.dropout1.forward(&self.self_attn.forward(x, x, x, attention))
    }

    fn feed(&self, x: &Tensor) -> Tensor {
        self.dropout2.forward(&feed_forward(
            x,
            &self.linear1,
            &self.activation,
            &self.dropout,
            &self.linear2,
        ))
    }
}

layer! {
    /// Self-attention, attention to the encoder's output and a feed-forward network over `[batch,
    /// length, d_model]`. Like PyTorch's `nn.TransformerDecoderLayer` with `batch_first=True`, with
    /// the same parameter names.
    ///
    /// ```
    /// use fulmen_nn::attention::Attention;
    /// use fulmen_nn::{Module, TransformerDecoderLayer};
    /// use fulmen_tensor::{DType, Tensor};
    ///
    /// let layer = TransformerDecoderLayer::new(64, 8).dropout(0.0);
    /// layer.initialize(0);
    /// let tgt = Tensor::ones(DType::F32, [2, 10, 64]);
    /// let memory = Tensor::ones(DType::F32, [2, 7, 64]);
    /// let y = layer.forward(&tgt, &memory, &Attention::new().causal(true), &Attention::new());
    /// assert_eq!(y.ty(), tgt.ty());
    /// ```
    TransformerDecoderLayer {
        /// Self-attention.
        self_attn: MultiheadAttention = attention,
        /// Attention to the encoder's output.
        multihead_attn: MultiheadAttention = attention,
        /// The normalization of the self-attention.
        norm1: LayerNorm = norm,
        /// The normalization of the attention to the encoder's output.
        norm2: LayerNorm = norm,
        /// The normalization of the feed-forward network.
        norm3: LayerNorm = norm,
        /// The dropout after the self-attention.
        dropout1: Dropout = dropout,
        /// The dropout after the attention to the encoder's output.
        dropout2: Dropout = dropout,
        /// The dropout after the feed-forward network.
        dropout3: Dropout = dropout,
    }
}

impl TransformerDecoderLayer {
    /// Applies the layer. `attention` says what each position of `tgt` sees of `tgt`, usually the
    /// positions before it, and `cross` what it sees of `memory`.
    ///
    /// Poisoned if an input is not `[batch, length, d_model]` or the heads do not divide the
    /// features.
    #[track_caller]
    pub fn forward(
        &self,
        tgt: impl AsTensor,
        memory: impl AsTensor,
        attention: &Attention,
        cross: &Attention,
    ) -> Tensor {
        let _scope = NN.open();
        let tgt = tgt.as_tensor();
        let memory = memory.as_tensor();
        if self.norm_first {
            let x = tgt + self.attend(&self.norm1.forward(tgt), attention);
            let x = &x + self.attend_memory(&self.norm2.forward(&x), memory, cross);
            &x + self.feed(&self.norm3.forward(&x))
        } else {
            let x = self.norm1.forward(&(tgt + self.attend(tgt, attention)));
            let x = self.norm2.forward(&(&x + self.attend_memory(&x, memory, cross)));
            self.norm3.forward(&(&x + self.feed(&x)))
        }
    }

    fn attend(&self, x: &Tensor, attention: &Attention) -> Tensor {
        self.dropout1.forward(&self.self_attn.forward(x, x, x, attention))
    }

    fn attend_memory(&self, x: &Tensor, memory: &Tensor, attention: &Attention) -> Tensor {
        self.dropout2.forward(&self.multihead_attn.forward(x, memory, memory, attention))
    }

    fn feed(&self, x: &Tensor) -> Tensor {
        self.dropout3.forward(&feed_forward(
            x,
            &self.linear1,
            &self.activation,
            &self.dropout,
            &self.linear2,
        ))
    }
}
