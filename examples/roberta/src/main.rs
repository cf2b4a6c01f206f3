//! Trains a tokenizer and a RoBERTa on any text; `predict` then fills gaps.

mod model;
mod text;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use fulmen::cli::{self, CliApp, FitData, clap};
use fulmen::data::text::Tokenizer;
use fulmen::data::{Dataset, FakeDataset};
use fulmen::models::Pretrained;
use fulmen::models::bert::Config;
use fulmen::prelude::*;
use fulmen::trainer::{self, PredictionWriter};

use model::{MaskedLm, Recipe};
use text::Split;

/// Trains a RoBERTa on any text; `predict --prompt "A<mask> has lines." --output filled.txt` fills
/// gaps
#[derive(clap::Args)]
struct Args {
    /// A text file, a folder of .txt and .md files, or a file of tokens that
    /// `fulmen data pack` wrote.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/src"))]
    text: PathBuf,
    /// A tokenizer.json with RoBERTa's special tokens. If the file does not exist, the tokenizer
    /// trained on --text is written there. Without this flag, each run trains it again.
    #[arg(long)]
    tokenizer: Option<PathBuf>,
    /// The vocabulary size of a trained tokenizer, and of --fake-data.
    #[arg(long, default_value_t = 1000)]
    vocab_size: usize,
    /// Use random tokens instead of --text.
    #[arg(long)]
    fake_data: bool,
    /// After the test, save the model and the tokenizer into this folder, for transformers and
    /// `finetune`.
    #[arg(long)]
    save_to: Option<PathBuf>,
    /// The batch size.
    #[arg(long, default_value_t = 32)]
    batch_size: usize,
    /// The number of worker threads that read data.
    #[arg(long, default_value_t = 1)]
    num_workers: usize,
    /// The text whose gaps `predict` fills. A gap includes the space before it.
    #[arg(long, default_value = "A<mask> has lines.")]
    prompt: String,
    #[command(flatten)]
    network: Network,
    #[command(flatten)]
    recipe: Recipe,
}

#[derive(clap::Args)]
#[command(next_help_heading = "Network")]
struct Network {
    /// The number of tokens in a sample.
    #[arg(long, default_value_t = 64)]
    length: usize,
    /// The number of layers.
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
    /// Recompute each layer in the backward pass, which needs less memory.
    #[arg(long)]
    gradient_checkpointing: bool,
}

impl Args {
    fn tokenizer(&self) -> cli::Result<Tokenizer> {
        text::tokenizer(&self.text, self.tokenizer.as_deref(), self.vocab_size)
    }

    fn samples(&self, split: Split) -> cli::Result<Box<dyn Dataset>> {
        let length = self.network.length;
        if self.fake_data {
            let count = if split == Split::Train { 100_000 } else { 1_000 };
            let names = ["input_ids", "labels", "bigram"];
            let fake = names.into_iter().fold(FakeDataset::new(count), |fake, name| {
                fake.integers(name, [length], self.vocab_size)
            });
            return Ok(Box::new(fake));
        }
        text::samples(&self.text, &self.tokenizer()?, length, split)
    }

    /// All samples, each once.
    fn ordered_loader(&self, split: Split) -> cli::Result<DataLoader> {
        let loader = DataLoader::builder(self.samples(split)?).batch_size(self.batch_size);
        Ok(loader.num_workers(self.num_workers).build()?)
    }
}

impl CliApp for Args {
    type Module = MaskedLm;

    fn module(&self) -> cli::Result<MaskedLm> {
        let (vocab_size, pad) = if self.fake_data {
            (self.vocab_size, 1)
        } else {
            let tokenizer = self.tokenizer()?;
            (tokenizer.vocab_size(), tokenizer.special_id("<pad>")?)
        };
        let Network { length, layers, heads, width, dropout, gradient_checkpointing } =
            self.network;
        let config = Config {
            vocab_size,
            hidden_size: width,
            num_hidden_layers: layers,
            num_attention_heads: heads,
            intermediate_size: 4 * width,
            hidden_dropout_prob: dropout,
            attention_probs_dropout_prob: dropout,
            pad_token_id: Some(pad as usize),
            // RoBERTa counts positions from the padding id.
            max_position_embeddings: length + pad as usize + 1,
            ..Config::roberta()
        };
        Ok(MaskedLm::new(config, gradient_checkpointing, self.recipe.clone())?)
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

    fn after_test(&self, module: &MaskedLm, trainer: &Trainer) -> cli::Result<()> {
        if let Some(folder) = self.save_to.as_ref().filter(|_| trainer.process_index() == 0) {
            module.roberta.save_pretrained(folder)?;
            if !self.fake_data {
                self.tokenizer()?.save(folder.join("tokenizer.json"))?;
            }
        }
        Ok(())
    }

    /// The prompt as one sample.
    fn predict_data(&self, _: &Options) -> cli::Result<Option<DataLoader>> {
        let ids: Vec<i32> =
            self.tokenizer()?.encode(&self.prompt)?.ids.into_iter().map(|id| id as i32).collect();
        let prompt = TensorDataset::builder().array("input_ids", [1, ids.len()], ids).build()?;
        Ok(Some(DataLoader::builder(prompt).per_device_batch_size(1).build()?))
    }

    /// A `.txt` has the prompt with filled gaps.
    fn prediction_writer(&self, output: &Path) -> trainer::Result<PredictionWriter> {
        let tokenizer = self.tokenizer();
        let prompt = self.prompt.clone();
        PredictionWriter::with_format(output, "txt", move |file, batch| {
            let failed = |e: &dyn std::error::Error| std::io::Error::other(e.to_string());
            let tokenizer = tokenizer.as_ref().map_err(|e| failed(e.as_ref()))?;
            let Some(tokens) = batch.get("tokens") else { return Ok(()) };
            let tokens = tokens.to_vec::<i32>().map_err(|e| failed(&e))?;
            let mut ids = tokenizer.encode(&prompt).map_err(|e| failed(&e))?.ids;
            for (id, token) in ids.iter_mut().zip(tokens) {
                if Some(*id) == tokenizer.mask_id() {
                    *id = token as u32;
                }
            }
            writeln!(file, "{}", tokenizer.decode(&ids, true).map_err(|e| failed(&e))?)
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

    /// Without dropout, because its random numbers take most of the compile time.
    const SMALL: [&str; 10] =
        ["--layers", "1", "--heads", "2", "--width", "8", "--length", "16", "--dropout", "0"];

    /// Fits, validates and tests in one run, without data and without leaving anything behind.
    #[test]
    fn the_program_runs_on_fake_data() {
        let args = [
            "roberta",
            "--fake-data",
            "--fast-dev-run",
            "--gradient-checkpointing",
            "--optimizer",
            "lamb",
        ];
        assert_eq!(cli::main_from::<Args>([&args[..], &SMALL].concat()), ExitCode::SUCCESS);
    }

    /// The folder has the files for `finetune` and transformers, and one token fills a gap.
    #[test]
    fn a_model_of_a_text_is_saved_and_fills_gaps() {
        let folder = tempfile::tempdir().unwrap();
        let [text, tokenizer, model, filled] =
            ["text.txt", "tokenizer.json", "model", "filled.txt"]
                .map(|name| folder.path().join(name));
        std::fs::write(&text, "thunder rolls and lightning strikes, ".repeat(200)).unwrap();
        let [text, tokenizer] = [&text, &tokenizer].map(|path| path.to_str().unwrap());
        let data =
            ["--text", text, "--tokenizer", tokenizer, "--vocab-size", "270", "--fast-dev-run"];

        let save = ["--save-to", model.to_str().unwrap()];
        let args = [&["roberta"][..], &SMALL, &data, &save].concat();
        assert_eq!(cli::main_from::<Args>(args), ExitCode::SUCCESS);
        let saved = fulmen::models::roberta::RobertaForMaskedLm::from_folder(&model).unwrap();
        let saved_tokenizer = Tokenizer::from_file(model.join("tokenizer.json")).unwrap();
        assert_eq!(saved.config().vocab_size, saved_tokenizer.vocab_size());

        let prompt = ["--prompt", "thunder<mask> and", "--output", filled.to_str().unwrap()];
        let args = [&["roberta", "predict"][..], &SMALL, &data, &prompt].concat();
        assert_eq!(cli::main_from::<Args>(args), ExitCode::SUCCESS);
        let filled = std::fs::read_to_string(filled).unwrap();
        assert!(filled.starts_with("thunder") && filled.ends_with(" and\n"), "{filled}");
    }
}
