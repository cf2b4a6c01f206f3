//! Fine-tunes a Hugging Face folder on conversations, or on preferences between answers (DPO).

mod model;
mod samples;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use fulmen::cli::{self, CliApp, FitData, clap};
use fulmen::data::text::{ChatTemplate, Tokenizer};
use fulmen::data::{DataLoaderBuilder, Dataset};
use fulmen::models::Pretrained;
use fulmen::models::decoder::Decoder;
use fulmen::prelude::*;

use model::{ChatModel, Recipe};
use samples::{Lines, Split};

/// How the model generates, which the trained folder has as well.
const GENERATION: &str = "generation_config.json";

/// Fine-tunes a Hugging Face folder on conversations, or on preferences between answers
#[derive(clap::Args)]
struct Args {
    /// A Hugging Face folder of a Llama, Mistral, Qwen or Gemma, with config.json, weights, a
    /// tokenizer (tokenizer.json or tokenizer.model) and a chat template.
    #[arg(long)]
    from: PathBuf,
    /// A .jsonl file. Each line has `messages`, or `prompt` and `completion`; with --dpo, `chosen`
    /// and `rejected`, and maybe `prompt`. A tenth is held out for validation.
    #[arg(long)]
    data: PathBuf,
    /// The maximum number of tokens of a conversation. Longer ones are cut at their end.
    #[arg(long, default_value_t = 1024)]
    max_length: usize,
    /// The batch size: of blocks with whole conversations side by side, or of pairs of answers.
    #[arg(long, default_value_t = 8)]
    batch_size: usize,
    /// The number of worker threads that read data.
    #[arg(long, default_value_t = 1)]
    num_workers: usize,
    /// After the test, save the model, with LoRA's updates added, and the tokenizer into this folder.
    #[arg(long)]
    save_to: Option<PathBuf>,
    /// After the test, save LoRA's updates into this folder, in peft's format.
    #[arg(long, requires = "lora")]
    save_adapter: Option<PathBuf>,
    #[command(flatten)]
    recipe: Recipe,
}

impl Args {
    fn samples(&self, split: Split) -> cli::Result<Box<dyn Dataset>> {
        let lines = Lines::open(&self.data, split)?;
        let template = ChatTemplate::from_folder(&self.from)?;
        let tokenizer = Tokenizer::load(&self.from)?;
        let vocab_size = Decoder::config_from_folder(&self.from)?.vocab_size;
        if self.recipe.dpo {
            return samples::pairs(&lines, &template, &tokenizer, self.max_length);
        }
        samples::conversations(&lines, &template, &tokenizer, vocab_size, self.max_length)
    }

    fn loader(&self, split: Split) -> cli::Result<DataLoaderBuilder> {
        let loader = DataLoader::builder(self.samples(split)?).batch_size(self.batch_size);
        Ok(loader.num_workers(self.num_workers))
    }
}

impl CliApp for Args {
    type Module = ChatModel;

    fn module(&self) -> cli::Result<ChatModel> {
        let model = Decoder::from_folder(&self.from)?;
        // All weights change, so that the reference is a model of its own.
        let reference = if self.recipe.dpo && self.recipe.lora.is_none() {
            Some(Decoder::from_folder(&self.from)?)
        } else {
            None
        };
        Ok(ChatModel::new(model, reference, self.recipe.clone())?)
    }

    fn fit_data(&self, options: &Options) -> cli::Result<FitData> {
        let train = self.loader(Split::Train)?.shuffle(true).seed(options.seed).build()?;
        Ok(FitData { train, validation: self.loader(Split::Validation)?.build()?.into() })
    }

    fn test_data(&self, _: &Options) -> cli::Result<EvaluationSets> {
        Ok(self.loader(Split::Validation)?.build()?.into())
    }

    fn after_test(&self, module: &ChatModel, trainer: &Trainer) -> cli::Result<()> {
        if trainer.process_index() != 0 {
            return Ok(());
        }
        if let Some(folder) = &self.save_to {
            module.save(folder)?;
            Tokenizer::copy_files(&self.from, folder)?;
            copy_generation(&self.from, folder)?;
        }
        if let Some(folder) = &self.save_adapter {
            module.save_adapter(folder)?;
        }
        Ok(())
    }

    fn trainer(&self, builder: TrainerBuilder) -> TrainerBuilder {
        builder
            .max_epochs(1)
            .gradient_clip_val(1.0)
            .callback(ModelCheckpoint::new().monitor("val_loss", Mode::Min))
    }
}

/// Copies how the model generates, so that other programs find it in the folder.
fn copy_generation(from: &Path, to: &Path) -> cli::Result<()> {
    let file = from.join(GENERATION);
    if file.exists() {
        std::fs::copy(&file, to.join(GENERATION))
            .map_err(|e| format!("{}: cannot be copied: {e}", file.display()))?;
    }
    Ok(())
}

fn main() -> ExitCode {
    cli::main::<Args>()
}

#[cfg(test)]
mod tests;
