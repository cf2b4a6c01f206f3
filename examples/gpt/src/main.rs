//! Trains a GPT on any text; `predict` then continues a prompt.

mod model;
mod text;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use fulmen::cli::{self, CliApp, FitData, clap};
use fulmen::data::{Dataset, FakeDataset};
use fulmen::models::GenerationConfig;
use fulmen::models::gpt2::Config;
use fulmen::prelude::*;
use fulmen::trainer::{self, PredictionWriter};

use model::{Gpt, Recipe};
use text::{Split, Vocabulary};

/// Trains a GPT on any text; `predict --prompt … --output story.txt` continues a prompt
#[derive(clap::Args)]
struct Args {
    /// A text file, a folder of .txt and .md files, or a file of tokens that
    /// `fulmen data pack` wrote.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src"))]
    text: PathBuf,
    /// A Hugging Face tokenizer.json; without it, each byte is a token.
    #[arg(long)]
    tokenizer: Option<PathBuf>,
    /// The tokenizer's end-of-text token.
    #[arg(long, default_value = "<|endoftext|>")]
    end_token: String,
    /// Use random tokens instead of --text.
    #[arg(long)]
    fake_data: bool,
    /// The batch size.
    #[arg(long, default_value_t = 32)]
    batch_size: usize,
    /// The number of worker threads that read data.
    #[arg(long, default_value_t = 1)]
    num_workers: usize,
    #[command(flatten)]
    network: Network,
    #[command(flatten)]
    recipe: Recipe,
    #[command(flatten)]
    generation: Generation,
}

#[derive(clap::Args)]
#[command(next_help_heading = "Network")]
struct Network {
    /// The size of the vocabulary; by default the tokenizer's.
    #[arg(long)]
    vocab_size: Option<usize>,
    /// The number of tokens in a sample, and the maximum for prompt and answer together.
    #[arg(long, default_value_t = 128)]
    length: usize,
    /// The number of blocks.
    #[arg(long, default_value_t = 4)]
    layers: usize,
    /// The number of attention heads.
    #[arg(long, default_value_t = 4)]
    heads: usize,
    /// The number of features of a token.
    #[arg(long, default_value_t = 128)]
    width: usize,
    /// The dropout probability.
    #[arg(long, default_value_t = 0.1)]
    dropout: f64,
    /// Recompute each block in the backward pass, which needs less memory.
    #[arg(long)]
    gradient_checkpointing: bool,
}

#[derive(clap::Args)]
#[command(next_help_heading = "Generation")]
struct Generation {
    /// The text that `predict` continues.
    #[arg(long, default_value = "The ")]
    prompt: String,
    /// The number of answers.
    #[arg(long, default_value_t = 1)]
    num_return_sequences: usize,
    /// The maximum number of tokens of an answer.
    #[arg(long, default_value_t = 100)]
    max_new_tokens: usize,
    /// The sampling temperature: values below 1 favor likely tokens.
    #[arg(long, default_value_t = 0.8)]
    temperature: f64,
    /// Sample from this many of the likeliest tokens; 0 for all.
    #[arg(long, default_value_t = 50)]
    top_k: usize,
    /// The seed of the answers: a different number gives different answers.
    #[arg(long, default_value_t = 0)]
    draw: u64,
}

impl Args {
    fn vocabulary(&self) -> cli::Result<Vocabulary> {
        Vocabulary::open(self.tokenizer.as_deref(), &self.end_token)
    }

    fn vocab_size(&self) -> cli::Result<usize> {
        let tokens = self.vocabulary()?.len();
        match self.network.vocab_size {
            Some(size) if size < tokens => Err(format!(
                "--vocab-size {size}: the vocabulary has {tokens} tokens; use {tokens} or more"
            )
            .into()),
            size => Ok(size.unwrap_or(tokens)),
        }
    }

    fn samples(&self, split: Split) -> cli::Result<Box<dyn Dataset>> {
        let length = self.network.length;
        if self.fake_data {
            let count = if split == Split::Train { 100_000 } else { 1_000 };
            let bound = self.vocab_size()?;
            let fake = FakeDataset::new(count).integers("input_ids", [length], bound);
            return Ok(Box::new(fake.integers("labels", [length], bound)));
        }
        text::samples(&self.text, &self.vocabulary()?, length, split)
    }

    /// All samples, each once.
    fn ordered_loader(&self, split: Split) -> cli::Result<DataLoader> {
        let loader = DataLoader::builder(self.samples(split)?).batch_size(self.batch_size);
        Ok(loader.num_workers(self.num_workers).build()?)
    }
}

impl CliApp for Args {
    type Module = Gpt;

    fn module(&self) -> cli::Result<Gpt> {
        let Network { length, layers, heads, width, dropout, gradient_checkpointing, .. } =
            self.network;
        let config = Config {
            vocab_size: self.vocab_size()?,
            n_positions: length,
            n_layer: layers,
            n_head: heads,
            n_embd: width,
            resid_pdrop: dropout,
            embd_pdrop: dropout,
            attn_pdrop: dropout,
            ..Config::default()
        };
        let Generation { max_new_tokens, temperature, top_k, draw, .. } = self.generation;
        let answers = GenerationConfig {
            max_new_tokens: Some(max_new_tokens),
            do_sample: true,
            temperature,
            top_k,
            eos_token_id: vec![self.vocabulary()?.end() as i32],
            seed: draw,
            ..GenerationConfig::default()
        };
        Ok(Gpt::new(config, gradient_checkpointing, self.recipe.clone(), answers)?)
    }

    fn fit_data(&self, options: &Options) -> cli::Result<FitData> {
        let train = DataLoader::builder(self.samples(Split::Train)?)
            .batch_size(self.batch_size)
            .shuffle(true)
            .seed(options.seed)
            .num_workers(self.num_workers)
            .drop_last(true)
            .build()?;
        Ok(FitData { train, validation: self.ordered_loader(Split::Validation)?.into() })
    }

    fn test_data(&self, _: &Options) -> cli::Result<EvaluationSets> {
        Ok(self.ordered_loader(Split::Test)?.into())
    }

    /// The prompt, once for each answer.
    fn predict_data(&self, _: &Options) -> cli::Result<Option<DataLoader>> {
        let Generation { prompt, num_return_sequences: count, .. } = &self.generation;
        let ids: Vec<i32> =
            self.vocabulary()?.encode(prompt)?.into_iter().map(|id| id as i32).collect();
        let prompts = TensorDataset::builder()
            .array("input_ids", [*count, ids.len()], ids.repeat(*count))
            .build()?;
        // All in one batch, because another batch would draw the same answers.
        Ok(Some(DataLoader::builder(prompts).per_device_batch_size((*count).max(1)).build()?))
    }

    /// A `.txt` has the prompt with each answer, separated by lines.
    fn prediction_writer(&self, output: &Path) -> trainer::Result<PredictionWriter> {
        let vocabulary = self.vocabulary();
        let prompt = self.generation.prompt.clone();
        PredictionWriter::with_format(output, "txt", move |file, batch| {
            let failed = |e: &dyn std::error::Error| std::io::Error::other(e.to_string());
            let vocabulary = vocabulary.as_ref().map_err(|e| failed(e.as_ref()))?;
            let Some(tokens) = batch.get("tokens") else { return Ok(()) };
            let tokens: Vec<u32> = tokens
                .to_vec::<i32>()
                .map_err(|e| failed(&e))?
                .iter()
                .map(|&id| id as u32)
                .collect();
            for answer in tokens.chunks(tokens.len() / batch.num_samples()) {
                let answer = vocabulary.decode(answer).map_err(|e| failed(e.as_ref()))?;
                writeln!(file, "{prompt}{answer}\n---")?;
            }
            Ok(())
        })
    }

    fn trainer(&self, builder: TrainerBuilder) -> TrainerBuilder {
        builder
            .gradient_clip_val(1.0)
            .callback(ModelCheckpoint::new().monitor("val_loss", Mode::Min))
    }
}

fn main() -> ExitCode {
    cli::main::<Args>()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: [&str; 8] = ["--layers", "1", "--heads", "2", "--width", "8", "--length", "16"];

    /// Fits, validates and tests in one run, without data and without leaving anything behind.
    #[test]
    fn the_program_runs_on_fake_data() {
        let args =
            [&["gpt", "--fake-data", "--fast-dev-run", "--gradient-checkpointing"][..], &SMALL]
                .concat();
        assert_eq!(cli::main_from::<Args>(args), ExitCode::SUCCESS);
    }

    #[test]
    fn predict_continues_the_prompt() {
        let folder = tempfile::tempdir().unwrap();
        let story = folder.path().join("story.txt");
        let args = [
            "gpt",
            "predict",
            "--prompt",
            "Once",
            "--num-return-sequences",
            "3",
            "--max-new-tokens",
            "8",
        ];
        let output = ["--output", story.to_str().unwrap(), "--fast-dev-run"];
        assert_eq!(
            cli::main_from::<Args>([&args[..], &SMALL, &output].concat()),
            ExitCode::SUCCESS
        );
        let text = std::fs::read_to_string(story).unwrap();
        let answers: Vec<&str> =
            text.split("\n---\n").filter(|answer| !answer.is_empty()).collect();
        assert_eq!(answers.len(), 3, "{text}");
        assert!(
            answers.iter().all(|answer| answer.starts_with("Once")) && answers[0] != answers[1],
            "{text}"
        );
    }
}
