//! Trains a Vision Transformer on folders of images, from scratch or from a downloaded model.

mod data;
mod model;

use std::path::PathBuf;
use std::process::ExitCode;

use fulmen::cli::{self, CliApp, FitData, clap};
use fulmen::models::Pretrained;
use fulmen::models::vit::{Config, ViT};
use fulmen::prelude::*;
use fulmen::trainer::TrainDuration;
use fulmen::trainer::callbacks::BackboneFinetuning;

use data::{Data, Split};
use model::{Classifier, Recipe};

/// Trains a Vision Transformer on folders of images
#[derive(clap::Args)]
struct Args {
    /// A folder downloaded from Hugging Face (config.json, model.safetensors) to start from. It
    /// gets a new head.
    #[arg(long)]
    from: Option<PathBuf>,
    /// The height and width to which images are resized; by default 224 with --from, and else 64.
    #[arg(long)]
    size: Option<usize>,
    /// The batch size.
    #[arg(long, default_value_t = 64)]
    batch_size: usize,
    /// The number of worker threads that read data.
    #[arg(long, default_value_t = 2)]
    num_workers: usize,
    /// Recompute each block in the backward pass, which needs less memory.
    #[arg(long)]
    gradient_checkpointing: bool,
    #[command(flatten)]
    data: Data,
    #[command(flatten)]
    network: Network,
    #[command(flatten)]
    recipe: Recipe,
}

/// The model, if --from is not given.
#[derive(clap::Args)]
#[command(next_help_heading = "Network")]
struct Network {
    /// The height and width of a patch. With --from, the folder determines this and the following.
    #[arg(long, default_value_t = 8)]
    patch_size: usize,
    /// The number of features of a patch.
    #[arg(long, default_value_t = 192)]
    hidden_size: usize,
    /// The number of blocks.
    #[arg(long, default_value_t = 6)]
    layers: usize,
    /// The number of attention heads.
    #[arg(long, default_value_t = 3)]
    heads: usize,
    /// The dropout probability.
    #[arg(long, default_value_t = 0.0)]
    dropout: f64,
}

impl Args {
    fn vit(&self) -> cli::Result<ViT> {
        let labels = self.data.labels()?;
        let mut vit = match &self.from {
            Some(folder) => ViT::from_folder_with(folder, |config| config.labels = labels)?,
            None => ViT::new(Config {
                image_size: self.size(),
                patch_size: self.network.patch_size,
                hidden_size: self.network.hidden_size,
                intermediate_size: 4 * self.network.hidden_size,
                num_hidden_layers: self.network.layers,
                num_attention_heads: self.network.heads,
                hidden_dropout_prob: self.network.dropout,
                labels,
                ..Config::default()
            })?,
        };
        vit.gradient_checkpointing = self.gradient_checkpointing;
        Ok(vit)
    }

    /// All samples, each once.
    fn ordered_loader(&self, split: Split) -> cli::Result<DataLoader> {
        let dataset = self.data.open(split, self.size())?;
        Ok(DataLoader::builder(dataset)
            .batch_size(self.batch_size)
            .num_workers(self.num_workers)
            .build()?)
    }

    /// The height and width of the images.
    fn size(&self) -> usize {
        self.size.unwrap_or(if self.from.is_some() { 224 } else { 64 })
    }
}

impl CliApp for Args {
    type Module = Classifier;

    fn module(&self) -> cli::Result<Classifier> {
        Ok(Classifier::new(self.vit()?, self.recipe.clone()))
    }

    fn fit_data(&self, options: &Options) -> cli::Result<FitData> {
        let train = DataLoader::builder(self.data.open(Split::Train, self.size())?)
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

    fn predict_data(&self, _: &Options) -> cli::Result<Option<DataLoader>> {
        Ok(Some(self.ordered_loader(Split::Test)?))
    }

    fn trainer(&self, builder: TrainerBuilder) -> TrainerBuilder {
        let best = ModelCheckpoint::new().monitor("val_acc", Mode::Max);
        let builder = builder.gradient_clip_val(1.0).callback(best);
        match self.recipe.freeze_epochs {
            0 => builder,
            epochs => {
                builder.callback(BackboneFinetuning::new("vit.*", TrainDuration::Epochs(epochs)))
            }
        }
    }
}

fn main() -> ExitCode {
    cli::main::<Args>()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fits, validates and tests in one run, from a Hugging Face folder, and leaves nothing behind.
    #[test]
    fn the_program_runs_on_fake_data() {
        let folder = tempfile::tempdir().unwrap();
        let hidden_size = 8;
        let intermediate_size = 16;
        let vit = ViT::new(Config {
            image_size: 16,
            patch_size: 8,
            hidden_size,
            intermediate_size,
            num_hidden_layers: 1,
            num_attention_heads: 2,
            ..Config::default()
        })
        .unwrap();
        vit.initialize(0);
        vit.save_pretrained(folder.path()).unwrap();
        let args = "vit --fake-data --fast-dev-run --batch-size 8 --size 16 --from"
            .split(' ')
            .chain([folder.path().to_str().unwrap()]);
        assert_eq!(cli::main_from::<Args>(args), ExitCode::SUCCESS);
    }
}
