//! Trains a ResNet on CIFAR, on digits, or on folders of images by class.

mod data;
mod model;

use std::path::PathBuf;
use std::process::ExitCode;

use fulmen::cli::{self, CliApp, FitData, clap};
use fulmen::data::Dataset;
use fulmen::models::Pretrained;
use fulmen::models::resnet::{Architecture, Config, ResNet};
use fulmen::prelude::*;

use data::{ImageSet, Split};
use model::{Classifier, Recipe};

/// Trains a ResNet on CIFAR, on digits, or on folders of images
#[derive(clap::Args)]
struct Args {
    /// A folder with CIFAR's binary version, MNIST's IDX files, the tar shards of
    /// `fulmen data pack`, or a folder of images per class: at its top, or in the
    /// folders train, val and optionally test.
    #[arg(long, default_value = ".")]
    data_dir: PathBuf,
    /// Use random images instead of --data-dir.
    #[arg(long)]
    fake_data: bool,
    /// The number of classes of shards and of --fake-data.
    #[arg(long, default_value_t = 10)]
    classes: usize,
    /// The height and width of images from folders and shards, and of --fake-data.
    #[arg(long, default_value_t = 32)]
    size: usize,
    /// The ResNet.
    #[arg(long, default_value = "resnet18", value_parser = clap::builder::PossibleValuesParser::new(ResNet::MODEL_TYPES))]
    model: String,
    /// The number of channels of the first convolution and of the first of the four stages.
    #[arg(long, default_value_t = 64)]
    width: usize,
    /// The batch size.
    #[arg(long, default_value_t = 128)]
    batch_size: usize,
    /// The number of worker threads that read data.
    #[arg(long, default_value_t = 2)]
    num_workers: usize,
    #[command(flatten)]
    recipe: Recipe,
}

impl Args {
    fn images(&self) -> cli::Result<ImageSet> {
        if self.fake_data {
            return Ok(ImageSet::fake(self.size, self.classes));
        }
        ImageSet::find(&self.data_dir, self.size, self.classes)
    }

    /// All samples, each once.
    fn ordered_loader(&self, dataset: impl Dataset) -> cli::Result<DataLoader> {
        Ok(DataLoader::builder(dataset)
            .batch_size(self.batch_size)
            .num_workers(self.num_workers)
            .build()?)
    }
}

impl CliApp for Args {
    type Module = Classifier;

    fn module(&self) -> cli::Result<Classifier> {
        let architecture = match self.model.as_str() {
            "resnet18" => Architecture::ResNet18,
            "resnet34" => Architecture::ResNet34,
            "resnet50" => Architecture::ResNet50,
            "resnet101" => Architecture::ResNet101,
            _ => Architecture::ResNet152,
        };
        let images = self.images()?;
        let config = Config {
            num_classes: images.classes(),
            in_chans: images.channels(),
            stem_channels: self.width,
            channels: [1, 2, 4, 8].map(|stage| stage * self.width),
            small_images: images.size() <= 64,
            zero_init_last: true,
            ..Config::new(architecture)
        };
        Ok(Classifier::new(config, self.recipe.clone())?)
    }

    fn fit_data(&self, options: &Options) -> cli::Result<FitData> {
        let images = self.images()?;
        let train = DataLoader::builder(images.open(Split::Train)?)
            .batch_size(self.batch_size)
            .shuffle(true)
            .seed(options.seed)
            .num_workers(self.num_workers)
            .drop_last(true)
            .build()?;
        let validation = self.ordered_loader(images.open(Split::Validation)?)?;
        Ok(FitData { train, validation: validation.into() })
    }

    fn test_data(&self, _: &Options) -> cli::Result<EvaluationSets> {
        Ok(self.ordered_loader(self.images()?.open(Split::Test)?)?.into())
    }

    fn predict_data(&self, _: &Options) -> cli::Result<Option<DataLoader>> {
        Ok(Some(self.ordered_loader(self.images()?.open(Split::Test)?)?))
    }

    fn trainer(&self, builder: TrainerBuilder) -> TrainerBuilder {
        let builder = builder.callback(ModelCheckpoint::new().monitor("val_acc", Mode::Max));
        match self.recipe.ema_decay {
            0.0 => builder,
            decay => builder.weight_averaging(WeightAveraging::ema(decay).warmup(true)),
        }
    }
}

fn main() -> ExitCode {
    cli::main::<Args>()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fits, validates and tests in one run, without data and without leaving anything behind.
    #[test]
    fn the_program_runs_on_fake_data() {
        let args = [
            "resnet",
            "--fake-data",
            "--fast-dev-run",
            "--width",
            "4",
            "--size",
            "16",
            "--batch-size",
            "8",
        ];
        assert_eq!(
            cli::main_from::<Args>([&args[..], &["--optimizer", "lars"]].concat()),
            ExitCode::SUCCESS
        );
    }
}
