//! A small Llama on packed documents: 4 layers of width 256 with 4 heads, 1024 words.

use fulmen::models::Pretrained;
use fulmen::models::decoder::{Config, Decoder};
use fulmen::nn::attention::AttentionMethod;
use fulmen::nn::loss::CrossEntropyLoss;
use fulmen::prelude::*;

#[derive(Module)]
pub(crate) struct PackedDecoder {
    #[module(flatten)]
    decoder: Decoder,
}

impl PackedDecoder {
    pub(crate) const WORDS: usize = 1024;
    pub(crate) const LENGTH: usize = 2048;

    /// The model with its first weights, which are the same each time.
    pub(crate) fn new(attention: AttentionMethod) -> PackedDecoder {
        let config = Config {
            vocab_size: PackedDecoder::WORDS,
            hidden_size: 256,
            intermediate_size: 768,
            num_hidden_layers: 4,
            num_attention_heads: 4,
            max_position_embeddings: PackedDecoder::LENGTH,
            ..Config::default()
        };
        let mut decoder = Decoder::new(config).expect("a decoder can be built of this config");
        decoder.attention = attention;
        decoder.initialize(0);
        PackedDecoder { decoder }
    }
}

impl TrainingModule for PackedDecoder {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        self.decoder.loss_packed(
            batch.get("x"),
            batch.get("segment_ids"),
            batch.get("positions"),
            batch.get("y"),
            &CrossEntropyLoss::new(),
        )
    }

    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(optim::AdamW::new(3e-4))
    }
}
