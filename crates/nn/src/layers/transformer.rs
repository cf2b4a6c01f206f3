//! [`TransformerEncoder`], [`TransformerDecoder`] and [`Transformer`]: stacks of the layers in
//! `transformer_layer.rs`.

use fulmen_durable::messages::quantity;
use fulmen_tensor::{AsTensor, Tensor};

use super::{LayerNorm, TransformerDecoderLayer, TransformerEncoderLayer};
use crate::attention::{Attention, KeyValueCache};
use crate::library::NN;
use crate::{Init, Module};

/// A stack of encoder layers, optionally followed by a normalization. Like PyTorch's
/// `nn.TransformerEncoder`, with the same parameter names.
///
/// ```
/// use fulmen_nn::attention::Attention;
/// use fulmen_nn::{LayerNorm, Module, TransformerEncoder, TransformerEncoderLayer};
/// use fulmen_tensor::{DType, Tensor};
///
/// let layer = || TransformerEncoderLayer::new(64, 8).dim_feedforward(256).norm_first(true);
/// let encoder = TransformerEncoder::new(2, layer).norm(LayerNorm::new([64]));
/// encoder.initialize(0);
/// encoder.eval();
/// assert_eq!(encoder.parameters()[0].0, "layers.0.self_attn.in_proj_weight");
/// let x = Tensor::ones(DType::F32, [2, 10, 64]);
/// assert_eq!(encoder.forward(&x, &Attention::new().causal(true)).ty(), x.ty());
/// ```
#[derive(Clone, Debug, Module)]
#[must_use]
pub struct TransformerEncoder {
    /// The layers.
    pub layers: Vec<TransformerEncoderLayer>,
    /// After the last layer.
    pub norm: Option<LayerNorm>,
}

impl TransformerEncoder {
    /// `num_layers` layers, each made by `layer`. (A clone of a layer would share its parameters.)
    pub fn new(
        num_layers: usize,
        mut layer: impl FnMut() -> TransformerEncoderLayer,
    ) -> TransformerEncoder {
        TransformerEncoder { layers: (0..num_layers).map(|_| layer()).collect(), norm: None }
    }

    /// The normalization after the last layer; needed if the layers are [`norm_first`].
    ///
    /// [`norm_first`]: TransformerEncoderLayer::norm_first
    pub fn norm(mut self, norm: LayerNorm) -> TransformerEncoder {
        self.norm = Some(norm);
        self
    }

    /// Applies all layers. `attention` says what each position sees, in every layer.
    #[track_caller]
    pub fn forward(&self, src: impl AsTensor, attention: &Attention) -> Tensor {
        let _scope = NN.open();
        let src = src.as_tensor();
        let mut x = src.clone();
        for layer in &self.layers {
            x = layer.forward(&x, attention);
        }
        match &self.norm {
            Some(norm) => norm.forward(&x),
            None => x,
        }
    }

    /// Applies all layers to the next tokens of a generation. Returns the result and the updated
    /// caches, one for each layer. See
    /// [`MultiheadAttention::forward_cached`](crate::MultiheadAttention::forward_cached).
    ///
    /// Poisoned if the number of caches differs from the number of layers.
    #[track_caller]
    pub fn forward_cached(
        &self,
        src: impl AsTensor,
        caches: &[KeyValueCache],
    ) -> (Tensor, Vec<KeyValueCache>) {
        let _scope = NN.open();
        let src = src.as_tensor();
        if caches.len() != self.layers.len() {
            let message = format!(
                "{} got {}; each layer needs its own",
                quantity(self.layers.len(), "layer"),
                quantity(caches.len(), "cache")
            );
            return (Tensor::poison("TransformerEncoder", message), caches.to_vec());
        }
        let mut x = src.clone();
        let mut updated_caches = Vec::with_capacity(caches.len());
        for (layer, cache) in self.layers.iter().zip(caches) {
            let (output, cache) = layer.forward_cached(&x, cache);
            x = output;
            updated_caches.push(cache);
        }
        match &self.norm {
            Some(norm) => (norm.forward(&x), updated_caches),
            None => (x, updated_caches),
        }
    }
}

/// A stack of decoder layers, optionally followed by a normalization. Like PyTorch's
/// `nn.TransformerDecoder`, with the same parameter names.
///
/// ```
/// use fulmen_nn::attention::Attention;
/// use fulmen_nn::{Module, TransformerDecoder, TransformerDecoderLayer};
/// use fulmen_tensor::{DType, Tensor};
///
/// let decoder = TransformerDecoder::new(2, || TransformerDecoderLayer::new(64, 8).dim_feedforward(256));
/// decoder.initialize(0);
/// decoder.eval();
/// let tgt = Tensor::ones(DType::F32, [2, 10, 64]);
/// let memory = Tensor::ones(DType::F32, [2, 7, 64]);
/// let y = decoder.forward(&tgt, &memory, &Attention::new().causal(true), &Attention::new());
/// assert_eq!(y.ty(), tgt.ty());
/// ```
#[derive(Clone, Debug, Module)]
#[must_use]
pub struct TransformerDecoder {
    /// The layers.
    pub layers: Vec<TransformerDecoderLayer>,
    /// After the last layer.
    pub norm: Option<LayerNorm>,
}

impl TransformerDecoder {
    /// `num_layers` layers, each made by `layer`. (A clone of a layer would share its parameters.)
    pub fn new(
        num_layers: usize,
        mut layer: impl FnMut() -> TransformerDecoderLayer,
    ) -> TransformerDecoder {
        TransformerDecoder { layers: (0..num_layers).map(|_| layer()).collect(), norm: None }
    }

    /// The normalization after the last layer.
    pub fn norm(mut self, norm: LayerNorm) -> TransformerDecoder {
        self.norm = Some(norm);
        self
    }

    /// Applies all layers. `attention` says what each position of `tgt` sees of `tgt`, and `cross`
    /// what it sees of `memory`.
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
        let mut x = tgt.clone();
        for layer in &self.layers {
            x = layer.forward(&x, memory, attention, cross);
        }
        match &self.norm {
            Some(norm) => norm.forward(&x),
            None => x,
        }
    }
}

/// An encoder and a decoder, each followed by a normalization. Like PyTorch's `nn.Transformer` with
/// `batch_first=True`, with the same parameter names. Weights with two or more axes are initialized
/// by Xavier's uniform rule.
///
/// ```
/// use fulmen_nn::attention::Attention;
/// use fulmen_nn::{Module, Transformer, TransformerDecoderLayer, TransformerEncoderLayer};
/// use fulmen_tensor::{DType, Tensor};
///
/// let model = Transformer::new(
///     64,
///     (2, || TransformerEncoderLayer::new(64, 8).dim_feedforward(256)),
///     (3, || TransformerDecoderLayer::new(64, 8).dim_feedforward(256)),
/// );
/// model.initialize(0);
/// model.eval();
/// let src = Tensor::ones(DType::F32, [2, 7, 64]);
/// let tgt = Tensor::ones(DType::F32, [2, 10, 64]);
/// let all = Attention::new();
/// let y = model.forward(&src, &tgt, &all, &Attention::new().causal(true), &all);
/// assert_eq!(y.ty(), tgt.ty());
/// assert_eq!(model.parameters().last().unwrap().0, "decoder.norm.bias");
/// ```
#[derive(Clone, Debug, Module)]
pub struct Transformer {
    /// Encodes the source.
    pub encoder: TransformerEncoder,
    /// Decodes the target, given the encoded source.
    pub decoder: TransformerDecoder,
}

impl Transformer {
    /// Encoder and decoder layers with `d_model` features, and the number of each; PyTorch's
    /// default is 6 and 6.
    pub fn new(
        d_model: usize,
        encoder: (usize, impl FnMut() -> TransformerEncoderLayer),
        decoder: (usize, impl FnMut() -> TransformerDecoderLayer),
    ) -> Transformer {
        let model = Transformer {
            encoder: TransformerEncoder::new(encoder.0, encoder.1).norm(LayerNorm::new([d_model])),
            decoder: TransformerDecoder::new(decoder.0, decoder.1).norm(LayerNorm::new([d_model])),
        };
        for (_, parameter) in model.parameters() {
            if parameter.ty().shape.rank() > 1 {
                parameter.set_init(Init::xavier_uniform(1.0));
            }
        }
        model
    }

    /// Decodes `tgt` `[batch, length, d_model]`, given `src`, which it encodes. `encoder` says what
    /// each position of `src` sees of `src`, `decoder` what each position of `tgt` sees of `tgt`,
    /// and `cross` what it sees of `src`.
    #[track_caller]
    pub fn forward(
        &self,
        src: impl AsTensor,
        tgt: impl AsTensor,
        encoder: &Attention,
        decoder: &Attention,
        cross: &Attention,
    ) -> Tensor {
        let _scope = NN.open();
        let src = src.as_tensor();
        let tgt = tgt.as_tensor();
        self.decoder.forward(tgt, &self.encoder.forward(src, encoder), decoder, cross)
    }
}
