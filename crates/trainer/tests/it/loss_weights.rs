//! Losses that bring their weight: groups of batches, epochs, validations and log points equal one
//! large batch, compared with PyTorch.

use std::path::Path;

use fulmen_data::{Buckets, DataLoader, Dataset, Field, Sample, TensorDataset};
use fulmen_nn::loss::{
    CrossEntropyLoss, NllLoss, Reduction, cross_entropy, masked_mean, with_weight,
};
use fulmen_nn::optim::{Optimizer, Sgd};
use fulmen_nn::{Linear, Module};
use fulmen_tensor::{DType, Tensor, checkpoint};
use fulmen_trainer::{
    Batch, Optimizers, Plan, Precision, StepContext, Strategy, TrainerBuilder, TrainingModule,
};
use serde_json::Value;

use crate::common::{DROP_LAST, PAD_LAST, Record, assert_close, logged, trainer};
use crate::optimizers::numbers;

const FEATURES: usize = 4;
const CLASSES: usize = 3;
const TOKENS: usize = 3;
pub(crate) const BATCH: usize = 8;
pub(crate) const GROUP: u64 = 4;
const RATE: f64 = 0.5;
const IGNORED: i64 = -100;
const COUNTED: [usize; 7] = [1, 7, 2, 8, 0, 5, 3];

/// The values of `reference/accumulation.py`.
pub(crate) fn reference(case: &str, name: &str) -> Vec<f64> {
    let json: Value = serde_json::from_str(include_str!("../reference/accumulation.json")).unwrap();
    match &json[case][name] {
        Value::Array(list) => list.iter().map(|x| x.as_f64().unwrap()).collect(),
        one => vec![one.as_f64().unwrap()],
    }
}

/// The tokens of `reference/accumulation.py`.
pub(crate) fn loader(samples: usize, drop_last: bool, batch: usize) -> DataLoader {
    let tokens = samples * TOKENS;
    let targets: Vec<i32> = (0..tokens).map(|i| (i * 7 % 11 % CLASSES) as i32).collect();
    let of_batch = BATCH * TOKENS;
    let counts: Vec<f32> =
        (0..tokens).map(|i| f32::from(i % of_batch < COUNTED[i / of_batch])).collect();
    let data = TensorDataset::builder()
        .array("x", [samples, TOKENS, FEATURES], numbers(7, tokens * FEATURES))
        .array("y", [samples, TOKENS], targets)
        .array("counts", [samples, TOKENS], counts);
    DataLoader::builder(data.build().unwrap())
        .batch_size(batch)
        .drop_last(drop_last)
        .build()
        .unwrap()
}

/// A batch of tokens, as a loss sees it.
pub(crate) struct Tokens<'a> {
    logits: Tensor,
    target: Tensor,
    counts: Tensor,
    batch: &'a Batch,
}

impl Tokens<'_> {
    /// The targets, with those that do not count ignored.
    fn ignored(&self) -> Tensor {
        self.counts.gt(0.0).select(&self.target, &Tensor::scalar(IGNORED as i32))
    }

    fn losses(&self) -> Tensor {
        cross_entropy(&self.logits, &self.target, Reduction::None)
    }
}

pub(crate) type Loss = fn(&Tokens<'_>) -> Tensor;

pub(crate) fn ignored(tokens: &Tokens<'_>) -> Tensor {
    CrossEntropyLoss::new().ignore_index(IGNORED).forward(&tokens.logits, tokens.ignored())
}

fn class_weights(tokens: &Tokens<'_>) -> Tensor {
    let weight = Tensor::from_slice(&[0.125f32, 0.5, 0.03125], [CLASSES]);
    CrossEntropyLoss::new()
        .ignore_index(IGNORED)
        .weight(weight)
        .forward(&tokens.logits, tokens.ignored())
}

fn class_weights_nll(tokens: &Tokens<'_>) -> Tensor {
    let weight = Tensor::from_slice(&[0.125f32, 0.5, 0.03125], [CLASSES]);
    let log_p = tokens.logits.log_softmax(-1);
    NllLoss::new().ignore_index(IGNORED).weight(weight).forward(&log_p, tokens.ignored())
}

fn masked(tokens: &Tokens<'_>) -> Tensor {
    masked_mean(tokens.losses(), &tokens.counts * tokens.batch.mask().unsqueeze(1))
}

/// A mean that a user computes, in parts and with factors.
fn own(tokens: &Tokens<'_>) -> Tensor {
    let counts = &tokens.counts * tokens.batch.mask().unsqueeze(1);
    let count = counts.sum_all();
    let mean = (tokens.losses() * counts).sum_all() / count.maximum(1.0);
    let half = with_weight(mean, &count) * 0.5;
    Tensor::stack(&[&half, &half], 0).sum_all() + 0.0 * tokens.logits.square().mean_all()
}

/// The loss within a body that is computed again.
fn recomputed(tokens: &Tokens<'_>) -> Tensor {
    let target = tokens.ignored();
    let loss = CrossEntropyLoss::new().ignore_index(IGNORED);
    checkpoint(|(logits, target)| loss.forward(&logits, &target), (&tokens.logits, target))
}

#[derive(Module)]
pub(crate) struct Classifier {
    linear: Linear,
    #[module(skip)]
    loss: Loss,
}

impl Classifier {
    pub(crate) fn new(loss: Loss) -> Classifier {
        let linear = Linear::new(FEATURES, CLASSES);
        let set = |name: &str, values: &[f32], shape: &[usize]| {
            let parameters = linear.parameters();
            let (_, parameter) = parameters.into_iter().find(|(own, _)| own == name).unwrap();
            parameter.set(Tensor::from_slice(values, shape));
        };
        set("weight", &numbers(1, CLASSES * FEATURES), &[CLASSES, FEATURES]);
        set("bias", &numbers(2, CLASSES), &[CLASSES]);
        Classifier { linear, loss }
    }

    fn loss(&self, batch: &Batch) -> Tensor {
        let logits = self.linear.forward(batch.get("x"));
        let target = batch.get("y");
        let counts = batch.get("counts");
        (self.loss)(&Tokens { logits, target, counts, batch })
    }

    fn weights(&self) -> Vec<f64> {
        self.parameters().iter().flat_map(|(_, p)| p.get().eval().unwrap().to_f64()).collect()
    }
}

impl TrainingModule for Classifier {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
        let loss = self.loss(batch);
        cx.log("negative", -&loss);
        loss
    }
    fn validation_step(&self, batch: &Batch, cx: &mut StepContext) {
        cx.log("val_loss", self.loss(batch));
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(RATE))
    }
}

pub(crate) fn groups(folder: &Path) -> TrainerBuilder {
    trainer(folder)
        .max_epochs(1)
        .accumulate_grad_batches(GROUP)
        .log_every_n_steps(1)
        .enable_checkpointing(false)
}

/// Trains for an epoch in groups, and compares everything with one large batch per step.
#[track_caller]
fn check(
    loss: Loss,
    data: &DataLoader,
    case: &str,
    tolerance: f64,
    set: impl Fn(TrainerBuilder) -> TrainerBuilder,
) {
    let folder = tempfile::tempdir().unwrap();
    let module = Classifier::new(loss);
    let record = Record::default();
    let builder = set(groups(folder.path()).callback(record.clone()));
    let summary = builder.build().unwrap().fit(&module, data, Some(data)).unwrap();
    assert_eq!(summary.global_step, 2);
    let steps = reference(case, "steps");
    assert_close(&logged(&record, "train_loss"), &steps, tolerance);
    let negative: Vec<f64> = steps.iter().map(|loss| -loss).collect();
    assert_close(&logged(&record, "negative"), &negative, tolerance);
    let epoch = summary.last_epoch.unwrap();
    let [mean, validation] = ["epoch", "validation"].map(|name| reference(case, name));
    assert_close(&[epoch.get("train_loss_epoch").unwrap()], &mean, tolerance);
    assert_close(&[-epoch.get("negative_epoch").unwrap()], &mean, tolerance);
    assert_close(&[epoch.get("val_loss").unwrap()], &validation, tolerance);
    assert_close(&module.weights(), &reference(case, "weights"), tolerance);
}

#[test]
fn groups_epochs_and_validations_weigh_batches_by_what_counts_like_pytorch() {
    let data = loader(6 * BATCH, DROP_LAST, BATCH);
    let losses: [(Loss, &str); 6] = [
        (ignored, "ignored"),
        (masked, "ignored"),
        (own, "ignored"),
        (recomputed, "ignored"),
        (class_weights, "class_weights"),
        (class_weights_nll, "class_weights"),
    ];
    for (loss, case) in losses {
        check(loss, &data, case, 1e-5, |b| b);
    }
}

#[test]
fn padding_does_not_count_in_a_group_that_is_weighted_by_tokens() {
    let data = loader(6 * BATCH + 4, PAD_LAST, BATCH);
    check(masked, &data, "padded", 1e-5, |b| b);
    check(own, &data, "padded", 1e-5, |b| b.devices(8));
}

#[test]
fn eight_devices_and_scaled_losses_weigh_batches_by_tokens_too() {
    let data = loader(6 * BATCH, DROP_LAST, BATCH);
    for strategy in [Strategy::Ddp, Strategy::Fsdp] {
        check(ignored, &data, "ignored", 1e-5, |b| b.devices(8).strategy(strategy));
    }
    check(ignored, &data, "ignored", 3e-3, |b| b.precision(Precision::F16Mixed));
}

#[test]
fn a_users_own_loop_weighs_batches_by_tokens_too() {
    let folder = tempfile::tempdir().unwrap();
    let data = loader(6 * BATCH, DROP_LAST, BATCH);
    let module = Classifier::new(ignored);
    let mut trainer = groups(folder.path()).build().unwrap();
    let mut step = trainer.train_step(&module, &data).unwrap();
    let validation = step.eval_step(&data).unwrap();
    let mut losses = Vec::new();
    let mut updates = 0;
    for batch in step.batches() {
        let progress = step.run(&batch.unwrap()).unwrap();
        if progress.global_step > updates {
            updates = progress.global_step;
            losses.push(step.logs().unwrap().wait().unwrap().get("train_loss").unwrap());
        }
    }
    assert_close(&losses, &reference("ignored", "steps"), 1e-5);
    let point = validation.run(&step).unwrap();
    assert_close(&[point.get("val_loss").unwrap()], &reference("ignored", "validation"), 1e-5);
    drop(step);
}

/// Two parts, each with an optimizer. The second loss depends on what the first one trains.
#[derive(Module)]
struct Two {
    a: Linear,
    b: Linear,
}

impl TrainingModule for Two {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
        let x = batch.get("x");
        let target = batch.get("y");
        let counts = batch.get("counts");
        let loss = cx.minimize("a", |_| {
            let logits = self.a.forward(&x);
            ignored(&Tokens { logits, target, counts, batch })
        });
        cx.minimize("b", |_| (self.b.forward(self.a.forward(&x)) - 1.0).square().mean_all());
        loss
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        let optimizers = Optimizers::new().add("a", ["a.*"], Sgd::new(RATE));
        Box::new(optimizers.add("b", ["b.*"], Sgd::new(RATE)))
    }
}

#[test]
fn each_of_two_optimizers_has_the_weights_of_its_loss_and_steps_like_pytorch() {
    let data = loader(6 * BATCH, DROP_LAST, BATCH);
    for devices in [1, 8] {
        let folder = tempfile::tempdir().unwrap();
        let two = Two {
            a: Linear::new(FEATURES, CLASSES).bias(false),
            b: Linear::new(CLASSES, CLASSES).bias(false),
        };
        let set = |linear: &Linear, start: u64, shape: [usize; 2]| {
            let values = numbers(start, shape[0] * shape[1]);
            linear.parameters()[0].1.set(Tensor::from_slice(&values, shape));
        };
        set(&two.a, 1, [CLASSES, FEATURES]);
        set(&two.b, 3, [CLASSES, CLASSES]);
        let record = Record::default();
        let builder = groups(folder.path()).callback(record.clone()).devices(devices);
        builder.build().unwrap().fit(&two, &data, None).unwrap();
        let case = "two_optimizers";
        assert_close(&logged(&record, "loss-a"), &reference(case, "a"), 1e-5);
        // In the last batch of a group, the second loss sees what the first optimizer has changed.
        assert_close(&logged(&record, "loss-b"), &reference(case, "b"), 1e-5);
        let weights: Vec<f64> =
            two.parameters().iter().flat_map(|(_, p)| p.get().eval().unwrap().to_f64()).collect();
        assert_close(&weights, &reference(case, "weights"), 1e-5);
    }
}

/// Two parts with losses of their own tokens. The second optimizer skips every second step.
#[derive(Module)]
struct Apart {
    a: Linear,
    b: Linear,
}

impl TrainingModule for Apart {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
        let loss = |layer: &Linear, counts: Tensor| {
            let logits = layer.forward(batch.get("x"));
            let target = batch.get("y");
            masked(&Tokens { logits, target, counts, batch })
        };
        cx.minimize("b", |_| loss(&self.b, 1.0 - batch.get("counts")));
        cx.minimize("a", |_| loss(&self.a, batch.get("counts")))
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        let optimizers = Optimizers::new().add("a", ["a.*"], Sgd::new(RATE));
        Box::new(optimizers.add("b", ["b.*"], Sgd::new(RATE)).every("b", 2))
    }
}

#[test]
fn an_optimizer_that_skips_steps_sums_the_weights_of_its_own_groups() {
    let run = |batch: usize, group: u64| {
        let folder = tempfile::tempdir().unwrap();
        let record = Record::default();
        let builder = groups(folder.path()).max_epochs(2).accumulate_grad_batches(group);
        let apart = Apart { a: Linear::new(FEATURES, CLASSES), b: Linear::new(FEATURES, CLASSES) };
        let data = loader(6 * BATCH, PAD_LAST, batch);
        let mut trainer = builder.callback(record.clone()).build().unwrap();
        assert_eq!(trainer.fit(&apart, &data, None).unwrap().global_step, 4);
        let weights: Vec<f64> =
            apart.parameters().iter().flat_map(|(_, p)| p.get().eval().unwrap().to_f64()).collect();
        (weights, logged(&record, "loss-b"), logged(&record, "loss-a"))
    };
    let whole = run(BATCH * GROUP as usize, 1);
    let groups = run(BATCH, GROUP);
    assert_eq!((groups.1.len(), groups.2.len()), (2, 4));
    assert_close(&groups.0, &whole.0, 1e-5);
    assert_close(&groups.1, &whole.1, 1e-5);
    assert_close(&groups.2, &whole.2, 1e-5);
}

#[test]
fn a_loss_without_one_weight_or_with_the_weight_of_padding_is_refused() {
    fn two_weights(tokens: &Tokens<'_>) -> Tensor {
        let others = masked_mean(tokens.losses(), tokens.target.eq(1.0));
        ignored(tokens) + others * 0.5
    }
    fn one_weight(tokens: &Tokens<'_>) -> Tensor {
        with_weight(two_weights(tokens), tokens.counts.sum_all())
    }
    fn equal_weights(tokens: &Tokens<'_>) -> Tensor {
        ignored(tokens) + ignored(tokens) * 0.5
    }
    fn of_padding(tokens: &Tokens<'_>) -> Tensor {
        let loss = tokens.batch.mean(tokens.losses().mean(1));
        with_weight(loss, tokens.counts.sum_all())
    }
    fn unmasked(tokens: &Tokens<'_>) -> Tensor {
        with_weight(tokens.losses().mean_all(), tokens.batch.mask().sum_all())
    }
    let fit = |loss: Loss, drop_last: bool, group: u64| {
        let folder = tempfile::tempdir().unwrap();
        let builder = groups(folder.path()).accumulate_grad_batches(group);
        let data = loader(6 * BATCH + 4, drop_last, BATCH);
        let result = builder.build().unwrap().fit(&Classifier::new(loss), &data, None);
        result.map(|_| ()).map_err(|error| error.to_string())
    };
    let message = fit(two_weights, DROP_LAST, 2).unwrap_err();
    assert!(
        message.starts_with("training_step: the loss joins means with different weights")
            && message.contains("loss::with_weight(loss, weight)")
            && message.matches("loss_weights.rs:").count() == 3,
        "{message}"
    );
    // Without groups, each batch has its own step.
    assert_eq!(fit(two_weights, DROP_LAST, 1), Ok(()));
    assert_eq!(fit(one_weight, DROP_LAST, 2), Ok(()));
    assert_eq!(fit(equal_weights, DROP_LAST, 2), Ok(()));
    let message = fit(of_padding, PAD_LAST, 2).unwrap_err();
    assert!(
        message.contains("the weight of the loss does not depend on the batch's mask"),
        "{message}"
    );
    // The weight does not hide that the loss itself uses the padding.
    let message = fit(unmasked, PAD_LAST, 2).unwrap_err();
    assert!(message.contains("the loss does not depend on the batch's mask"), "{message}");
}

/// Sequences of different lengths, padded with targets that do not count.
struct Sequences(Vec<usize>);

impl Dataset for Sequences {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn fields(&self) -> Vec<Field> {
        vec![Field::new("x", DType::F32, [8, FEATURES]), Field::new("y", DType::I32, [8])]
    }
    fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<(), fulmen_data::Error> {
        let values = numbers(index as u64 * 1_000, self.0[index] * FEATURES);
        sample.values_mut::<f32>(0)?[..values.len()].copy_from_slice(&values);
        let targets = sample.values_mut::<i32>(1)?;
        targets.fill(IGNORED as i32);
        (0..self.0[index]).for_each(|token| targets[token] = (token % CLASSES) as i32);
        Ok(())
    }
}

/// A classifier of all tokens of sequences.
#[derive(Module)]
struct OfSequences {
    classifier: Classifier,
}

impl OfSequences {
    fn loss(&self, batch: &Batch) -> Tensor {
        let logits = self.classifier.linear.forward(batch.get("x"));
        let target = batch.get("y");
        let loss = CrossEntropyLoss::new().ignore_index(IGNORED).reduction(Reduction::None);
        let counts = target.ne(IGNORED as f64).to_dtype(DType::F32);
        masked_mean(loss.forward(&logits, &target), counts * batch.mask().unsqueeze(1))
    }
}

impl TrainingModule for OfSequences {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        self.loss(batch)
    }
    fn validation_step(&self, batch: &Batch, cx: &mut StepContext) {
        cx.log("val_loss", self.loss(batch));
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(RATE))
    }
}

#[test]
fn batches_of_all_buckets_weigh_as_much_as_their_tokens() {
    let lengths: Vec<usize> = (0..22).map(|i| 1 + i * 5 % 8).collect();
    let run = |batch: usize, buckets: &[usize]| {
        let folder = tempfile::tempdir().unwrap();
        let builder = DataLoader::builder(Sequences(lengths.clone())).batch_size(batch);
        let data = builder.buckets(Buckets::new(&lengths, buckets).unwrap()).build().unwrap();
        let module = OfSequences { classifier: Classifier::new(ignored) };
        let mut trainer = groups(folder.path()).accumulate_grad_batches(100).build().unwrap();
        let summary = trainer.fit(&module, &data, Some(&data)).unwrap();
        assert_eq!(summary.global_step, 1);
        let epoch = summary.last_epoch.unwrap();
        let losses = ["train_loss_epoch", "val_loss"].map(|name| epoch.get(name).unwrap());
        (losses, module.classifier.weights())
    };
    let (whole, weights) = run(22, &[8]);
    for batch in [4, 3] {
        let (losses, own_weights) = run(batch, &[2, 4, 8]);
        assert_close(&losses, &whole, 1e-5);
        assert_close(&own_weights, &weights, 1e-5);
    }
}
