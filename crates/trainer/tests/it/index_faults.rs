//! Indices out of range: the commonest mistake, labels that count from 1, ends a run at the user's
//! line, with the step and the row.

#![allow(clippy::unwrap_used)] // a test helper may panic: that fails the test

use std::path::Path;

use crate::common::{has_a_process_of_its_own, trainer};
use fulmen_data::{DataLoader, TensorDataset};
use fulmen_nn::loss::{CrossEntropyLoss, CtcLoss, Reduction, cross_entropy, nll_loss};
use fulmen_nn::metrics::{Accuracy, Auroc, ConfusionMatrix, Perplexity};
use fulmen_nn::optim::{Adam, Optimizer};
use fulmen_nn::{Embedding, Linear, Module};
use fulmen_tensor::{DType, Tensor, call, checkpoint, cond, scan};
use fulmen_trainer::callbacks::ModelCheckpoint;
use fulmen_trainer::{
    Batch, EvaluationSet, Optimizers, Plan, StepContext, Strategy, TrainerBuilder, TrainingModule,
};

const ROWS: usize = 32;
const TIME: usize = 6;
const CLASSES: usize = 5;
/// The row and the position of the invalid index.
const ROW: usize = 17;
const POSITION: usize = 4;

type Loss = fn(&Model, &Batch, &mut StepContext) -> Tensor;

#[derive(Module)]
struct Model {
    table: Embedding,
    head: Linear,
    #[module(skip)]
    train: Loss,
    #[module(skip)]
    validate: Option<Loss>,
    #[module(skip)]
    every: Option<u64>,
}

impl Model {
    fn new(train: Loss) -> Model {
        let table = Embedding::new(CLASSES, 4);
        let head = Linear::new(4, CLASSES);
        Model { table, head, train, validate: None, every: None }
    }

    /// Logits `[batch, time, classes]` of the tokens, which are always valid.
    fn logits(&self, batch: &Batch) -> Tensor {
        self.head.forward(&self.table.forward(&batch.get("x")))
    }
}

impl TrainingModule for Model {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
        match self.every {
            Some(_) => cx.minimize("all", |cx| (self.train)(self, batch, cx)),
            None => (self.train)(self, batch, cx),
        }
    }
    fn validation_step(&self, batch: &Batch, cx: &mut StepContext) {
        if let Some(validate) = self.validate {
            let loss = validate(self, batch, cx);
            cx.log("val_loss", &loss);
        }
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        match self.every {
            Some(every) => {
                Box::new(Optimizers::new().add("all", ["*"], Adam::new(0.01)).every("all", every))
            }
            None => Box::new(Adam::new(0.01)),
        }
    }
}

/// Batches of tokens `x` and labels `y`, all from 0 to 4, except one label in batch `bad`.
fn loader(batches: usize, bad: Option<(usize, i32)>) -> DataLoader {
    let rows = batches * ROWS;
    let tokens: Vec<i32> = (0..rows * TIME).map(|i| (i * 7 % CLASSES) as i32).collect();
    let mut labels = tokens.clone();
    if let Some((batch, label)) = bad {
        labels[(batch * ROWS + ROW) * TIME + POSITION] = label;
    }
    let data = TensorDataset::builder().array("x", [rows, TIME], tokens);
    let data = data.array("y", [rows, TIME], labels).build().unwrap();
    DataLoader::builder(data).batch_size(ROWS).drop_last(true).build().unwrap()
}

fn builder(folder: &Path) -> TrainerBuilder {
    trainer(folder).max_epochs(1)
}

/// The error of a fit on three batches. The second one has the label.
fn fit(module: &Model, label: i32, with: impl Fn(TrainerBuilder) -> TrainerBuilder) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = with(builder(folder.path())).build().unwrap();
    let error = trainer.fit(module, &loader(3, Some((1, label))), None).unwrap_err();
    assert_eq!(error.not_finite_step(), Some(2), "{error}");
    let checkpoints = folder.path().join("version_0/checkpoints");
    let saved = std::fs::read_dir(checkpoints).map_or(0, |entries| entries.count());
    assert_eq!(saved, 0, "no state of NaNs is saved");
    error.to_string()
}

/// Checks the message: the function, the line of this file and what is wrong.
#[track_caller]
fn check(message: &str, function: &str, line: u32, mistake: &str, place: &str) {
    let file = file!();
    let expected = format!("{function} at {file}:{line}: {mistake} ({place})");
    assert!(message.starts_with(&expected), "{message}\nexpected {expected}");
}

const PLACE: &str = "step 2, row 17, position 4";

#[test]
fn a_label_out_of_range_is_named_with_its_line_step_and_row() {
    let mean =
        Model::new(|m, batch, _| cross_entropy(m.logits(batch), batch.get("y"), Reduction::Mean));
    let line = line!() - 1;
    for label in [CLASSES as i32, -1, i32::MAX, i32::MIN] {
        let mistake = format!("a target is {label}, but there are 5 classes");
        check(&fit(&mean, label, |b| b), "cross_entropy", line, &mistake, PLACE);
    }
    // As PyTorch's users write it, with all tokens as rows.
    let flat = Model::new(|m, batch, _| {
        let logits = m.logits(batch).flatten(0, 1);
        cross_entropy(&logits, batch.get("y").flatten(0, 1), Reduction::Mean)
    });
    let mistake = "a target is 5, but there are 5 classes";
    check(&fit(&flat, 5, |b| b), "cross_entropy", line!() - 3, mistake, PLACE);
    let nll = Model::new(|m, batch, _| {
        nll_loss(m.logits(batch).log_softmax(-1), batch.get("y"), Reduction::Mean)
    });
    check(&fit(&nll, 5, |b| b), "nll_loss", line!() - 2, mistake, PLACE);
}

#[test]
fn an_ignored_label_is_allowed_and_others_are_not() {
    let model = Model::new(|m, batch, _| {
        let loss = CrossEntropyLoss::new().ignore_index(-100);
        loss.forward(m.logits(batch), batch.get("y"))
    });
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = builder(folder.path()).build().unwrap();
    trainer.fit(&model, &loader(3, Some((1, -100))), None).unwrap();
    let message = fit(&model, -99, |b| b);
    let mistake = "a target is -99, but there are 5 classes";
    check(&message, "cross_entropy", line!() - 7, mistake, PLACE);
}

#[test]
fn look_ups_say_what_their_table_has() {
    // The label is used as an index.
    let embedding =
        Model::new(|m, batch, _| m.head.forward(m.table.forward(batch.get("y"))).mean_all());
    let message = fit(&embedding, 5, |b| b);
    check(&message, "Embedding", line!() - 2, "an index is 5, but the table has 5 rows", PLACE);

    let take = Model::new(|m, batch, _| m.table.weight.get().take(0, batch.get("y")).mean_all());
    let message = fit(&take, 9, |b| b);
    check(&message, "take", line!() - 2, "an index is 9, but axis 0 has 5 elements", PLACE);

    let gather = Model::new(|m, batch, _| {
        m.logits(batch).gather(2, batch.get("y").unsqueeze(-1)).mean_all()
    });
    let message = fit(&gather, -3, |b| b);
    let place = "step 2, row 17, position [4, 0]";
    check(&message, "gather", line!() - 4, "an index is -3, but axis 2 has 5 elements", place);

    let points = Model::new(|m, batch, _| {
        m.table.weight.get().gather_nd(batch.get("y").unsqueeze(-1)).mean_all()
    });
    let message = fit(&points, 5, |b| b);
    check(&message, "gather_nd", line!() - 3, "an index is 5, but axis 0 has 5 elements", place);
}

#[test]
fn an_element_out_of_range_may_be_masked() {
    // `take` documents that it returns NaN, so a program may replace that.
    let masked = Model::new(|m, batch, _| {
        let rows = m.table.weight.get().take(0, batch.get("y"));
        let rows =
            batch.get("y").lt(CLASSES as f64).unsqueeze(-1).select(&rows, &rows.zeros_like());
        m.head.forward(&rows).mean_all()
    });
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = builder(folder.path()).detect_nan(true).build().unwrap();
    trainer.fit(&masked, &loader(3, Some((1, 7))), None).unwrap();
}

#[test]
fn ctc_names_labels_blanks_and_lengths() {
    let ctc: Loss = |m, batch, _| {
        let log_p = m.logits(batch).log_softmax(-1).transpose(0, 1);
        let times = Tensor::full(DType::I32, [ROWS], TIME as f64);
        let one = Tensor::full(DType::I32, [ROWS], 1.0);
        let labels = batch.get("y").narrow(1, POSITION, 1).maximum(1.0);
        CtcLoss::new().forward(&log_p, &labels, &times, &one)
    };
    let line = line!() - 2;
    let message = fit(&Model::new(ctc), 5, |b| b);
    let place = "step 2, row 17, position 0";
    check(&message, "ctc_loss", line, "a label is 5, but there are 5 classes", place);

    let lengths: Loss = |m, batch, _| {
        let log_p = m.logits(batch).log_softmax(-1).transpose(0, 1);
        let times = batch.get("y").narrow(1, POSITION, 1).squeeze(1).maximum(2.0);
        let one = Tensor::full(DType::I32, [ROWS], 1.0);
        CtcLoss::new().forward(&log_p, &Tensor::full(DType::I32, [ROWS, 1], 1.0), &times, &one)
    };
    let message = fit(&Model::new(lengths), 9, |b| b);
    let mistake = "an input length is 9, but it must be from 0 to 6";
    check(&message, "ctc_loss", line!() - 4, mistake, "step 2, row 17");
}

#[test]
fn metrics_name_their_targets_and_not_masked_ones() {
    let model = Model::new(|m, batch, cx| {
        cx.log_metric("acc", Accuracy::new(CLASSES).update(m.logits(batch), batch.get("y")));
        m.logits(batch).square().mean_all()
    });
    let message = fit(&model, 5, |b| b);
    check(&message, "Accuracy", line!() - 4, "a target is 5, but there are 5 classes", PLACE);

    let binary = Model::new(|m, batch, cx| {
        let target = batch.get("y").gt(1.0).to_dtype(DType::I32)
            + batch.get("y").gt(4.0).to_dtype(DType::I32);
        let scores = m.logits(batch).index(2, 0).sigmoid();
        cx.log_metric("auroc", Auroc::binary().update(&scores, &target));
        m.logits(batch).square().mean_all()
    });
    let message = fit(&binary, 5, |b| b);
    check(&message, "Auroc", line!() - 4, "a target is 2, but it must be 0 or 1", PLACE);

    let masked = Model::new(|m, batch, cx| {
        let y = batch.get("y");
        let mask = y.lt(CLASSES as f64);
        cx.log_metric("acc", Accuracy::new(CLASSES).update(m.logits(batch), &y).masked(&mask));
        cx.log_metric(
            "matrix",
            ConfusionMatrix::new(CLASSES).update(m.logits(batch), &y).masked(&mask),
        );
        cx.log_metric("ppl", Perplexity::new().update(m.logits(batch), &y).masked(&mask));
        m.logits(batch).square().mean_all()
    });
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = builder(folder.path()).build().unwrap();
    trainer.fit(&masked, &loader(3, Some((1, 7))), None).unwrap();
}

#[test]
fn indices_within_bodies_are_found() {
    let by_checkpoint: Loss = |m, batch, _| {
        let body = |(x, y): (Tensor, Tensor)| cross_entropy(&x, &y, Reduction::Mean);
        checkpoint(body, (m.logits(batch), batch.get("y")))
    };
    let by_call: Loss = |m, batch, _| {
        let body = |(x, y): (Tensor, Tensor)| cross_entropy(&x, &y, Reduction::Mean);
        call("loss", (m.logits(batch), batch.get("y")), body)
    };
    let by_cond: Loss = |m, batch, _| {
        let body = |(x, y): (Tensor, Tensor)| cross_entropy(&x, &y, Reduction::Mean);
        let logits = m.logits(batch);
        let y = batch.get("y");
        let none = |_: (Tensor, Tensor)| logits.mean_all();
        cond(y.max([0, 1]).gt(-100.0), (&logits, &y), body, none)
    };
    // One position of all rows in each step, as a loss over parts of the time.
    let by_scan: Loss = |m, batch, _| {
        let logits = m.logits(batch).transpose(0, 1);
        let y = batch.get("y").t();
        let body = |sum: Tensor, x: (Tensor, Tensor)| {
            let loss =
                checkpoint(|(x, y): (Tensor, Tensor)| cross_entropy(&x, &y, Reduction::Mean), x);
            (sum + loss, ())
        };
        scan(Tensor::scalar(0.0f32), (logits, y), body).0
    };
    let mistake = "a target is 5, but there are 5 classes";
    let line = line!();
    check(&fit(&Model::new(by_checkpoint), 5, |b| b), "cross_entropy", line - 26, mistake, PLACE);
    check(&fit(&Model::new(by_call), 5, |b| b), "cross_entropy", line - 22, mistake, PLACE);
    check(&fit(&Model::new(by_cond), 5, |b| b), "cross_entropy", line - 18, mistake, PLACE);
    let row = "step 2, row 17";
    check(&fit(&Model::new(by_scan), 5, |b| b), "cross_entropy", line - 6, mistake, row);
}

#[test]
fn every_way_to_train_finds_it() {
    let step: Loss = |m, batch, _| cross_entropy(m.logits(batch), batch.get("y"), Reduction::Mean);
    let line = line!() - 1;
    let model = Model::new(step);
    let mistake = "a target is 5, but there are 5 classes";
    for strategy in [Strategy::Ddp, Strategy::Fsdp] {
        let message = fit(&model, 5, |b| b.devices(8usize).strategy(strategy));
        check(&message, "cross_entropy", line, mistake, PLACE);
    }
    check(&fit(&model, 5, |b| b.log_every_n_steps(1)), "cross_entropy", line, mistake, PLACE);
    let exception = |b: TrainerBuilder| {
        b.callback(ModelCheckpoint::new().save_on_exception(true).every_n_train_steps(2))
    };
    check(&fit(&model, 5, exception), "cross_entropy", line, mistake, PLACE);
    let by_name = Model { every: Some(1), ..Model::new(step) };
    check(&fit(&by_name, 5, |b| b), "cross_entropy", line, mistake, PLACE);

    // The optimizer takes the first and the third step, and its loss is in a branch.
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = builder(folder.path()).build().unwrap();
    let skipping = Model { every: Some(2), ..Model::new(step) };
    trainer.fit(&skipping, &loader(3, Some((1, 5))), None).unwrap();
    let error = trainer.fit(&skipping, &loader(3, Some((2, 5))), None).unwrap_err().to_string();
    check(&error, "cross_entropy", line, mistake, "step 3, row 17, position 4");
}

#[test]
fn a_validation_names_its_batch() {
    let step: Loss = |m, batch, _| cross_entropy(m.logits(batch), batch.get("y"), Reduction::Mean);
    let validate: Loss =
        |m, batch, _| cross_entropy(m.logits(batch), batch.get("y"), Reduction::None).mean(1);
    let line = line!() - 1;
    let model = Model { validate: Some(validate), ..Model::new(step) };
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = builder(folder.path()).build().unwrap();
    let wrong = loader(3, Some((2, 5)));
    let mistake = "a target is 5, but there are 5 classes";
    let place = "validation batch 3, row 17, position 4";
    let error = trainer.fit(&model, &loader(2, None), &wrong).unwrap_err();
    check(&error.to_string(), "cross_entropy", line, mistake, place);
    let error = trainer.validate(&model, &wrong).unwrap_err();
    assert!(error.is_data(), "{error}");
    check(&error.to_string(), "cross_entropy", line, mistake, place);
    let sets = [EvaluationSet::new("good", &loader(2, None)), EvaluationSet::new("wrong", &wrong)];
    let error = trainer.validate(&model, sets).unwrap_err().to_string();
    let place = "validation/wrong batch 3, row 17, position 4";
    check(&error, "cross_entropy", line, mistake, place);
}

#[test]
fn a_users_own_loop_finds_it_when_it_reads_and_when_it_saves() {
    let model =
        Model::new(|m, batch, _| cross_entropy(m.logits(batch), batch.get("y"), Reduction::Mean));
    let line = line!() - 1;
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = builder(folder.path()).build().unwrap();
    let mut step = trainer.train_step(&model, &loader(3, Some((1, 5)))).unwrap();
    for batch in step.batches() {
        step.run(&batch.unwrap()).unwrap();
    }
    let mistake = "a target is 5, but there are 5 classes";
    let path = folder.path().join("state");
    let error = step.save(&path).unwrap_err();
    check(&error.to_string(), "cross_entropy", line, mistake, PLACE);
    assert!(!path.join("manifest.json").exists());
    let error = step.logs().unwrap().wait().unwrap_err();
    check(&error.to_string(), "cross_entropy", line, mistake, PLACE);
}

#[test]
fn the_sanity_check_reads_what_its_batches_logged() {
    // Another fit would take the log of the process's latest run.
    if !has_a_process_of_its_own("index_faults::the_sanity_check_reads_what_its_batches_logged") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let valid: Loss = |m, batch, _| cross_entropy(m.logits(batch), batch.get("y"), Reduction::Mean);
    let fit = |validate: Loss, bad: Option<(usize, i32)>| {
        let module = Model { validate: Some(validate), ..Model::new(valid) };
        let builder = builder(folder.path()).num_sanity_val_steps(1);
        let mut trainer = builder.build().unwrap();
        let result = trainer.fit(&module, &loader(1, None), Some(&loader(2, bad)));
        (result.map(|summary| summary.global_step), trainer.run_dir().unwrap().join("run.log"))
    };
    // A label out of range is an error before the first step, if it is in these batches.
    let (result, log) = fit(valid, Some((0, CLASSES as i32)));
    let error = result.unwrap_err().to_string();
    assert!(error.contains("row 17, position 4"), "{error}");
    assert!(!std::fs::read_to_string(log).unwrap().contains("sanity check"));
    // A value that is not finite is a warning: some metrics need more samples.
    let (result, log) = fit(|m, batch, _| m.logits(batch).mean_all() / 0.0 * 0.0, None);
    assert_eq!(result.unwrap(), 1);
    let log = std::fs::read_to_string(log).unwrap();
    assert!(log.contains("warning: val_loss is NaN in the sanity check"), "{log}");
}
