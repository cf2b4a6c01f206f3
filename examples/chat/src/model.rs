//! The model and its two kinds of training.

use std::path::Path;

use fulmen::cli::clap;
use fulmen::models::decoder::Decoder;
use fulmen::models::{self, Lora, Pretrained};
use fulmen::nn::loss::{CrossEntropyLoss, DpoLoss, DpoOutput, SequenceLogProbs, masked_mean};
use fulmen::nn::optim::ParamGroups;
use fulmen::prelude::*;

/// The linear layers with low-rank updates: all in the decoder's layers.
const LORA_TARGETS: [&str; 2] = ["*.self_attn.*_proj.weight", "*.mlp.*_proj.weight"];

/// The label of tokens that are not of an answer.
const IGNORED: i64 = -100;

/// The training recipe.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Recipe")]
pub(crate) struct Recipe {
    /// The highest learning rate, which decreases along a cosine to 0.
    #[arg(long, default_value_t = 2e-5)]
    learning_rate: f64,
    /// The fraction of the steps with an increasing learning rate.
    #[arg(long, default_value_t = 0.03)]
    warmup_ratio: f64,
    /// The weight decay of matrices; biases and norms have none.
    #[arg(long, default_value_t = 0.0)]
    weight_decay: f64,
    /// Train updates of this rank (LoRA) instead of all weights.
    #[arg(long)]
    pub(crate) lora: Option<usize>,
    /// LoRA multiplies the updates by this number over the rank.
    #[arg(long, default_value_t = 16.0)]
    lora_alpha: f64,
    /// Learn preferences between answers by DPO instead of the answers.
    #[arg(long)]
    pub(crate) dpo: bool,
    /// How strongly DPO holds the model to what it was.
    #[arg(long, default_value_t = 0.1)]
    beta: f64,
    /// The share of pairs that DPO takes to be the wrong way round.
    #[arg(long, default_value_t = 0.0)]
    label_smoothing: f64,
    /// Recompute each layer in the backward pass, which needs less memory.
    #[arg(long)]
    gradient_checkpointing: bool,
}

/// A decoder, with the recipe.
#[derive(Module)]
pub(crate) struct ChatModel {
    #[module(flatten)]
    network: Network,
    /// The frozen decoder that DPO compares with. With LoRA, it is the one without updates.
    reference: Option<Decoder>,
    #[module(skip)]
    recipe: Recipe,
}

#[derive(Module)]
enum Network {
    Full(Box<Decoder>),
    Lora(Box<Lora<Decoder>>),
}

impl ChatModel {
    pub(crate) fn new(
        mut model: Decoder,
        reference: Option<Decoder>,
        recipe: Recipe,
    ) -> models::Result<ChatModel> {
        model.gradient_checkpointing = recipe.gradient_checkpointing;
        if let Some(reference) = &reference {
            reference.set_requires_grad(false);
        }
        let network = match recipe.lora {
            Some(rank) => {
                Network::Lora(Box::new(Lora::new(model, &LORA_TARGETS, rank, recipe.lora_alpha)?))
            }
            None => Network::Full(Box::new(model)),
        };
        Ok(ChatModel { network, reference, recipe })
    }

    /// Writes the model, with its updates added, as a Hugging Face folder.
    pub(crate) fn save(&self, folder: &Path) -> models::Result<()> {
        match &self.network {
            Network::Full(model) => model.save_pretrained(folder),
            Network::Lora(lora) => lora.apply(|model| model.save_pretrained(folder)),
        }
    }

    /// Writes the updates as a peft folder.
    pub(crate) fn save_adapter(&self, folder: &Path) -> models::Result<()> {
        match &self.network {
            Network::Full(_) => Ok(()),
            Network::Lora(lora) => lora.save_pretrained(folder),
        }
    }

    /// Applies `f` to the model that is trained.
    fn apply<T>(&self, f: impl FnOnce(&Decoder) -> T) -> T {
        match &self.network {
            Network::Full(model) => f(model),
            Network::Lora(lora) => lora.apply(f),
        }
    }

    /// The model that DPO compares with.
    fn reference(&self) -> &Decoder {
        match (&self.reference, &self.network) {
            (Some(reference), _) => reference,
            (None, Network::Full(model)) => model,
            (None, Network::Lora(lora)) => lora.model(),
        }
    }

    /// The mean loss of the tokens of answers in packed conversations.
    pub(crate) fn answer_loss(&self, batch: &Batch) -> Tensor {
        let labels = batch.get("labels");
        let losses = self.apply(|model| {
            model.loss_packed(
                batch.get("input_ids"),
                batch.get("segment_ids"),
                batch.get("position_ids"),
                &labels,
                &loss_of_tokens(),
            )
        });
        let is_label = labels.ne(IGNORED as f64).to_dtype(DType::F32);
        masked_mean(losses, is_label * batch.mask().unsqueeze(-1))
    }

    /// DPO's losses and rewards of pairs, `[batch]` each.
    fn preferences(&self, batch: &Batch) -> DpoOutput {
        let of = |model: &Decoder, answer: &str| {
            let labels = batch.get(&format!("{answer}_labels"));
            let ids = batch.get(&format!("{answer}_input_ids"));
            SequenceLogProbs::of_losses(
                model.loss(ids, &labels, &loss_of_tokens()),
                &labels,
                IGNORED,
            )
        };
        let chosen = self.apply(|model| of(model, "chosen"));
        let rejected = self.apply(|model| of(model, "rejected"));
        let loss = DpoLoss::new()
            .beta(self.recipe.beta)
            .label_smoothing(self.recipe.label_smoothing)
            .reduction(Reduction::None);
        let reference = self.reference();
        loss.forward(&chosen, &rejected, of(reference, "chosen").sum, of(reference, "rejected").sum)
    }

    /// The loss, and with DPO what TRL logs, by TRL's names.
    fn step(&self, stage: &str, batch: &Batch, cx: &mut StepContext) -> Tensor {
        if !self.recipe.dpo {
            return self.answer_loss(batch);
        }
        let output = self.preferences(batch);
        cx.log(format!("{stage}_rewards/margins"), output.margins());
        cx.log(format!("{stage}_rewards/accuracies"), output.accuracies());
        cx.log(format!("{stage}_rewards/chosen"), output.chosen_rewards);
        cx.log(format!("{stage}_rewards/rejected"), output.rejected_rewards);
        batch.mean(&output.loss)
    }
}

/// The loss of each token that has a label.
fn loss_of_tokens() -> CrossEntropyLoss {
    CrossEntropyLoss::new().ignore_index(IGNORED).reduction(Reduction::None)
}

impl TrainingModule for ChatModel {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
        self.step("train", batch, cx)
    }

    fn validation_step(&self, batch: &Batch, cx: &mut StepContext) {
        let loss = self.step("val", batch, cx);
        cx.log("val_loss", loss);
    }

    fn test_step(&self, batch: &Batch, cx: &mut StepContext) {
        let loss = self.step("test", batch, cx);
        cx.log("test_loss", loss);
    }

    fn configure_optimizers(&self, plan: &Plan) -> Box<dyn Optimizer> {
        let Recipe { learning_rate, warmup_ratio, weight_decay, .. } = self.recipe;
        let warmup = (plan.total_steps as f64 * warmup_ratio) as u64;
        let steps = plan.total_steps.saturating_sub(warmup).max(1);
        let cosine = schedule::CosineAnnealing::new(learning_rate, steps);
        let adam =
            optim::AdamW::new(schedule::Warmup::new(warmup, cosine)).weight_decay(weight_decay);
        Box::new(ParamGroups::new(adam).no_decay_on_biases_and_norms())
    }
}
