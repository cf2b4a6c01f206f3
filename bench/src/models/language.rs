//! The library's language models on tokens `x`. They predict the next token `y`, or masked tokens.

use fulmen::models::decoder::Decoder;
use fulmen::models::gpt2::{self, Gpt2};
use fulmen::models::roberta::RobertaForMaskedLm;
use fulmen::models::{Lora, Pretrained};
use fulmen::nn::loss::CrossEntropyLoss;
use fulmen::prelude::*;

/// A model that predicts the next token, with AdamW.
#[derive(Module)]
pub(crate) struct LanguageModel {
    #[module(flatten)]
    network: Network,
    /// The dtype of AdamW's running means.
    #[module(skip)]
    pub(crate) state_dtype: DType,
}

#[derive(Module)]
enum Network {
    Decoder(Box<Decoder>),
    Gpt2(Box<Gpt2>),
    Lora(Box<Lora<Decoder>>),
}

impl LanguageModel {
    fn new(network: Network) -> LanguageModel {
        LanguageModel { network, state_dtype: DType::F32 }
    }

    pub(crate) fn decoder(decoder: Decoder) -> LanguageModel {
        LanguageModel::new(Network::Decoder(Box::new(decoder)))
    }

    pub(crate) fn gpt2(gpt2: Gpt2) -> LanguageModel {
        LanguageModel::new(Network::Gpt2(Box::new(gpt2)))
    }

    pub(crate) fn lora(lora: Lora<Decoder>) -> LanguageModel {
        LanguageModel::new(Network::Lora(Box::new(lora)))
    }
}

/// GPT-2 without dropout.
pub(crate) fn gpt2_without_dropout(config: gpt2::Config) -> Gpt2 {
    let config = gpt2::Config { resid_pdrop: 0.0, embd_pdrop: 0.0, attn_pdrop: 0.0, ..config };
    Gpt2::new(config).expect("a GPT-2 can be built of any config")
}

impl TrainingModule for LanguageModel {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        let loss = CrossEntropyLoss::new();
        match &self.network {
            Network::Decoder(decoder) => decoder.loss(batch.get("x"), batch.get("y"), &loss),
            Network::Lora(lora) => {
                lora.apply(|decoder| decoder.loss(batch.get("x"), batch.get("y"), &loss))
            }
            Network::Gpt2(gpt2) => {
                let logits = gpt2.forward(batch.get("x"));
                loss.forward(&logits.flatten(0, 1), &batch.get("y").flatten(0, -1))
            }
        }
    }

    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(optim::AdamW::new(3e-4).state_dtype(self.state_dtype))
    }
}

/// RoBERTa with AdamW. Positions whose `y` is -100 are not masked.
#[derive(Module)]
pub(crate) struct MaskedLanguageModel {
    pub(crate) model: RobertaForMaskedLm,
    pub(crate) lr: f64,
}

impl TrainingModule for MaskedLanguageModel {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        let logits = self.model.forward(batch.get("x"), None);
        let loss = CrossEntropyLoss::new().ignore_index(-100);
        loss.forward(logits.flatten(0, 1), batch.get("y").flatten(0, -1))
    }

    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(optim::AdamW::new(self.lr).betas(0.9, 0.98))
    }
}
