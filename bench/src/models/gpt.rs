//! A small GPT: 4 layers of width 256 with 4 heads, 128 positions, 4096 words, and tied embeddings.
//! It can have more layers, unrolled or as a scan.

use fulmen::nn::attention::Attention;
use fulmen::nn::loss::{Reduction, cross_entropy};
use fulmen::nn::{
    Embedding, Init, LayerNorm, Linear, MultiheadAttention, Parameter, activation, scan_layers,
};
use fulmen::prelude::*;

#[derive(Module)]
struct Block {
    ln1: LayerNorm,
    attention: MultiheadAttention,
    ln2: LayerNorm,
    up: Linear,
    down: Linear,
}

impl Block {
    fn new(width: usize, heads: usize) -> Block {
        Block {
            ln1: LayerNorm::new([width]),
            attention: MultiheadAttention::new(width, heads),
            ln2: LayerNorm::new([width]),
            up: Linear::new(width, 4 * width),
            down: Linear::new(4 * width, width),
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        let y = self.ln1.forward(x);
        let x = x + self.attention.forward(&y, &y, &y, &Attention::new().causal(true));
        let hidden = activation::gelu_tanh(&self.up.forward(&self.ln2.forward(&x)));
        &x + self.down.forward(&hidden)
    }
}

#[derive(Module)]
pub(crate) struct Gpt {
    words: Embedding,
    positions: Parameter,
    blocks: Vec<Block>,
    ln: LayerNorm,
    /// The type of the layers' computation.
    #[module(skip)]
    dtype: DType,
    scanned: bool,
}

impl Gpt {
    pub(crate) const WORDS: usize = 4096;
    pub(crate) const LENGTH: usize = 128;

    pub(crate) fn new(dtype: DType) -> Gpt {
        Gpt::deep(4, dtype, false)
    }

    pub(crate) fn deep(layers: usize, dtype: DType, scanned: bool) -> Gpt {
        let width = 256;
        let heads = 4;
        Gpt {
            words: Embedding::new(Gpt::WORDS, width),
            positions: Parameter::new([Gpt::LENGTH, width], Init::normal(0.0, 0.02)),
            blocks: (0..layers).map(|_| Block::new(width, heads)).collect(),
            ln: LayerNorm::new([width]),
            dtype,
            scanned,
        }
    }

    fn forward(&self, words: &Tensor) -> Tensor {
        let x = (self.words.forward(words) + self.positions.get()).to_dtype(self.dtype);
        let x = if self.scanned {
            scan_layers(&self.blocks, &x, |block, x| block.forward(x))
        } else {
            self.blocks.iter().fold(x, |x, block| block.forward(&x))
        };
        self.ln.forward(&x).matmul(&self.words.weight.get().t())
    }
}

impl TrainingModule for Gpt {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        let logits = self.forward(&batch.get("x"));
        cross_entropy(
            &logits.reshape([batch.size() * Gpt::LENGTH, Gpt::WORDS]),
            &batch.get("y").flatten(0, -1),
            Reduction::Mean,
        )
    }

    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(optim::AdamW::new(3e-4))
    }
}
