//! Each limit ends a run at the right place, with a schedule of the right length. A longer run
//! continues from there as if the first run had not ended.

use std::path::Path;
use std::sync::{Arc, Mutex};

use fulmen_data::{
    DType, DataLoader, Field, Fingerprint, IterableDataset, Record as StreamRecord, Records,
    Result as DataResult, TensorDataset,
};
use fulmen_nn::optim::{Optimizer, Sgd};
use fulmen_nn::schedule::Linear as LinearRate;
use fulmen_nn::{Linear, Module};
use fulmen_tensor::Tensor;
use fulmen_trainer::callbacks::{Mode, ModelCheckpoint};
use fulmen_trainer::{
    Batch, BatchLimit, Callback, FitStart, FitSummary, Plan, Predictions, StepContext,
    TrainDuration, Trainer, TrainerBuilder, TrainingModule, Weights,
};

use crate::common::{DROP_LAST, Net, Record, isolated, train_loader, trainer, val_loader};

/// An endless stream of numbers.
struct Endless;

impl IterableDataset for Endless {
    fn len(&self) -> Option<usize> {
        None
    }
    fn fields(&self) -> Vec<Field> {
        vec![Field::new("x", DType::F32, [1])]
    }
    fn records(&self, _: u64) -> DataResult<Records> {
        let record = |i: u64| {
            let value = (i as f32 * 0.618).fract();
            StreamRecord::new(i, format!("number {i}"), move |sample| sample.write_value(0, value))
        };
        Ok(Box::new((0..).map(move |i| Ok(record(i)))))
    }
    fn fingerprint(&self, _: &mut Fingerprint) -> DataResult<()> {
        Ok(())
    }
}

fn endless() -> DataLoader {
    DataLoader::from_stream(Endless).endless().batch_size(4).num_workers(1).build().unwrap()
}

/// A line whose learning rate falls to zero at the plan's end.
#[derive(Module)]
struct Line(Linear);

impl TrainingModule for Line {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        let x = batch.get("x");
        batch.mean(&(self.0.forward(&x) - &x * 2.0).square().sum(-1))
    }
    fn validation_step(&self, batch: &Batch, cx: &mut StepContext) {
        cx.log("val_out", &self.0.forward(&batch.get("x")).sum(-1));
    }
    fn predict_step(&self, batch: &Batch) -> Predictions {
        self.0.forward(&batch.get("x")).into()
    }
    fn configure_optimizers(&self, plan: &Plan) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(LinearRate::new(0.1, plan.total_steps).start_factor(1.0).end_factor(0.0)))
    }
}

/// Records the plan.
#[derive(Clone, Default)]
struct Planned(Arc<Mutex<Option<Plan>>>);

impl Callback for Planned {
    fn name(&self) -> &'static str {
        "Planned"
    }
    fn on_fit_start(&mut self, start: &FitStart) {
        *self.0.lock().unwrap() = Some(start.plan);
    }
}

/// Fits the line on the endless stream, and returns the plan, the summary and the Trainer.
fn fit_line(builder: TrainerBuilder) -> (Plan, FitSummary, Trainer) {
    let planned = Planned::default();
    let mut trainer = builder.callback(planned.clone()).build().unwrap();
    let summary = trainer.fit(&Line(Linear::new(1, 1)), &endless(), None).unwrap();
    let plan = planned.0.lock().unwrap().unwrap();
    (plan, summary, trainer)
}

#[test]
fn an_endless_stream_is_trained_for_the_given_steps() {
    let folder = tempfile::tempdir().unwrap();
    let record = Record::default();
    let builder =
        trainer(folder.path()).runtime(isolated()).log_every_n_steps(100).callback(record.clone());
    let (plan, summary, _) = fit_line(builder.max_steps(1000));
    assert_eq!((plan.total_steps, plan.max_epochs, plan.steps_per_epoch), (1000, 1, 1000));
    assert_eq!((summary.global_step, summary.epochs, summary.stopped.clone()), (1000, 0, None));
    assert_eq!(summary.train_compilations, 1);
    let rates: Vec<f64> =
        record.logs.lock().unwrap().iter().map(|point| point.get("lr").unwrap()).collect();
    // The last step has the rate before the end of the schedule.
    assert!(rates.len() == 10 && (rates[9] - 0.0001).abs() < 1e-6, "{rates:?}");
    let last = summary.last_epoch.unwrap();
    assert_eq!((last.epoch, last.global_step), (0, 1000));
    assert_eq!(last.get("train_loss_epoch"), summary.train_loss);
    assert!(summary.train_loss.is_some() && summary.last_checkpoint.unwrap().exists());
}

#[test]
fn a_run_ends_after_its_time_but_not_before_its_minimum_steps() {
    let folder = tempfile::tempdir().unwrap();
    let (plan, summary, _) = fit_line(trainer(folder.path()).max_time("0.3s"));
    assert_eq!((plan.total_steps, plan.max_epochs), (u64::MAX, u64::MAX));
    assert_eq!(summary.stopped.as_deref(), Some("max_time has elapsed (0.3s)"));
    let checkpoint = summary.last_checkpoint.unwrap();

    // The run's time was already used up.
    let (_, again, _) = fit_line(trainer(folder.path()).max_time("0.3s").ckpt_path(&checkpoint));
    assert_eq!(again.global_step, summary.global_step + 1);

    let (plan, least, _) =
        fit_line(trainer(folder.path()).max_time("0.001s").max_steps(900).min_steps(50));
    assert_eq!(plan.total_steps, 900);
    assert!((50..900).contains(&least.global_step), "{}", least.global_step);
}

#[test]
fn a_duration_is_any_of_the_limits() {
    let folder = tempfile::tempdir().unwrap();
    let plan = |builder: TrainerBuilder| {
        let planned = Planned::default();
        let mut trainer =
            builder.callback(planned.clone()).enable_checkpointing(false).build().unwrap();
        // 12 batches of 8.
        let summary = trainer.fit(&Net::new(), &train_loader(100, DROP_LAST), None).unwrap();
        let plan = planned.0.lock().unwrap().unwrap();
        assert_eq!((summary.global_step, summary.stopped), (plan.total_steps, None));
        (plan.steps_per_epoch, plan.max_epochs, plan.total_steps)
    };
    let plan_of = |duration| plan(trainer(folder.path()).max_duration(duration));
    assert_eq!(plan_of("2ep"), (12, 2, 24));
    assert_eq!(plan_of("20ba"), (12, 2, 20));
    assert_eq!(plan_of("192samples"), (12, 2, 24));
    assert_eq!(plan_of("193samples"), (12, 3, 25));
    assert_eq!(plan(trainer(folder.path()).max_steps(3).accumulate_grad_batches(3)), (3, 1, 3));
    assert_eq!(plan(trainer(folder.path()).max_steps(6).accumulate_grad_batches(3)), (4, 2, 6));
    assert_eq!(plan(trainer(folder.path()).max_steps(60).max_epochs(2)), (12, 2, 24));
}

/// The training losses of a run, and its summary.
fn run(builder: TrainerBuilder) -> (Vec<(u64, u64)>, FitSummary) {
    let record = Record::default();
    let mut trainer = builder.log_every_n_steps(1).callback(record.clone()).build().unwrap();
    let summary =
        trainer.fit(&Net::new(), &train_loader(100, DROP_LAST), Some(&val_loader(20))).unwrap();
    (record.bits("train_loss"), summary)
}

fn tensors(path: &Path) -> Vec<(String, Vec<u8>)> {
    let tensors = crate::common::tensors(path);
    tensors.into_iter().map(|(name, literal)| (name, literal.bytes().to_vec())).collect()
}

#[test]
fn a_run_that_ended_within_an_epoch_resumes_as_if_it_had_not() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, whole_summary) = run(trainer(folder.path()).max_epochs(3));
    let (first, ended) = run(trainer(folder.path()).max_steps(20));
    assert_eq!((ended.global_step, ended.epochs), (20, 1));
    let checkpoint = ended.last_checkpoint.unwrap();
    let (rest, rest_summary) = run(trainer(folder.path()).max_epochs(3).ckpt_path(&checkpoint));
    assert_eq!([first, rest].concat(), whole);
    assert_eq!(rest_summary.last_epoch, whole_summary.last_epoch);
    assert_eq!(
        tensors(&rest_summary.last_checkpoint.unwrap()),
        tensors(&whole_summary.last_checkpoint.unwrap())
    );

    let mut trainer = trainer(folder.path()).max_steps(19).ckpt_path(&checkpoint).build().unwrap();
    let error =
        trainer.fit(&Net::new(), &train_loader(100, DROP_LAST), None).unwrap_err().to_string();
    assert!(error.contains("after step 20") && error.contains("Raise max_steps"), "{error}");
}

#[test]
fn limits_that_contradict_each_other_are_named() {
    let refused = |builder: TrainerBuilder| builder.options().unwrap_err().to_string();
    let new = Trainer::builder;
    for (message, expected) in [
        (
            refused(new().max_duration("5ep").max_epochs(3)),
            "max_duration: it is 5ep, and max_epochs is 3; set only one",
        ),
        (
            refused(new().max_duration("5ba").max_steps(3)),
            "max_duration: it is 5ba, and max_steps is 3; set only one",
        ),
        (
            refused(new().max_duration("5s").max_time("3s")),
            "max_duration: it is 5s, and max_time is 3s; set only one",
        ),
        (
            refused(new().min_epochs(11)),
            "min_epochs: it is 11, more than max_epochs, which is 10; raise max_epochs",
        ),
        (refused(new().min_steps(5).max_steps(4)), "min_steps: it is 5, more than max_steps"),
        (refused(new().max_time("5ep")), "max_time: 5ep is not possible, it must be a time"),
        (
            refused(new().max_duration("0ep")),
            "max_duration: 0ep is not possible, it must be more than 0",
        ),
        (refused(new().max_duration("5")), "write 5ba for steps"),
    ] {
        assert!(message.contains(expected), "{message}");
    }
    let options = new().max_duration(std::time::Duration::from_secs(60)).options().unwrap();
    assert_eq!(options.max_time, TrainDuration::Time(std::time::Duration::from_secs(60)));
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = trainer(folder.path()).max_epochs(3).build().unwrap();
    let error = trainer.fit(&Line(Linear::new(1, 1)), &endless(), None).unwrap_err().to_string();
    assert!(
        error.contains("the training loader is endless") && error.contains("max_steps"),
        "{error}"
    );
}

#[test]
fn a_share_of_the_batches_is_trained_on_validated_and_tested() {
    let folder = tempfile::tempdir().unwrap();
    let train = train_loader(165, DROP_LAST);
    let val = val_loader(100);
    let planned = Planned::default();
    let builder = trainer(folder.path())
        .runtime(isolated())
        .max_epochs(2)
        .limit_train_batches(0.1)
        .limit_val_batches(3);
    let builder = builder.limit_test_batches("0.25").callback(planned.clone()).log_every_n_steps(1);
    let record = Record::default();
    let mut trainer = builder.callback(record.clone()).build().unwrap();
    let module = Net::new();
    let summary = trainer.fit(&module, &train, Some(&val)).unwrap();
    // 20 batches of 8 in training, 13 in validation.
    assert_eq!(
        *planned.0.lock().unwrap(),
        Some(Plan { steps_per_epoch: 2, max_epochs: 2, total_steps: 4 })
    );
    assert_eq!((summary.global_step, summary.epochs), (4, 2));
    assert_eq!((summary.train_compilations, summary.eval_compilations), (1, 1));
    let samples =
        |point: &fulmen_trainer::LogPoint| point.arrays[0].1.elements().iter().sum::<f64>();
    assert!(record.epochs.lock().unwrap().iter().all(|point| samples(point) == 16.0));
    // The mean over 24 samples is a multiple of 1/24.
    let acc = summary.last_epoch.unwrap().get("val_acc").unwrap() * 24.0;
    assert!((acc - acc.round()).abs() < 1e-4, "{acc}");
    let tested = trainer
        .test(&module, &val, fulmen_trainer::Weights::Current)
        .unwrap()
        .get("test_acc")
        .unwrap()
        * 24.0;
    assert!((tested - tested.round()).abs() < 1e-4, "{tested}");
}

#[test]
fn a_prediction_on_an_endless_stream_has_the_given_number_of_batches() {
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = trainer(folder.path()).limit_predict_batches(2).build().unwrap();
    let batches = trainer
        .predict(&Line(Linear::new(1, 1)), &endless(), fulmen_trainer::Weights::Current)
        .unwrap();
    assert_eq!(batches.map(|batch| batch.unwrap().num_samples()).collect::<Vec<_>>(), [4, 4]);
}

#[test]
fn a_fast_run_has_one_batch_of_each_and_leaves_no_checkpoint_and_no_log() {
    let folder = tempfile::tempdir().unwrap();
    let train = train_loader(80, DROP_LAST);
    let val = val_loader(20);
    let planned = Planned::default();
    let builder = trainer(folder.path()).max_epochs(7).max_time("1h").fast_dev_run(true);
    let mut trainer = builder.callback(planned.clone()).build().unwrap();
    let summary = trainer.fit(&Net::new(), &train, Some(&val)).unwrap();
    assert_eq!((summary.global_step, summary.epochs, summary.last_checkpoint), (1, 1, None));
    assert!(summary.last_epoch.unwrap().get("val_loss").is_some());
    assert_eq!(planned.0.lock().unwrap().unwrap().total_steps, 1);
    trainer.test(&Net::new(), &val, Weights::Current).unwrap();
    assert!(
        trainer.run_dir().is_none() && std::fs::read_dir(folder.path()).unwrap().next().is_none()
    );
    let options = Trainer::builder().fast_dev_run(3).options().unwrap();
    assert_eq!((options.limit_test_batches, options.max_epochs), (BatchLimit::Count(3), 1));
}

#[test]
fn a_fit_validates_after_fractions_of_an_epoch_or_numbers_of_steps() {
    let folder = tempfile::tempdir().unwrap();
    let steps = |record: &Record| -> Vec<u64> {
        record.validations.lock().unwrap().iter().map(|point| point.global_step).collect()
    };
    let validated = |set: &dyn Fn(TrainerBuilder) -> TrainerBuilder| {
        let record = Record::default();
        let builder =
            set(trainer(folder.path()).runtime(isolated()).max_epochs(2)).callback(record.clone());
        let mut trainer = builder.build().unwrap();
        let fit =
            trainer.fit(&Net::new(), &train_loader(100, DROP_LAST), Some(&val_loader(20))).unwrap();
        let steps = steps(&record);
        assert_eq!(
            (fit.train_compilations, fit.eval_compilations),
            (1, u64::from(!steps.is_empty()))
        );
        steps
    };
    assert_eq!(validated(&|b| b.val_check_interval(0.25)), [3, 6, 9, 12, 15, 18, 21, 24]);
    assert_eq!(validated(&|b| b.val_check_interval("0.4")), [5, 10, 17, 22]);
    assert_eq!(validated(&|b| b.val_check_interval(0.5).check_val_every_n_epoch(2)), [18, 24]);
    assert_eq!(validated(&|b| b.val_check_interval(5)), [5, 10, 15, 20]);
    assert_eq!(validated(&|b| b.val_check_interval(2).accumulate_grad_batches(4)), [2, 4, 6]);
    assert_eq!(validated(&|b| b), [12, 24]);
    assert_eq!(validated(&|b| b.limit_val_batches(0)), [0; 0]);
}

#[test]
fn a_run_resumes_from_the_checkpoint_of_a_validation_within_an_epoch() {
    let folder = tempfile::tempdir().unwrap();
    let builder = || trainer(folder.path()).val_check_interval(5).log_every_n_steps(4);
    let fit = |builder: TrainerBuilder| {
        let record = Record::default();
        let mut trainer = builder.callback(record.clone()).build().unwrap();
        let loader = train_loader(100, DROP_LAST);
        let summary = trainer.fit(&Net::new(), &loader, Some(&val_loader(20))).unwrap();
        (record, summary)
    };
    let (whole, whole_summary) = fit(builder().max_epochs(2));
    // The last validation and the last checkpoint are those of step 15.
    let checkpoint = ModelCheckpoint::new().monitor("val_loss", Mode::Min);
    let (_, ended) = fit(builder().max_steps(15).callback(checkpoint));
    assert!(ended.best_checkpoint.unwrap().exists());
    let (rest, rest_summary) =
        fit(builder().max_epochs(2).ckpt_path(ended.last_checkpoint.unwrap()));
    let all = whole.bits("train_loss");
    assert_eq!(rest.bits("train_loss"), all[3..], "{all:?}");
    assert_eq!(rest.validations.lock().unwrap()[..], whole.validations.lock().unwrap()[3..]);
    assert_eq!(rest_summary.last_epoch, whole_summary.last_epoch);
    assert_eq!(
        tensors(&rest_summary.last_checkpoint.unwrap()),
        tensors(&whole_summary.last_checkpoint.unwrap())
    );
}

#[test]
fn the_same_batches_come_in_every_epoch_of_an_overfit() {
    let folder = tempfile::tempdir().unwrap();
    let record = Record::default();
    let builder = trainer(folder.path()).max_epochs(3).overfit_batches(1).num_sanity_val_steps(2);
    let mut trainer = builder.callback(record.clone()).build().unwrap();
    let summary =
        trainer.fit(&Net::new(), &train_loader(100, DROP_LAST), Some(&val_loader(20))).unwrap();
    assert_eq!((summary.global_step, summary.epochs), (3, 3));
    let epochs = record.epochs.lock().unwrap();
    let arrays: Vec<_> = epochs.iter().map(|point| point.arrays[0].clone()).collect();
    assert!(arrays.len() == 3 && arrays.iter().all(|epoch| *epoch == arrays[0]), "{arrays:?}");
}

#[test]
fn invalid_numbers_of_batches_are_named() {
    let refused = |builder: TrainerBuilder| builder.options().unwrap_err().to_string();
    let new = Trainer::builder;
    for (message, expected) in [
        (
            refused(new().limit_train_batches(1.5)),
            "limit_train_batches: 1.5 is not possible, a fraction must be",
        ),
        (
            refused(new().limit_train_batches(0)),
            "limit_train_batches: 0 is not possible, it must be more than 0",
        ),
        (
            refused(new().limit_test_batches("x")),
            "limit_test_batches: `x` is neither a number of batches",
        ),
        (refused(new().limit_val_batches(-1)), "limit_val_batches: -1 is less than 0 batches"),
        (
            refused(new().overfit_batches(2).limit_train_batches(3)),
            "overfit_batches: it is 2, and limit_train_batches is 3",
        ),
        (
            refused(new().val_check_interval(9).check_val_every_n_epoch(2)),
            "val_check_interval: 9 counts the steps",
        ),
        (refused(new().val_check_interval(0)), "val_check_interval: 0 is not possible"),
    ] {
        assert!(message.contains(expected), "{message}");
    }
    let folder = tempfile::tempdir().unwrap();
    let fails = |builder: TrainerBuilder| {
        let mut trainer = builder.build().unwrap();
        trainer
            .fit(&Net::new(), &train_loader(100, DROP_LAST), Some(&val_loader(20)))
            .unwrap_err()
            .to_string()
    };
    let few = fails(trainer(folder.path()).limit_train_batches(0.01));
    assert!(
        few.contains("limit_train_batches: 0.01 of 12 batches is less than one batch"),
        "{few}"
    );
    let rare = fails(trainer(folder.path()).max_epochs(1).val_check_interval(13));
    assert!(
        rare.contains("val_check_interval: 13 steps are more than the 12 of this run"),
        "{rare}"
    );
    let line = Line(Linear::new(1, 1));
    let on_endless = |builder: TrainerBuilder| {
        builder.build().unwrap().fit(&line, &endless(), Some(&endless())).unwrap_err().to_string()
    };
    let endless_validation = on_endless(trainer(folder.path()).max_steps(9));
    assert!(
        endless_validation.contains("limit_val_batches: the validation loader is endless"),
        "{endless_validation}"
    );
    let share = on_endless(trainer(folder.path()).max_steps(9).limit_val_batches(2));
    assert!(
        share
            .contains("val_check_interval: 1.0 is a fraction of an epoch, but the training loader"),
        "{share}"
    );
}

#[test]
fn a_barebones_run_only_trains() {
    let folder = tempfile::tempdir().unwrap();
    let record = Record::default();
    let builder = trainer(folder.path())
        .max_epochs(2)
        .log_every_n_steps(1)
        .barebones(true)
        .callback(record.clone());
    let mut trainer = builder.build().unwrap();
    let summary = trainer.fit(&Net::new(), &train_loader(80, DROP_LAST), None).unwrap();
    assert_eq!((summary.global_step, summary.last_checkpoint), (20, None));
    assert!(record.logs.lock().unwrap().is_empty() && summary.train_loss.is_some());
    assert_eq!(trainer.device_to_host_transfers(), 2, "one an epoch");
    assert!(
        trainer.run_dir().is_none() && std::fs::read_dir(folder.path()).unwrap().next().is_none()
    );
    let error =
        Trainer::builder().barebones(true).detect_nan(true).options().unwrap_err().to_string();
    assert_eq!(error, "barebones: it turns off detect_nan, which is set; set only one of the two");
}

#[test]
fn a_duration_in_tokens_becomes_a_number_of_samples() {
    let folder = tempfile::tempdir().unwrap();
    let data = TensorDataset::builder().array("input_ids", [20, 4], vec![1i32; 80]).array(
        "x",
        [20, 1],
        vec![0.5f32; 20],
    );
    let loader =
        DataLoader::builder(data.build().unwrap()).batch_size(8).drop_last(true).build().unwrap();
    let fit = |duration, loader: &DataLoader| {
        let mut trainer = trainer(folder.path())
            .max_duration(duration)
            .enable_checkpointing(false)
            .build()
            .unwrap();
        trainer.fit(&Line(Linear::new(1, 1)), loader, None).map(|summary| summary.global_step)
    };
    // Two batches of 8 samples are an epoch; each batch has 32 tokens.
    assert_eq!(fit("64tok", &loader).unwrap(), 2);
    assert_eq!(fit("65tok", &loader).unwrap(), 3);
    let error = fit("1e3tok", &train_loader(100, DROP_LAST)).unwrap_err().to_string();
    assert_eq!(
        error,
        "max_duration: it is 1000tok, but the training loader has no integer field `input_ids`; use samples (1e6sa)"
    );
}
