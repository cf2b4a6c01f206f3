//! The model, its optimizer, and the data.

use std::error::Error;

use fulmen::data::{FakeDataset, Mnist, Split};
use fulmen::prelude::*;

/// Two blocks of convolution, batch normalization and pooling, then a linear classifier.
pub(crate) fn model() -> Sequential {
    let add_block = |model: Sequential, inputs, outputs| {
        model
            .add(Conv2d::new(inputs, outputs, 3).padding(1))
            .add(BatchNorm2d::new(outputs))
            .add(Relu::new())
            .add(MaxPool2d::new(2))
    };
    add_block(add_block(Sequential::new(), 1, 16), 16, 32)
        .add(Flatten::new())
        .add(Dropout::new(0.3))
        .add(Linear::new(32 * 7 * 7, 10))
}

/// The steps and the optimizer.
pub(crate) fn training(model: &Sequential) -> TrainingFn<'_, Sequential> {
    let losses = |model: &Sequential, batch: &Batch, stage: &str, cx: &mut StepContext| {
        let logits = model.forward(&(batch.get("image").to_dtype(DType::F32) / 255.0));
        cx.log(format!("{stage}_acc"), metrics::correct(&logits, batch.get("label")));
        loss::cross_entropy(logits, batch.get("label"), Reduction::None)
    };
    let training = TrainingFn::new(
        model,
        move |model, batch, cx| batch.mean(losses(model, batch, "train", cx)),
        |plan| optim::AdamW::new(schedule::OneCycle::new(4e-3, plan.total_steps)),
    );
    let log = move |model: &Sequential, batch: &Batch, stage: &str, cx: &mut StepContext| {
        let losses = losses(model, batch, stage, cx);
        cx.log(format!("{stage}_loss"), losses);
    };
    training
        .validation_step(move |model, batch, cx| log(model, batch, "val", cx))
        .test_step(move |model, batch, cx| log(model, batch, "test", cx))
}

/// The digits, or random pixels with `fake`.
fn digits(fake: bool, split: Split) -> Result<Box<dyn Dataset>, Box<dyn Error>> {
    if fake {
        return Ok(Box::new(FakeDataset::new(1000).pixels("image", [1, 28, 28]).integers(
            "label",
            [],
            10,
        )));
    }
    Ok(Box::new(Mnist::open(concat!(env!("CARGO_MANIFEST_DIR"), "/../mnist/data"), split)?))
}

/// The loaders for training, validation and testing.
pub(crate) fn loaders(fake: bool) -> Result<[DataLoader; 3], Box<dyn Error>> {
    let digits = digits(fake, Split::Train)?;
    let lengths = [digits.len() - digits.len() / 10, digits.len() / 10];
    let [train, validation] = random_split(digits, lengths, 0)?;
    let test = self::digits(fake, Split::Test)?;
    Ok([
        DataLoader::builder(train).batch_size(32).shuffle(true).drop_last(true).build()?,
        DataLoader::builder(validation).batch_size(128).build()?,
        DataLoader::builder(test).batch_size(128).build()?,
    ])
}
