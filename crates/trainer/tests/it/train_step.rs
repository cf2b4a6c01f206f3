//! A user's own loop computes the same as `fit`, bit for bit. It saves, loads, validates and calls
//! functions of the weights.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;

use crate::common::{
    CLASSES, DROP_LAST, FEATURES, Net, Record, isolated, samples, train_loader, trainer, val_loader,
};
use fulmen_data::{DataLoader, TensorDataset};
use fulmen_nn::loss::{Reduction, cross_entropy};
use fulmen_nn::optim::{Adam, Sgd};
use fulmen_nn::{Linear, Module};
use fulmen_tensor::{DType, Literal, Tensor, random};
use fulmen_trainer::{
    LogPoint, Precision, Progress, Strategy, TrainDuration, TrainStep, TrainerBuilder, TrainingFn,
    WeightAveraging,
};

/// The values of a module, as bits.
fn bits(module: &impl Module) -> BTreeMap<String, Vec<u8>> {
    module
        .state()
        .into_iter()
        .map(|(name, v)| (name, v.get().eval().unwrap().bytes().to_vec()))
        .collect()
}

/// Names and bits of logged values.
fn logged(point: &LogPoint) -> Vec<(String, u64)> {
    point.columns().into_iter().map(|(name, value)| (name, value.to_bits())).collect()
}

fn builder(folder: &Path) -> TrainerBuilder {
    trainer(folder).max_epochs(3).log_every_n_steps(1)
}

/// Runs all steps, and returns the values that each optimizer step logs.
fn run(step: &mut TrainStep<'_>) -> Vec<Vec<(String, u64)>> {
    let mut points = Vec::new();
    let mut pending = Vec::new();
    let mut updates = step.progress().global_step;
    for batch in step.batches() {
        let progress = step.run(&batch.unwrap()).unwrap();
        if progress.global_step > updates {
            updates = progress.global_step;
            pending.push(step.logs().unwrap());
        }
        // Two reads are in flight while the next step runs.
        if pending.len() > 2 {
            points.push(logged(&pending.remove(0).wait().unwrap()));
        }
    }
    points.extend(pending.into_iter().map(|values| logged(&values.wait().unwrap())));
    points
}

/// Runs this number of steps without reading.
fn advance(step: &mut TrainStep<'_>, steps: usize) {
    for batch in step.batches().take(steps) {
        step.run(&batch.unwrap()).unwrap();
    }
}

#[test]
fn a_users_own_loop_equals_fit_bit_for_bit() {
    type Set = fn(TrainerBuilder) -> TrainerBuilder;
    let settings: [(&str, Set); 4] = [
        ("clipped, bf16-mixed", |b| {
            b.gradient_clip_val(0.5).precision(Precision::Bf16Mixed).log_grad_norm(true)
        }),
        ("accumulated, averaged", |b| {
            b.accumulate_grad_batches(2).weight_averaging(WeightAveraging::ema(0.9))
        }),
        ("8 devices", |b| b.devices(8).gradient_clip_val(0.5)),
        ("8 devices, fsdp", |b| {
            b.devices(8).strategy(Strategy::Fsdp).precision(Precision::Bf16Mixed)
        }),
    ];
    for (name, set) in settings {
        let folder = tempfile::tempdir().unwrap();
        let train = train_loader(40, DROP_LAST);
        let val = val_loader(20);
        let record = Record::default();
        let fitted = Net::new();
        let mut of_fit = set(builder(folder.path())).callback(record.clone()).build().unwrap();
        let summary = of_fit.fit(&fitted, &train, Some(&val)).unwrap();

        let net = Net::new();
        let mut trainer = set(builder(folder.path())).build().unwrap();
        let mut step = trainer.train_step(&net, &train).unwrap();
        assert_eq!(step.plan().total_steps, summary.global_step, "{name}");
        let points = run(&mut step);
        let expected: Vec<_> = record.logs.lock().unwrap().iter().map(logged).collect();
        assert_eq!(points, expected, "{name}");
        assert_eq!(points.len() as u64, summary.global_step, "{name}");
        let validation = step.eval_step(&val).unwrap().run(&step).unwrap();
        let last = summary.last_epoch.unwrap();
        for metric in ["val_loss", "val_acc"] {
            assert_eq!(
                validation.get(metric).unwrap().to_bits(),
                last.get(metric).unwrap().to_bits(),
                "{name}"
            );
        }
        // The programs of the fit were the same.
        assert_eq!(step.compilations(), 0, "{name}");
        drop(step);
        assert_eq!(bits(&net), bits(&fitted), "{name}");
    }
}

#[test]
fn it_compiles_once_and_reads_only_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = isolated();
    let compiled = || runtime.metrics().value("UncachedCompile");
    let mut trainer = builder(folder.path()).runtime(runtime.clone()).build().unwrap();
    let net = Net::new();
    let mut step = trainer.train_step(&net, &train_loader(40, DROP_LAST)).unwrap();
    let validation = step.eval_step(&val_loader(20)).unwrap();
    assert_eq!((step.compilations(), validation.compilations()), (1, 1));
    let before = compiled();
    for batch in step.batches() {
        let progress = step.run(&batch.unwrap()).unwrap();
        if progress.batch == progress.batches {
            validation.run(&step).unwrap();
        }
    }
    assert_eq!(step.batches().count(), 0, "max_epochs is reached");
    // The first read gives the mean over all steps since the beginning. The second read gives no
    // values.
    let point = step.logs().unwrap().wait().unwrap();
    assert_eq!((point.epoch, point.global_step), (2, 15));
    assert_eq!(point.array("train_seen").unwrap().elements().iter().sum::<f64>(), 120.0);
    assert!(step.logs().unwrap().wait().unwrap().metrics.is_empty());
    drop(step);
    assert_eq!(compiled(), before);
    assert_eq!(trainer.device_to_host_transfers(), 4, "three validations, one read");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "there is no run folder");
}

#[test]
fn max_steps_ends_the_batches_within_an_epoch() {
    let folder = tempfile::tempdir().unwrap();
    let train = train_loader(40, DROP_LAST);
    for (steps, every, batches) in [(7, 1, 7), (7, 2, 12), (6, 2, 10), (1, 4, 4)] {
        let builder = trainer(folder.path()).max_steps(steps).accumulate_grad_batches(every);
        let mut trainer = builder.build().unwrap();
        let net = Net::new();
        let mut step = trainer.train_step(&net, &train).unwrap();
        let all =
            step.batches().map(|batch| step.run(&batch.unwrap()).unwrap()).collect::<Vec<_>>();
        assert_eq!(
            (all.len(), all.last().unwrap().global_step),
            (batches, steps),
            "{steps} steps of {every} batches"
        );
    }
}

/// The logged values of the remaining steps, and the final values.
type Rest = (Vec<Vec<(String, u64)>>, BTreeMap<String, Vec<u8>>);

fn rest(mut step: TrainStep<'_>, net: &Net) -> Rest {
    let points = run(&mut step);
    drop(step);
    (points, bits(net))
}

#[test]
fn a_saved_state_resumes_bit_for_bit_in_a_step_and_in_a_fit() {
    for devices in [1, 8] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("step");
        let set = || {
            builder(folder.path())
                .devices(devices)
                .accumulate_grad_batches(2)
                .gradient_clip_val(1.0)
                .seed(7)
        };
        let train = train_loader(40, DROP_LAST);
        let net = Net::new();
        let mut trainer = set().build().unwrap();
        let mut step = trainer.train_step(&net, &train).unwrap();
        // Within the second epoch and within a group of batches, with values logged since the last
        // read.
        for batch in step.batches().take(8) {
            let progress = step.run(&batch.unwrap()).unwrap();
            if progress.global_step == 3 {
                step.logs().unwrap().wait().unwrap();
            }
        }
        step.save(&path).unwrap();
        let expected = Progress { epoch: 1, batch: 3, batches: 5, global_step: 4 };
        assert_eq!(step.progress(), expected);
        let whole = rest(step, &net);

        // The same step, back at an earlier state.
        let net = Net::new();
        let mut trainer = set().build().unwrap();
        let mut step = trainer.train_step(&net, &train).unwrap();
        run(&mut step);
        step.load(&path).unwrap();
        assert_eq!(step.progress(), expected);
        assert_eq!(rest(step, &net), whole, "{devices} devices");

        // A new step of a Trainer with a different seed; the run's seed is in the file.
        let net = Net::new();
        let mut trainer = set().seed(1).ckpt_path(&path).build().unwrap();
        assert_eq!(
            rest(trainer.train_step(&net, &train).unwrap(), &net),
            whole,
            "{devices} devices"
        );

        // A fit.
        let net = Net::new();
        let record = Record::default();
        let mut trainer = set().ckpt_path(&path).callback(record.clone()).build().unwrap();
        let summary = trainer.fit(&net, &train, None).unwrap();
        let points: Vec<_> = record.logs.lock().unwrap().iter().map(logged).collect();
        assert_eq!((points, bits(&net)), whole, "{devices} devices");

        // The other direction: a step continues from a checkpoint of the fit. The fit's last one
        // has nothing left to do.
        let last = summary.last_checkpoint.unwrap();
        let longer = Net::new();
        let mut trainer = set().max_epochs(4).build().unwrap();
        let mut step = trainer.train_step(&longer, &train).unwrap();
        step.load(last).unwrap();
        assert_eq!((step.progress().epoch, step.batches().count()), (3, 5));
        drop(step);
        assert_eq!(bits(&longer), whole.1);

        // The checkpoint has PyTorch's names.
        let tensors = crate::common::tensors(&path);
        assert!(
            tensors.contains_key("fc1.weight")
                && tensors.contains_key("optimizer/momentum_buffer/fc1.weight")
        );
    }
}

#[test]
fn a_step_saved_at_the_end_of_an_epoch_resumes_with_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("epoch");
    let train = train_loader(40, DROP_LAST);
    let net = Net::new();
    let other = Net::new();
    let mut trainer = builder(folder.path()).build().unwrap();
    let mut step = trainer.train_step(&net, &train).unwrap();
    advance(&mut step, 5);
    step.logs().unwrap().wait().unwrap();
    step.save(&path).unwrap();
    let whole = rest(step, &net);
    assert_eq!(whole.0.len(), 10);
    let mut trainer = builder(folder.path()).ckpt_path(&path).build().unwrap();
    assert_eq!(rest(trainer.train_step(&other, &train).unwrap(), &other), whole);
    let fitted = Net::new();
    let record = Record::default();
    let mut trainer =
        builder(folder.path()).ckpt_path(&path).callback(record.clone()).build().unwrap();
    assert_eq!(trainer.fit(&fitted, &train, None).unwrap().epochs, 3);
    assert_eq!(bits(&fitted), whole.1);
}

#[test]
fn a_function_sees_the_current_weights_and_compiles_once_per_shape() {
    for (devices, strategy) in [(1, Strategy::Ddp), (8, Strategy::Fsdp)] {
        let folder = tempfile::tempdir().unwrap();
        let mut trainer =
            builder(folder.path()).devices(devices).strategy(strategy).build().unwrap();
        let net = Net::new();
        let mut step = trainer.train_step(&net, &train_loader(40, DROP_LAST)).unwrap();
        let recorded = Cell::new(0);
        let mut scores = step.function("scores", |x: Tensor| {
            recorded.set(recorded.get() + 1);
            net.forward(&x)
        });
        let x = |rows: usize| {
            let values: Vec<f32> = (0..rows * FEATURES).map(|i| (i as f32).sin()).collect();
            Tensor::from_slice(&values, [rows, FEATURES])
        };
        let before = scores.call(&step, x(4)).unwrap().eval().unwrap();
        for batch in step.batches() {
            step.run(&batch.unwrap()).unwrap();
            scores.call(&step, x(4)).unwrap();
        }
        let after = scores.call(&step, x(4)).unwrap().eval().unwrap();
        assert_ne!(before.bytes(), after.bytes());
        assert_eq!((scores.programs(), recorded.get()), (1, 1));
        assert_eq!(scores.call(&step, x(2)).unwrap().ty().to_string(), "f32[2, 3]");
        assert_eq!((scores.programs(), recorded.get()), (2, 2));
        drop(step);
        // Compare with the module in evaluation mode, with the weights that it got back.
        net.eval();
        let expected = net.forward(&x(4)).eval().unwrap();
        for (value, expected) in after.to_f64().iter().zip(expected.to_f64()) {
            assert!((value - expected).abs() < 1e-5, "{value} {expected}");
        }
    }
}

/// Policy gradients on a bandit with three levers. Only the third pays. No loader reads the
/// batches.
#[test]
fn a_policy_learns_from_its_own_games() {
    let folder = tempfile::tempdir().unwrap();
    let levers = Linear::new(1, 3);
    let policy = TrainingFn::new(
        &levers,
        |levers, batch, _| {
            let losses = cross_entropy(
                &levers.forward(&batch.get("state")),
                &batch.get("action"),
                Reduction::None,
            );
            (losses * batch.get("reward")).mean_all()
        },
        |_| Adam::new(0.1),
    );
    // This loader only declares the shapes of the batches. An epoch is one batch.
    let like = TensorDataset::builder()
        .array("state", [16, 1], vec![0.0f32; 16])
        .array("action", [16], vec![0i32; 16])
        .array("reward", [16], vec![0.0f32; 16]);
    let like = DataLoader::builder(like.build().unwrap()).batch_size(16).build().unwrap();
    let mut trainer = trainer(folder.path()).max_steps(1000).build().unwrap();
    let mut step = trainer.train_step(&policy, &like).unwrap();
    let mut act = step.function("act", |(state, key): (Tensor, Tensor)| {
        random::categorical(&key, levers.forward(&state), -1).to_dtype(DType::I32)
    });
    let state = Literal::from_slice(&[1.0f32; 16], [16, 1]).unwrap();
    let mut paid = Vec::new();
    for round in 0..100u32 {
        let key = Tensor::from_slice(&[0, round], [2]);
        let action = act.call(&step, (state.to_tensor(), key)).unwrap().eval().unwrap();
        let won: Vec<f32> = action
            .to_vec::<i32>()
            .unwrap()
            .iter()
            .map(|&lever| (lever == 2) as u8 as f32)
            .collect();
        paid.push(won.iter().sum::<f32>());
        let reward = Literal::from_slice(&won, [16]).unwrap();
        let batch =
            step.batch(&[("state", &state), ("reward", &reward), ("action", &action)]).unwrap();
        step.run(&batch).unwrap();
    }
    let mean = |rounds: &[f32]| rounds.iter().sum::<f32>() / rounds.len() as f32;
    assert!(mean(&paid[..5]) < 9.0 && mean(&paid[90..]) > 14.0, "{paid:?}");
    assert_eq!((act.programs(), step.progress().global_step), (1, 100));
}

#[test]
fn a_users_own_batch_trains_like_one_of_the_loader() {
    let folder = tempfile::tempdir().unwrap();
    let train = DataLoader::builder(samples(16)).batch_size(8).build().unwrap();
    let net = Net::new();
    let by_hand = Net::new();
    for devices in [1, 4] {
        net.reinitialize(3);
        by_hand.reinitialize(3);
        let mut trainer = builder(folder.path()).devices(devices).build().unwrap();
        let mut step = trainer.train_step(&net, &train).unwrap();
        advance(&mut step, 2);
        drop(step);
        let mut step = trainer.train_step(&by_hand, &train).unwrap();
        for batch in train.epoch(0) {
            let batch = batch.unwrap();
            let x = Literal::from_slice(batch.values::<f32>(0).unwrap(), [8, FEATURES]).unwrap();
            let y = Literal::from_slice(batch.values::<i32>(1).unwrap(), [8]).unwrap();
            let batch = step.batch(&[("y", &y), ("x", &x)]).unwrap();
            step.run(&batch).unwrap();
        }
        drop(step);
        assert_eq!(bits(&net), bits(&by_hand), "{devices} devices");
    }
}

/// Batches of 3, 1 and 4 samples are updates with the mean over 3, 1 and 4 samples.
#[test]
fn a_batch_with_fewer_rows_is_padded_and_masked() {
    let folder = tempfile::tempdir().unwrap();
    let like = |padded| {
        let data = TensorDataset::builder()
            .array("x", [4, 1], vec![0.0f32; 4])
            .array("y", [4, 1], vec![0.0f32; 4])
            .build();
        DataLoader::builder(data.unwrap()).batch_size(4).padded(padded).build().unwrap()
    };
    assert!(like(true).pads() && !like(false).pads());
    let value = |values: &[f32]| Literal::from_slice(values, [values.len(), 1]).unwrap();
    let batches: [&[(f32, f32)]; 3] = [
        &[(1.0, 3.0), (-2.0, 0.5), (0.5, 1.0)],
        &[(2.0, -1.0)],
        &[(0.25, 2.0), (1.5, 0.0), (-1.0, 1.0), (3.0, 4.0)],
    ];
    for devices in [1, 4] {
        let line = Linear::new(1, 1);
        line.reinitialize(3);
        let scalar = |parameter: &fulmen_nn::Parameter| parameter.get().eval().unwrap().to_f64()[0];
        let bias = line.bias.clone().unwrap();
        let mut weight = scalar(&line.weight);
        let mut offset = scalar(&bias);
        let module = TrainingFn::new(
            &line,
            |line, batch, _| batch.mean((line.forward(&batch.get("x")) - batch.get("y")).pow(2.0)),
            |_| Sgd::new(0.1),
        );
        let mut trainer = builder(folder.path()).devices(devices).build().unwrap();
        let mut step = trainer.train_step(&module, &like(true)).unwrap();
        for batch in batches {
            let (x, y): (Vec<f32>, Vec<f32>) = batch.iter().copied().unzip();
            let made = step.batch(&[("x", &value(&x)), ("y", &value(&y))]).unwrap();
            assert_eq!(made.valid, batch.len());
            step.run(&made).unwrap();
            let error = |(x, y): &(f32, f32)| weight * f64::from(*x) + offset - f64::from(*y);
            let mean = |values: Vec<f64>| values.iter().sum::<f64>() / values.len() as f64;
            let slope = mean(batch.iter().map(|s| 2.0 * error(s) * f64::from(s.0)).collect());
            let shift = mean(batch.iter().map(|s| 2.0 * error(s)).collect());
            weight -= 0.1 * slope;
            offset -= 0.1 * shift;
        }
        let wrong = step.batch(&[("x", &value(&[1.0; 3])), ("y", &value(&[1.0; 2]))]).unwrap_err();
        let wrong = wrong.to_string();
        assert!(wrong.contains("the field `x` has 3 rows, but `y` has 2"), "{wrong}");
        drop(step);
        assert!((scalar(&line.weight) - weight).abs() < 1e-4, "{devices} devices");
        assert!((scalar(&bias) - offset).abs() < 1e-4, "{devices} devices");

        let step = trainer.train_step(&module, &like(false)).unwrap();
        let wrong = step.batch(&[("x", &value(&[1.0; 3])), ("y", &value(&[1.0; 3]))]).unwrap_err();
        let wrong = wrong.to_string();
        assert!(wrong.contains("the field `x` has 3 rows, expected 4"), "{wrong}");
        assert!(wrong.contains("padded(true)"), "{wrong}");
    }
}

#[test]
fn a_closure_trains_like_the_module() {
    let folder = tempfile::tempdir().unwrap();
    let net = Net::new();
    let same = Net::new();
    let closure = TrainingFn::new(
        &same,
        |net, batch, _| {
            batch.mean(&cross_entropy(
                &net.forward(&batch.get("x")),
                &batch.get("y"),
                Reduction::None,
            ))
        },
        |_| Sgd::new(0.05).momentum(0.9),
    )
    .validation_step(|net, batch, cx| {
        cx.log(
            "val_loss",
            &cross_entropy(&net.forward(&batch.get("x")), &batch.get("y"), Reduction::None),
        );
    });
    let train = train_loader(40, DROP_LAST);
    let val = val_loader(20);
    let module = builder(folder.path())
        .build()
        .unwrap()
        .fit(&net, &train, Some(&val))
        .unwrap()
        .last_epoch
        .unwrap();
    let closure_summary =
        builder(folder.path()).build().unwrap().fit(&closure, &train, Some(&val)).unwrap();
    let closure_epoch = closure_summary.last_epoch.unwrap();
    assert_eq!(bits(&same), bits(&net));
    assert_eq!(
        closure_epoch.get("val_loss").unwrap().to_bits(),
        module.get("val_loss").unwrap().to_bits()
    );
}

#[test]
fn each_wrong_use_is_one_clear_error() {
    let folder = tempfile::tempdir().unwrap();
    let train = train_loader(40, DROP_LAST);
    let refused = |builder: TrainerBuilder, shown: &str| {
        let net = Net::new();
        let error = builder.build().unwrap().train_step(&net, &train).map(drop).unwrap_err();
        assert!(error.to_string().contains(shown), "{error}");
    };
    let build = || trainer(folder.path());
    refused(build().max_time("1h".parse::<TrainDuration>().unwrap()), "max_time: it is 1h");
    refused(build().overfit_batches(2), "overfit_batches: train_step leaves the loop to you");
    refused(
        build().reload_dataloaders_every_n_epochs(1),
        "reload_dataloaders_every_n_epochs: train_step leaves the loop",
    );
    refused(build().callback(Record::default()), "the Trainer has the callback Record");

    let net = Net::new();
    let other = Net::new();
    let mut one = build().build().unwrap();
    let mut two = build().build().unwrap();
    let mut step = one.train_step(&net, &train).unwrap();
    let other_step = two.train_step(&other, &train).unwrap();
    // The step holds the values until it is dropped.
    let error =
        build().build().unwrap().train_step(&net, &train).map(drop).unwrap_err().to_string();
    assert!(error.contains("the module is being trained"), "{error}");

    let validation = other_step.eval_step(&val_loader(20)).unwrap();
    let error = validation.run(&step).unwrap_err().to_string();
    assert!(error.contains("the eval step belongs to another TrainStep"), "{error}");
    let mut scores = other_step.function("scores", |x: Vec<Tensor>| other.forward(&x[0]));
    let x = Tensor::from_slice(&[0.5f32; 2 * FEATURES], [2, FEATURES]);
    let error = scores.call(&step, &[&x]).unwrap_err().to_string();
    assert!(error.contains("the function `scores` belongs to another TrainStep"), "{error}");
    scores.call(&other_step, &[&x]).unwrap();
    let error = scores.call(&other_step, &[&x, &x]).unwrap_err().to_string();
    assert!(
        error.contains("`scores` was first called with 1 tensor, and is now called with 2"),
        "{error}"
    );
    let mut wrong =
        other_step.function("wrong", |x: Tensor| x.matmul(Tensor::ones(DType::F32, [CLASSES, 2])));
    let error = wrong.call(&other_step, &x).unwrap_err();
    assert!(error.location().is_some_and(|line| line.file().ends_with("train_step.rs")), "{error}");

    // Batches of another loader.
    let others = DataLoader::builder(samples(40)).batch_size(4).build().unwrap();
    let mut small_trainer = build().build().unwrap();
    let small = Net::new();
    let small = small_trainer.train_step(&small, &others).unwrap();
    let batch = small.batches().next().unwrap().unwrap();
    let error = step.run(&batch).unwrap_err().to_string();
    assert!(
        error.contains(
            "it has [f32[4, 6], i32[4], f32[4]], expected [x f32[8, 6], y i32[8], mask f32[8]]"
        ),
        "{error}"
    );
    assert!(error.contains("train_step.rs:"), "{error}");

    let y = Literal::from_slice(&[0i32; 8], [8]).unwrap();
    let x = Literal::from_slice(&[0.5f32; 8 * FEATURES], [8, FEATURES]).unwrap();
    let refused = |fields: &[(&str, &Literal)], shown: &str| {
        let error = step.batch(fields).unwrap_err().to_string();
        assert!(error.contains(shown) && error.contains("train_step.rs:"), "{error}");
    };
    refused(&[("x", &x)], "the field `y` (i32[8]) is missing");
    refused(&[("x", &y), ("y", &y)], "the field `x` is i32[8], expected f32[8, 6]");
    refused(&[("x", &x), ("y", &y), ("z", &y)], "there is no field `z`; the loader has: `x`, `y`");

    // A module that logs nothing.
    let layer = Linear::new(FEATURES, CLASSES);
    let silent = TrainingFn::new(
        &layer,
        |l, batch, _| l.forward(&batch.get("x")).mean_all(),
        |_| Sgd::new(0.1),
    );
    let mut third = build().build().unwrap();
    let mut quiet = third.train_step(&silent, &train).unwrap();
    let error = quiet.eval_step(&val_loader(20)).map(drop).unwrap_err().to_string();
    assert!(error.contains("validation_step logs nothing"), "{error}");

    // Files.
    let error = step.load(folder.path().join("none")).unwrap_err().to_string();
    assert!(error.contains("none"), "{error}");
    let file = folder.path().join("quiet");
    quiet.save(&file).unwrap();
    let error = step.load(&file).unwrap_err();
    assert!(
        error.is_checkpoint() && error.to_string().contains("`fc1.weight` (f32[64, 6]) is missing"),
        "{error}"
    );
    // Nothing was changed.
    advance(&mut step, 2);
    step.block_until_ready().unwrap();
    std::fs::write(folder.path().join("a file"), "mine").unwrap();
    let error = step.save(folder.path().join("a file/x")).unwrap_err();
    assert!(error.is_checkpoint() && error.to_string().contains("a file/x"), "{error}");
}

#[test]
fn a_loss_that_is_not_finite_is_an_error_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let mut net = Net::new();
    net.learning_rate = 1e30;
    let mut trainer = builder(folder.path()).detect_nan(true).build().unwrap();
    let mut step = trainer.train_step(&net, &train_loader(40, DROP_LAST)).unwrap();
    advance(&mut step, usize::MAX);
    let error = step.logs().unwrap().wait().unwrap_err();
    assert!(
        error.not_finite_step().is_some() && error.to_string().contains("`train_loss`"),
        "{error}"
    );
    let error = step.save(folder.path().join("bad")).unwrap_err();
    assert!(error.not_finite_step().is_some(), "{error}");
    assert!(!folder.path().join("bad/manifest.json").exists());
}

#[test]
fn the_loops_own_values_are_saved_and_come_back_with_the_state() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step");
    let train = train_loader(40, DROP_LAST);
    let net = Net::new();
    let mut trainer = builder(folder.path()).build().unwrap();
    let mut step = trainer.train_step(&net, &train).unwrap();
    assert_eq!(step.value::<f64>("best").unwrap(), None, "it was never set");
    advance(&mut step, 3);
    step.set_value("best", 0.1f64).unwrap();
    step.set_value("worst", f64::NEG_INFINITY).unwrap();
    step.set_value("games", serde_json::json!({ "won": 3, "last": ["a", "b"] })).unwrap();
    step.save(&path).unwrap();
    step.set_value("best", 0.0625f64).unwrap();
    step.load(&path).unwrap();
    let check = |step: &TrainStep<'_>, path: &Path| {
        assert_eq!(step.value("best").unwrap(), Some(0.1));
        assert_eq!(step.value("worst").unwrap(), Some(f64::NEG_INFINITY));
        assert_eq!(step.value::<serde_json::Value>("games").unwrap().unwrap()["last"][1], "b");
        let error = step.value::<f64>("best_los").unwrap_err();
        assert!(error.is_checkpoint(), "{error}");
        let missing = "it has no value `best_los`; its values are: `best`, `games`, `worst`";
        let error = error.to_string();
        assert!(error.contains(missing) && error.contains(path.to_str().unwrap()), "{error}");
        let error = step.value::<String>("best").unwrap_err().to_string();
        assert!(error.starts_with("value: `best`: it is 0.1, which does not have"), "{error}");
    };
    check(&step, &path);
    let error = step.set_value("losses", vec![f64::NAN]).unwrap_err();
    assert!(error.is_usage() && error.to_string().contains("`losses`: it has a null"), "{error}");
    drop(step);

    // A fit passes them on to its own checkpoints.
    let fit = builder(folder.path()).ckpt_path(&path).build().unwrap().fit(&net, &train, None);
    let last = fit.unwrap().last_checkpoint.unwrap();
    let mut trainer = builder(folder.path()).max_epochs(4).ckpt_path(&last).build().unwrap();
    check(&trainer.train_step(&net, &train).unwrap(), &last);

    // A checkpoint of a fit that never had any.
    let mut trainer = builder(folder.path()).max_epochs(1).build().unwrap();
    let last = trainer.fit(&net, &train, None).unwrap().last_checkpoint.unwrap();
    let mut trainer = builder(folder.path()).ckpt_path(&last).build().unwrap();
    let error = trainer.train_step(&net, &train).unwrap().value::<f64>("best").unwrap_err();
    assert!(error.to_string().contains("no value `best`; its values are: none"), "{error}");
}

#[test]
fn the_loop_passes_its_values_to_the_trainers_loggers() {
    let folder = tempfile::tempdir().unwrap();
    let train = train_loader(40, DROP_LAST);
    let val = val_loader(20);
    let net = Net::new();
    let mut trainer = builder(folder.path()).max_epochs(2).build().unwrap();
    let mut step = trainer.train_step(&net, &train).unwrap();
    let validation = step.eval_step(&val).unwrap();
    assert!(trainer.run_dir().is_none(), "a loop that logs nothing makes no folder");
    let mut losses = Vec::new();
    for batch in step.batches() {
        let progress = step.run(&batch.unwrap()).unwrap();
        if progress.batch == progress.batches {
            let point = step.logs().unwrap().wait().unwrap();
            losses.push(point.get("train_loss").unwrap().to_string());
            trainer.log(&point).unwrap();
            trainer.log(&validation.run(&step).unwrap()).unwrap();
        }
    }
    let run = trainer.run_dir().unwrap().to_owned();
    assert_eq!((trainer.log_points(), run.file_name().unwrap().to_str()), (4, Some("version_0")));
    drop((step, trainer));
    let table = std::fs::read_to_string(run.join("metrics.csv")).unwrap();
    let mut rows = table.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let names = rows.next().unwrap();
    let of = |row: &[&str], name: &str| {
        row[names.iter().position(|column| *column == name).unwrap()].to_owned()
    };
    let rows: Vec<_> = rows.collect();
    let steps: Vec<_> = rows.iter().map(|row| of(row, "step")).collect();
    assert_eq!(steps, ["5", "5", "10", "10"]);
    assert_eq!([of(&rows[0], "train_loss"), of(&rows[2], "train_loss")], losses[..]);
    assert!(of(&rows[1], "train_loss").is_empty() && !of(&rows[1], "val_acc").is_empty());
    let written = crate::common::files(&run);
    for file in ["config.toml", "environment.json", "metrics.jsonl"] {
        assert!(written.iter().any(|name| name == file), "{written:?}");
    }
    let events = written.iter().find(|name| name.starts_with("events.out.tfevents")).unwrap();
    assert!(std::fs::metadata(run.join(events)).unwrap().len() > 200);
}
