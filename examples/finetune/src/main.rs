//! Fine-tunes a Hugging Face folder to classify texts: all weights, LoRA, or only the head.

mod model;
mod texts;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use fulmen::cli::{self, CliApp, FitData, clap};
use fulmen::data::text::{Tokenizer, choose_boundaries};
use fulmen::data::{Buckets, DataLoaderBuilder};
use fulmen::models::bert::Config;
use fulmen::models::{AutoModelForSequenceClassification as Classifier, Labels, Pretrained};
use fulmen::prelude::*;
use fulmen::trainer::{self, PredictionWriter};

use model::{Recipe, TextClassifier};
use texts::{Samples, Split, Text};

/// Fine-tunes a Hugging Face folder to classify texts; `predict --output labels.csv` classifies
#[derive(clap::Args)]
struct Args {
    /// A Hugging Face folder of a BERT or a RoBERTa, with config.json, weights and a tokenizer:
    /// tokenizer.json, or a SentencePiece model.
    #[arg(long)]
    from: Option<PathBuf>,
    /// A .csv, .tsv or .jsonl file with `text` and `label`, or a folder in which each .txt or .md
    /// file is a class and each line a text. A tenth is held out for validation and another tenth
    /// for testing.
    #[arg(long)]
    data: Option<PathBuf>,
    /// Texts for testing; by default a tenth of --data.
    #[arg(long)]
    test_data: Option<PathBuf>,
    /// Texts for `predict`, with or without labels; by default the test texts.
    #[arg(long)]
    predict_data: Option<PathBuf>,
    /// Use random tokens instead of --data, and random weights instead of those in --from, which
    /// then needs only a config.json. Without --from, the model is tiny.
    #[arg(long)]
    fake_data: bool,
    /// After the test, save the model, with LoRA's updates added, and the tokenizer into this
    /// folder.
    #[arg(long)]
    save_to: Option<PathBuf>,
    /// After the test, save LoRA's updates and the classifier into this folder, in peft's format.
    #[arg(long, requires = "lora")]
    save_adapter: Option<PathBuf>,
    /// The maximum number of tokens of a text, within the limit of the model. Longer texts are
    /// truncated.
    #[arg(long, default_value_t = 128)]
    max_length: usize,
    /// The number of lengths that texts are padded to. Each length has its own program.
    #[arg(long, default_value_t = 2)]
    buckets: usize,
    /// The batch size.
    #[arg(long, default_value_t = 32)]
    batch_size: usize,
    /// The number of worker threads that read data.
    #[arg(long, default_value_t = 1)]
    num_workers: usize,
    #[command(flatten)]
    recipe: Recipe,
}

impl Args {
    fn folder(&self) -> cli::Result<&Path> {
        let missing =
            "pass a Hugging Face folder with --from, or try the program out with --fake-data";
        Ok(self.from.as_deref().ok_or(missing)?)
    }

    /// The configuration of the initial model.
    fn config(&self) -> cli::Result<Config> {
        if self.from.is_some() || !self.fake_data {
            return Ok(Classifier::config_from_folder(self.folder()?)?);
        }
        Ok(Config {
            vocab_size: 100,
            hidden_size: 16,
            intermediate_size: 32,
            num_hidden_layers: 1,
            num_attention_heads: 2,
            hidden_dropout_prob: 0.0,
            attention_probs_dropout_prob: 0.0,
            ..Config::roberta()
        })
    }

    /// The classes: those of --from if they include all names in --data or there is no --data, else
    /// those in --data.
    fn labels(&self) -> cli::Result<Labels> {
        let labels = self.config()?.labels;
        let Some(data) = self.data.as_ref().filter(|_| !self.fake_data) else { return Ok(labels) };
        let names: BTreeSet<String> =
            texts::read(data)?.into_iter().filter_map(|text| text.label).collect();
        let has_all = names.iter().all(|name| labels.label2id.contains_key(name));
        Ok(if has_all { labels } else { Labels::new(names) })
    }

    fn samples(&self, texts: Option<&Path>, split: Split) -> cli::Result<Samples> {
        let labels = self.labels()?;
        let config = self.config()?;
        let max_length = self.max_length.min(config.max_length());
        if self.fake_data {
            let count = if split == Split::Train { 10_000 } else { 200 };
            return Samples::fake(count, config.vocab_size, max_length, &labels);
        }
        let texts: Vec<Text> = match (texts, &self.data) {
            (Some(file), _) => texts::read(file)?,
            (None, Some(data)) => texts::part(texts::read(data)?, split),
            (None, None) => {
                return Err(
                    "give texts with --data, or try the program out with --fake-data".into()
                );
            }
        };
        Samples::new(&texts, Tokenizer::load(self.folder()?)?, max_length, &labels)
    }

    /// A loader with batches of a few lengths. All texts must have labels.
    fn bucketed_loader(&self, samples: Samples) -> cli::Result<DataLoaderBuilder> {
        if !samples.are_labelled() {
            return Err("a text has no `label`; only `predict` accepts that".into());
        }
        let lengths = samples.lengths();
        let buckets = Buckets::new(&lengths, choose_boundaries(&lengths, self.buckets)?.lengths())?;
        let loader = DataLoader::builder(samples).batch_size(self.batch_size).buckets(buckets);
        Ok(loader.num_workers(self.num_workers))
    }
}

impl CliApp for Args {
    type Module = TextClassifier;

    fn module(&self) -> cli::Result<TextClassifier> {
        let labels = self.labels()?;
        let model = if self.fake_data {
            Classifier::new(Config { labels, ..self.config()? })?
        } else {
            Classifier::from_folder_with(self.folder()?, |config| config.labels = labels)?
        };
        Ok(TextClassifier::new(model, self.recipe.clone())?)
    }

    fn fit_data(&self, options: &Options) -> cli::Result<FitData> {
        let train = self
            .bucketed_loader(self.samples(None, Split::Train)?)?
            .shuffle(true)
            .seed(options.seed);
        let validation = self.bucketed_loader(self.samples(None, Split::Validation)?)?.build()?;
        Ok(FitData { train: train.drop_last(true).build()?, validation: validation.into() })
    }

    fn test_data(&self, _: &Options) -> cli::Result<EvaluationSets> {
        let samples = self.samples(self.test_data.as_deref(), Split::Test)?;
        Ok((&self.bucketed_loader(samples)?.build()?).into())
    }

    fn after_test(&self, module: &TextClassifier, trainer: &Trainer) -> cli::Result<()> {
        if trainer.process_index() != 0 {
            return Ok(());
        }
        if let Some(folder) = &self.save_to {
            module.save(folder)?;
            if !self.fake_data {
                Tokenizer::copy_files(self.folder()?, folder)?;
            }
        }
        if let Some(folder) = &self.save_adapter {
            module.save_adapter(folder)?;
        }
        Ok(())
    }

    /// All batches have one length, so that predictions have the order of the texts.
    fn predict_data(&self, _: &Options) -> cli::Result<Option<DataLoader>> {
        let texts = self.predict_data.as_deref().or(self.test_data.as_deref());
        let loader =
            DataLoader::builder(self.samples(texts, Split::Test)?).batch_size(self.batch_size);
        Ok(Some(loader.num_workers(self.num_workers).build()?))
    }

    /// A `.csv` has the class names.
    fn prediction_writer(&self, output: &Path) -> trainer::Result<PredictionWriter> {
        let labels = self.labels();
        let has_header = Cell::new(false);
        PredictionWriter::with_format(output, "csv", move |file, batch| {
            let failed = |e: &dyn std::error::Error| std::io::Error::other(e.to_string());
            let labels = labels.as_ref().map_err(|e| failed(e.as_ref()))?;
            let (Some(classes), Some(probabilities)) =
                (batch.get("label"), batch.get("probability"))
            else {
                return Ok(());
            };
            if !has_header.replace(true) {
                writeln!(file, "label,probability")?;
            }
            let classes = classes.to_vec::<i32>().map_err(|e| failed(&e))?;
            for (class, probability) in classes.iter().zip(probabilities.to_f64()) {
                let name = labels.id2label.get(&class.to_string()).map_or("", String::as_str);
                writeln!(file, "\"{}\",{probability:.4}", name.replace('"', "\"\""))?;
            }
            Ok(())
        })
    }

    fn trainer(&self, builder: TrainerBuilder) -> TrainerBuilder {
        builder
            .max_epochs(3)
            .gradient_clip_val(1.0)
            .callback(ModelCheckpoint::new().monitor("val_acc", Mode::Max))
    }
}

fn main() -> ExitCode {
    cli::main::<Args>()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fits with LoRA, validates and tests in one run, then classifies with the saved model.
    #[test]
    fn the_program_runs_on_fake_data() {
        let folder = tempfile::tempdir().unwrap();
        let [model, adapter, labels] =
            ["model", "adapter", "labels.csv"].map(|name| folder.path().join(name));
        let small = [
            "--fake-data",
            "--fast-dev-run",
            "--max-length",
            "16",
            "--batch-size",
            "8",
            "--buckets",
            "1",
        ];
        let save =
            ["--save-to", model.to_str().unwrap(), "--save-adapter", adapter.to_str().unwrap()];
        let run = [&["finetune", "--lora", "2"][..], &small, &save].concat();
        assert_eq!(cli::main_from::<Args>(run), ExitCode::SUCCESS);
        assert!(
            Classifier::from_folder(&model).is_ok()
                && adapter.join("adapter_model.safetensors").is_file()
        );

        let predict = ["--from", model.to_str().unwrap(), "--output", labels.to_str().unwrap()];
        let run = [&["finetune", "predict"][..], &small, &predict].concat();
        assert_eq!(cli::main_from::<Args>(run), ExitCode::SUCCESS);
        let labels = std::fs::read_to_string(labels).unwrap();
        let mut lines = labels.lines();
        assert_eq!(lines.next(), Some("label,probability"));
        assert!(
            lines.all(|line| line.starts_with("\"LABEL_")) && labels.lines().count() > 1,
            "{labels}"
        );
    }

    #[test]
    fn texts_are_read_and_split_deterministically() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let csv = write("a.csv", "label,text\ngood,\"fine, really\"\n,who knows\n");
        let json = write(
            "a.jsonl",
            "{\"text\": \"fine, really\", \"label\": \"good\"}\n{\"text\": \"who knows\"}\n",
        );
        for file in [&csv, &json] {
            let labels: Vec<Option<String>> =
                texts::read(file).unwrap().into_iter().map(|text| text.label).collect();
            assert_eq!(labels, [Some("good".to_owned()), None], "{}", file.display());
        }
        write("rain.txt", "# Rain\n\nIt rains and it rains again.\nNo end of it is seen today.\n");
        assert_eq!(texts::read(folder.path()).unwrap().len(), 2);
        let all =
            || (0..25).map(|number| number.to_string()).collect::<Vec<_>>().join(" a b c d e\n");
        write("rain.txt", &all());
        let count = |split| texts::part(texts::read(folder.path()).unwrap(), split).len();
        assert_eq!([Split::Train, Split::Validation, Split::Test].map(count), [18, 3, 3]);
    }
}
