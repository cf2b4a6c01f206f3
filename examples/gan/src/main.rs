//! Trains DCGAN or BigGAN on digits or on folders of images; `predict --output samples.png` draws
//! some.

mod data;
mod model;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use fulmen::cli::{self, CliApp, FitData, clap};
use fulmen::data::FakeDataset;
use fulmen::prelude::*;
use fulmen::trainer::{self, Images, PredictionWriter};

use data::{ImageSet, Split};
use model::{Gan, Recipe, Scores};

/// Trains DCGAN or BigGAN on digits or on folders of images; `predict --output samples.png` draws
/// some
#[derive(clap::Args)]
struct Args {
    /// A folder with MNIST's IDX files, or with the folders train and val, each with a folder of
    /// images per class.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../mnist/data"))]
    data_dir: PathBuf,
    /// Use random images instead of --data-dir.
    #[arg(long)]
    fake_data: bool,
    /// The height and width of images from folders and of --fake-data.
    #[arg(long, default_value_t = 64)]
    size: usize,
    /// The batch size.
    #[arg(long, default_value_t = 64)]
    batch_size: usize,
    /// The number of worker threads that read data.
    #[arg(long, default_value_t = 1)]
    num_workers: usize,
    /// The number of images that `predict` draws; another --seed draws others.
    #[arg(long, default_value_t = 64)]
    samples: usize,
    #[command(flatten)]
    recipe: Recipe,
    #[command(flatten)]
    scores: Scores,
}

impl Args {
    fn images(&self) -> cli::Result<ImageSet> {
        if self.fake_data {
            return Ok(ImageSet::fake(self.size));
        }
        ImageSet::find(&self.data_dir, self.size)
    }

    /// All samples, each once, with noise to draw from. The noise is part of the data because steps
    /// other than training steps draw the same random numbers for each batch.
    fn ordered_loader(&self, split: Split) -> cli::Result<DataLoader> {
        let images = self.images()?;
        let noise = [self.recipe.noise_size(&images)];
        let data = FakeDataset::extending(images.open(split)?).normal("noise", noise);
        Ok(DataLoader::builder(data)
            .batch_size(self.batch_size)
            .num_workers(self.num_workers)
            .build()?)
    }
}

impl CliApp for Args {
    type Module = Gan;

    fn module(&self) -> cli::Result<Gan> {
        Gan::new(self.recipe.clone(), &self.images()?, &self.scores)
    }

    fn fit_data(&self, options: &Options) -> cli::Result<FitData> {
        let train = DataLoader::builder(self.images()?.open(Split::Train)?)
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

    /// Noise, with the classes in turn.
    fn predict_data(&self, options: &Options) -> cli::Result<Option<DataLoader>> {
        let images = self.images()?;
        let noise = [self.recipe.noise_size(&images)];
        let data = FakeDataset::extending(images.labels(self.samples)?)
            .seed(options.seed)
            .normal("noise", noise);
        // All in one batch, because a batch becomes one image.
        Ok(Some(DataLoader::builder(data).per_device_batch_size(self.samples.max(1)).build()?))
    }

    /// A `.png` shows all images in a grid.
    fn prediction_writer(&self, output: &Path) -> trainer::Result<PredictionWriter> {
        PredictionWriter::with_format(output, "png", |file, batch| {
            let Some(images) = batch.get("image") else { return Ok(()) };
            let &[n, channels, height, width] = images.ty().shape.dims() else { return Ok(()) };
            let pixels = images.to_vec::<u8>().map_err(io::Error::other)?;
            file.write_all(&Images { shape: [n, channels, height, width], pixels }.png()?)
        })
    }

    fn trainer(&self, builder: TrainerBuilder) -> TrainerBuilder {
        let builder = match self.scores.classifier {
            Some(_) => builder.callback(ModelCheckpoint::new().monitor("val_frechet", Mode::Min)),
            None => builder,
        };
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
    use fulmen::models::Pretrained;
    use fulmen::models::resnet::{Config, ResNet};
    use fulmen::nn::weights::save_weights;

    use super::*;

    /// Fits, validates and tests in one run, without data, scored by a classifier.
    #[test]
    fn the_program_runs_on_fake_data() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("classifier.safetensors");
        let config = Config {
            num_classes: 10,
            stem_channels: 2,
            channels: [2; 4],
            layers: [1; 4],
            ..Config::resnet18()
        };
        let classifier = ResNet::new(config).unwrap();
        classifier.initialize(0);
        save_weights(&classifier, &path).unwrap();
        let args = [
            "gan",
            "--fake-data",
            "--fast-dev-run",
            "--width",
            "2",
            "--size",
            "16",
            "--batch-size",
            "8",
        ];
        let scoring = ["--discriminator-steps", "2", "--classifier", path.to_str().unwrap()];
        assert_eq!(cli::main_from::<Args>([&args[..], &scoring].concat()), ExitCode::SUCCESS);
    }

    #[test]
    fn predict_draws_a_sheet_of_digits() {
        let folder = tempfile::tempdir().unwrap();
        let sheet = folder.path().join("samples.png");
        let args =
            ["gan", "predict", "--fast-dev-run", "--width", "2", "--samples", "9", "--output"];
        assert_eq!(
            cli::main_from::<Args>([&args[..], &[sheet.to_str().unwrap()]].concat()),
            ExitCode::SUCCESS
        );
        let png = std::fs::read(sheet).unwrap();
        // The header's width and height: three digits of 28 and two borders of 2.
        let [width, height] =
            [16, 20].map(|offset| u32::from_be_bytes(png[offset..offset + 4].try_into().unwrap()));
        assert!(png.starts_with(b"\x89PNG") && (width, height) == (88, 88), "{width} × {height}");
    }
}
