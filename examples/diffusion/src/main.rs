//! Trains a diffusion model of digits; `predict --output samples.png` draws some.

mod model;
mod process;

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use fulmen::cli::{self, CliApp, FitData, clap};
use fulmen::data::{Dataset, FakeDataset, Mnist, Split};
use fulmen::prelude::*;
use fulmen::trainer::{self, Images, PredictionWriter};

use model::{Diffusion, Recipe};

/// Channels, height and width of a digit.
const SHAPE: [usize; 3] = [1, 28, 28];

/// Trains a diffusion model of digits; `predict --output samples.png` draws some
#[derive(clap::Args)]
struct Args {
    /// A folder with MNIST's IDX files, or those of a dataset in its form.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../mnist/data"))]
    data_dir: PathBuf,
    /// Use random images instead of --data-dir.
    #[arg(long)]
    fake_data: bool,
    /// The batch size.
    #[arg(long, default_value_t = 64)]
    batch_size: usize,
    /// The number of worker threads that read data.
    #[arg(long, default_value_t = 1)]
    num_workers: usize,
    /// A checkpoint of examples/resnet on the same digits: its classifier scores the digits that
    /// `test` draws.
    #[arg(long)]
    classifier: Option<PathBuf>,
    /// The number of digits that `predict` draws; another --seed draws others.
    #[arg(long, default_value_t = 64)]
    samples: usize,
    #[command(flatten)]
    recipe: Recipe,
}

impl Args {
    /// The fields `image`, `u8[1, 28, 28]`, and `label`, `i32[]`.
    fn digits(&self, split: Split) -> cli::Result<Box<dyn Dataset>> {
        if self.fake_data {
            return Ok(Box::new(FakeDataset::new(10_000).pixels("image", SHAPE).integers(
                "label",
                [],
                10,
            )));
        }
        Ok(Box::new(Mnist::open(&self.data_dir, split)?))
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
    type Module = Diffusion;

    fn module(&self) -> cli::Result<Diffusion> {
        Diffusion::new(self.recipe.clone(), self.classifier.as_deref())
    }

    fn fit_data(&self, options: &Options) -> cli::Result<FitData> {
        // A tenth of the training digits is held out for validation.
        let digits = self.digits(Split::Train)?;
        let held_back = digits.len() / 10;
        let lengths = [digits.len() - held_back, held_back];
        let [train, validation] = random_split(digits, lengths, 0)?;
        let train = DataLoader::builder(train)
            .batch_size(self.batch_size)
            .shuffle(true)
            .seed(options.seed)
            .num_workers(self.num_workers)
            .drop_last(true)
            .build()?;
        Ok(FitData { train, validation: self.ordered_loader(validation)?.into() })
    }

    /// The test digits, each with noise from which a digit of its class is drawn. The noise is part
    /// of the data because steps other than training steps draw the same random numbers for each
    /// batch.
    fn test_data(&self, _: &Options) -> cli::Result<EvaluationSets> {
        let data = FakeDataset::extending(self.digits(Split::Test)?).normal("noise", SHAPE);
        Ok(self.ordered_loader(data)?.into())
    }

    /// Noise, with the classes in turn.
    fn predict_data(&self, options: &Options) -> cli::Result<Option<DataLoader>> {
        let labels: Vec<i32> = (0..self.samples).map(|i| (i % 10) as i32).collect();
        let labels = TensorDataset::builder().array("label", [self.samples], labels).build()?;
        let noise = FakeDataset::extending(labels).seed(options.seed).normal("noise", SHAPE);
        // All in one batch, because a batch becomes one image.
        Ok(Some(DataLoader::builder(noise).per_device_batch_size(self.samples.max(1)).build()?))
    }

    /// A `.png` shows all digits in a grid.
    fn prediction_writer(&self, output: &Path) -> trainer::Result<PredictionWriter> {
        PredictionWriter::with_format(output, "png", |file, batch| {
            let Some(images) = batch.get("image") else { return Ok(()) };
            let [channels, height, width] = SHAPE;
            let pixels = images.to_vec::<u8>().map_err(io::Error::other)?;
            file.write_all(
                &Images { shape: [batch.num_samples(), channels, height, width], pixels }.png()?,
            )
        })
    }

    fn trainer(&self, builder: TrainerBuilder) -> TrainerBuilder {
        let builder = builder
            .gradient_clip_val(1.0)
            .callback(ModelCheckpoint::new().monitor("val_loss", Mode::Min));
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

    const SMALL: [&str; 6] = ["--channels", "8", "--sampling-steps", "1", "--batch-size", "8"];

    /// Fits, validates and tests in one run, without data, scored by a classifier.
    #[test]
    fn the_program_runs_on_fake_data() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("classifier.safetensors");
        let config = Config {
            num_classes: 10,
            in_chans: 1,
            stem_channels: 2,
            channels: [2; 4],
            layers: [1; 4],
            ..Config::resnet18()
        };
        let classifier = ResNet::new(config).unwrap();
        classifier.initialize(0);
        save_weights(&classifier, &path).unwrap();
        let args =
            ["diffusion", "--fake-data", "--fast-dev-run", "--classifier", path.to_str().unwrap()];
        assert_eq!(cli::main_from::<Args>([&args[..], &SMALL].concat()), ExitCode::SUCCESS);
    }

    #[test]
    fn predict_draws_a_sheet_of_digits() {
        let folder = tempfile::tempdir().unwrap();
        let sheet = folder.path().join("samples.png");
        let args = [
            "diffusion",
            "predict",
            "--fast-dev-run",
            "--samples",
            "9",
            "--output",
            sheet.to_str().unwrap(),
        ];
        assert_eq!(cli::main_from::<Args>([&args[..], &SMALL].concat()), ExitCode::SUCCESS);
        let png = std::fs::read(sheet).unwrap();
        // The header's width and height: three digits of 28 and two borders of 2.
        let [width, height] =
            [16, 20].map(|offset| u32::from_be_bytes(png[offset..offset + 4].try_into().unwrap()));
        assert!(png.starts_with(b"\x89PNG") && (width, height) == (88, 88), "{width} × {height}");
    }
}
