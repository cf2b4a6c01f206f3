//! Trains the Transformer on pairs of texts; `predict` translates new texts.

mod dates;
mod model;
mod pairs;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;

use fulmen::cli::{self, CliApp, FitData, clap};
use fulmen::data::{DataLoaderBuilder, FakeDataset};
use fulmen::models::GenerationConfig;
use fulmen::models::marian::Config;
use fulmen::prelude::*;
use fulmen::trainer::{self, PredictionWriter};

use model::{Recipe, Translator};
use pairs::{Pair, Split, Vocabulary};

/// Trains the Transformer on pairs of texts; `predict --input texts.txt --output translations.txt`
/// translates new texts
#[derive(clap::Args)]
struct Args {
    /// Texts and translations: two files with matching lines, a .tsv, or a .jsonl with the keys
    /// source and target.
    #[arg(long, num_args = 1..=2, value_name = "FILE")]
    pairs: Vec<PathBuf>,
    /// Validation pairs; by default a twentieth of --pairs, at most 2000.
    #[arg(long, num_args = 1..=2, value_name = "FILE")]
    validation_pairs: Vec<PathBuf>,
    /// Test pairs; by default another twentieth.
    #[arg(long, num_args = 1..=2, value_name = "FILE")]
    test_pairs: Vec<PathBuf>,
    /// Use dates in many written forms, with 1987-10-03 as the translation, instead of --pairs.
    #[arg(long)]
    dates: bool,
    /// Use random tokens instead of --pairs.
    #[arg(long)]
    fake_data: bool,
    /// The texts that `predict` translates, one per line; by default the test texts.
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// A Hugging Face tokenizer.json for both languages. If the file does not exist, the trained
    /// tokenizer is written there. Without this flag, each run trains it again.
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// The tokenizer's end-of-text token.
    #[arg(long, default_value = "</s>")]
    end_token: String,
    /// The vocabulary limit of a trained tokenizer.
    #[arg(long, default_value_t = 8000)]
    vocab_size: usize,
    /// The maximum number of tokens of a text. Longer texts are truncated.
    #[arg(long, default_value_t = 128)]
    length: usize,
    /// The maximum number of lengths that batches are padded to.
    #[arg(long, default_value_t = 4)]
    buckets: usize,
    /// The batch size.
    #[arg(long, default_value_t = 64)]
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
    #[arg(skip)]
    vocabulary: OnceLock<Vocabulary>,
}

#[derive(clap::Args)]
#[command(next_help_heading = "Network")]
struct Network {
    /// The Transformer of the paper; the other flags override its sizes.
    #[arg(long, value_enum, default_value_t = Size::Base)]
    size: Size,
    /// The number of layers of the encoder and of the decoder.
    #[arg(long)]
    layers: Option<usize>,
    /// The number of attention heads.
    #[arg(long)]
    heads: Option<usize>,
    /// The number of features of a token; the feed-forward networks have four times as many.
    #[arg(long)]
    width: Option<usize>,
    /// The dropout probability.
    #[arg(long)]
    dropout: Option<f64>,
    /// Recompute each layer in the backward pass, which needs less memory.
    #[arg(long)]
    gradient_checkpointing: bool,
    /// Compile one layer for all layers, which takes less time.
    #[arg(long)]
    scan_layers: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Size {
    Base,
    Big,
}

#[derive(clap::Args)]
#[command(next_help_heading = "Generation")]
struct Generation {
    /// The number of beams in beam search.
    #[arg(long, default_value_t = 4)]
    num_beams: usize,
    /// Values above 0 prefer longer translations.
    #[arg(long, default_value_t = 0.6)]
    length_penalty: f64,
}

impl Network {
    fn config(&self, vocab_size: usize, positions: usize, start: u32) -> Config {
        let paper = match self.size {
            Size::Base => Config::base(vocab_size),
            Size::Big => Config::big(vocab_size),
        };
        let layers = self.layers.unwrap_or(paper.encoder_layers);
        let heads = self.heads.unwrap_or(paper.encoder_attention_heads);
        let width = self.width.unwrap_or(paper.d_model);
        Config {
            d_model: width,
            encoder_layers: layers,
            decoder_layers: layers,
            encoder_attention_heads: heads,
            decoder_attention_heads: heads,
            encoder_ffn_dim: 4 * width,
            decoder_ffn_dim: 4 * width,
            dropout: self.dropout.unwrap_or(paper.dropout),
            init_std: (width.max(1) as f64).powf(-0.5),
            max_position_embeddings: positions,
            decoder_start_token_id: start as i32,
            ..paper
        }
    }
}

impl Args {
    fn texts(&self, split: Split) -> cli::Result<Vec<Pair>> {
        if self.dates {
            return Ok(dates::pairs(split));
        }
        let files = [&self.pairs, &self.validation_pairs, &self.test_pairs][split as usize];
        if split != Split::Train && !files.is_empty() {
            return pairs::read(files);
        }
        let mut pairs = pairs::read(&self.pairs)?;
        // The last pairs are for testing, and those before them for validation.
        let part = pairs.len().div_ceil(20).min(2000);
        let held_back = |files: &[PathBuf]| if files.is_empty() { part } else { 0 };
        let test = pairs.split_off(pairs.len() - held_back(&self.test_pairs));
        let validation =
            pairs.split_off(pairs.len().saturating_sub(held_back(&self.validation_pairs)));
        Ok([pairs, validation, test].into_iter().nth(split as usize).unwrap_or_default())
    }

    fn vocabulary(&self) -> cli::Result<&Vocabulary> {
        if let Some(vocabulary) = self.vocabulary.get() {
            return Ok(vocabulary);
        }
        let untruncated = match &self.tokenizer {
            Some(file) if file.exists() => Vocabulary::open(file, &self.end_token)?,
            file => {
                let vocabulary = Vocabulary::train(&self.texts(Split::Train)?, self.vocab_size)?;
                file.iter().try_for_each(|file| vocabulary.save(file))?;
                vocabulary
            }
        };
        let vocabulary = untruncated.max_length(self.length)?;
        Ok(self.vocabulary.get_or_init(|| vocabulary))
    }

    /// The size of the vocabulary, and the padding and end tokens.
    fn tokens(&self) -> cli::Result<(usize, u32, u32)> {
        if self.fake_data {
            return Ok((self.vocab_size, 0, 1));
        }
        let vocabulary = self.vocabulary()?;
        Ok((vocabulary.len(), vocabulary.pad, vocabulary.end))
    }

    /// The maximum length of a padded batch.
    fn longest(&self) -> usize {
        self.length.next_multiple_of(8)
    }

    fn loader(&self, split: Split) -> cli::Result<DataLoaderBuilder> {
        let loader = if self.fake_data {
            let count = if split == Split::Train { 100_000 } else { 1_000 };
            DataLoader::builder(
                FakeDataset::new(count)
                    .integers("input_ids", [self.length], self.vocab_size)
                    .integers("labels", [self.length], self.vocab_size),
            )
        } else {
            pairs::loader(self.texts(split)?, self.vocabulary()?.clone(), self.buckets)?
        };
        Ok(loader.batch_size(self.batch_size).num_workers(self.num_workers))
    }
}

impl CliApp for Args {
    type Module = Translator;

    fn module(&self) -> cli::Result<Translator> {
        let (vocab_size, pad, end) = self.tokens()?;
        let config = self.network.config(vocab_size, self.longest() + 1, pad);
        let Generation { num_beams, length_penalty } = self.generation;
        let answers = GenerationConfig {
            max_new_tokens: Some(self.longest()),
            num_beams,
            length_penalty,
            eos_token_id: vec![end as i32],
            forced_eos_token_id: vec![end as i32],
            bad_words_ids: vec![vec![pad as i32]],
            pad_token_id: Some(pad as i32),
            ..GenerationConfig::default()
        };
        let Network { gradient_checkpointing, scan_layers, .. } = self.network;
        let translator = Translator::new(config, self.recipe.clone(), answers)?;
        Ok(translator.layers(gradient_checkpointing, scan_layers))
    }

    fn fit_data(&self, options: &Options) -> cli::Result<FitData> {
        let train = self.loader(Split::Train)?.shuffle(true).seed(options.seed).drop_last(true);
        let validation = self.loader(Split::Validation)?.build()?;
        Ok(FitData { train: train.build()?, validation: validation.into() })
    }

    fn test_data(&self, _: &Options) -> cli::Result<EvaluationSets> {
        Ok((&self.loader(Split::Test)?.build()?).into())
    }

    fn predict_data(&self, _: &Options) -> cli::Result<Option<DataLoader>> {
        let pairs = match &self.input {
            None => self.texts(Split::Test)?,
            Some(file) => {
                let texts = fs::read_to_string(file)
                    .map_err(|e| format!("--input {}: {e}", file.display()))?;
                texts.lines().map(|text| (text.to_owned(), String::new())).collect()
            }
        };
        // In order, with a single length.
        let loader = pairs::loader(pairs, self.vocabulary()?.clone(), 1)?;
        Ok(Some(loader.batch_size(self.batch_size).num_workers(self.num_workers).build()?))
    }

    /// A `.txt` has one translation per line.
    fn prediction_writer(&self, output: &Path) -> trainer::Result<PredictionWriter> {
        let vocabulary = self.vocabulary().cloned();
        PredictionWriter::with_format(output, "txt", move |file, batch| {
            let failed = |e: &dyn std::error::Error| std::io::Error::other(e.to_string());
            let vocabulary = vocabulary.as_ref().map_err(|e| failed(e.as_ref()))?;
            let Some(tokens) = batch.get("tokens") else { return Ok(()) };
            let tokens = tokens.to_vec::<i32>().map_err(|e| failed(&e))?;
            for translation in tokens.chunks(tokens.len() / batch.num_samples()) {
                writeln!(
                    file,
                    "{}",
                    vocabulary.decode(translation).map_err(|e| failed(e.as_ref()))?
                )?;
            }
            Ok(())
        })
    }

    fn trainer(&self, builder: TrainerBuilder) -> TrainerBuilder {
        builder.callback(ModelCheckpoint::new().monitor("val_loss", Mode::Min))
    }
}

fn main() -> ExitCode {
    cli::main::<Args>()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: [&str; 10] =
        ["--layers", "1", "--heads", "2", "--width", "8", "--length", "8", "--num-beams", "2"];

    /// Fits, validates and tests in one run, without data and without leaving anything behind.
    #[test]
    fn the_program_runs_on_fake_data() {
        let args =
            [&["translation", "--fake-data", "--fast-dev-run", "--vocab-size", "50"][..], &SMALL]
                .concat();
        assert_eq!(cli::main_from::<Args>(args), ExitCode::SUCCESS);
    }

    #[test]
    fn predict_writes_a_line_for_each_text() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        fs::write(path("pairs.tsv"), "one two\teins zwei\n".repeat(40)).unwrap();
        fs::write(path("texts.txt"), "one\n\na much longer text than eight tokens are\n").unwrap();
        let pairs = path("pairs.tsv");
        let texts = path("texts.txt");
        let output = path("out.txt");
        let tokenizer = path("tokenizer.json");
        let flags =
            ["translation", "predict", "--pairs", &pairs, "--input", &texts, "--output", &output];
        let args = [&flags[..], &["--tokenizer", &tokenizer, "--fast-dev-run"], &SMALL].concat();
        assert_eq!(cli::main_from::<Args>(args), ExitCode::SUCCESS);
        assert_eq!(fs::read_to_string(output).unwrap().lines().count(), 3);
        // The tokenizer was trained and saved.
        let saved = Vocabulary::open(Path::new(&tokenizer), "</s>").unwrap();
        assert_eq!((saved.pad, saved.end), (0, 1));
        assert!(saved.len() > 258 && saved.len() < 300, "{}", saved.len());
    }
}
