//! A rule of a user sets the learning rate, scales the loss, skips steps and logs what it reads, with
//! a state of its own.

use std::path::Path;
use std::sync::Arc;

use crate::common::{DROP_LAST, FEATURES, Record, train_loader, trainer};
use fulmen_nn::optim::{Optimizer, Sgd};
use fulmen_nn::{Linear, Module};
use fulmen_tensor::{DType, Tensor};
use fulmen_trainer::{
    Batch, Callback, Candidate, FitSummary, Plan, StepContext, StepInputs, StepRule, Strategy,
    TrainingModule, UpdatedStep,
};

#[derive(Module)]
struct Net(Linear);

impl TrainingModule for Net {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
        let loss = batch.mean(&self.0.forward(batch.get("x")).square().mean(-1));
        cx.log("own_loss", &loss);
        loss
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(1.0))
    }
}

/// The rate falls with the steps, and every fourth step is skipped. The loss is scaled by a power of
/// two.
#[derive(Debug)]
struct Falling;

impl StepRule for Falling {
    fn name(&self) -> &'static str {
        "falling"
    }

    fn init(&self) -> Vec<(&'static str, Tensor)> {
        vec![("seen", Tensor::zeros(DType::I32, [])), ("sum", Tensor::scalar(0.0f32))]
    }

    fn inputs(&self) -> StepInputs {
        StepInputs { loss: true, grad_norm: true, update: true }
    }

    fn learning_rate(&self, finished: &Tensor) -> Option<Tensor> {
        Some(0.5 / (finished.to_dtype(DType::F32) + 1.0))
    }

    fn scale_loss(&self, loss: &Tensor, _: &[Tensor]) -> Tensor {
        loss * 1024.0
    }

    fn unscale(&self, gradient: &Tensor, _: &[Tensor]) -> Tensor {
        gradient / 1024.0
    }

    fn accepts(&self, step: &Candidate, state: &mut [Tensor]) -> Option<Tensor> {
        state[0] = &state[0] + 1.0;
        state[1] = &state[1] + step.loss.as_ref()?;
        Some(state[0].remainder(4.0).ne(0.0))
    }

    fn observed(&self, step: &UpdatedStep) -> Vec<(String, Tensor)> {
        let mut observed = Vec::new();
        for parameter in &step.parameters {
            let gradient = step.gradient(parameter).unwrap();
            let change = &parameter.after - &parameter.before;
            let largest = |value: &Tensor| value.abs().max([0isize, 1]);
            if parameter.name == "0.weight" {
                observed.push(("change".into(), largest(&change)));
                observed.push(("gradient".into(), largest(&gradient)));
            }
        }
        observed
    }

    fn logged(&self, step: &UpdatedStep, state: &[Tensor]) -> Vec<(String, Tensor)> {
        vec![
            ("seen".into(), state[0].clone()),
            ("loss_sum".into(), state[1].clone()),
            ("rate".into(), step.parameters[0].group.learning_rate.clone()),
            ("norm".into(), step.grad_norm.clone().unwrap()),
        ]
    }
}

struct FallingRate;

impl Callback for FallingRate {
    fn name(&self) -> &'static str {
        "FallingRate"
    }

    fn step_rule(&self) -> Option<Arc<dyn StepRule>> {
        Some(Arc::new(Falling))
    }
}

fn fit(folder: &Path, devices: usize, steps: u64, from: &Path) -> (Vec<f32>, Record, FitSummary) {
    let module = Net(Linear::new(FEATURES, 8));
    let record = Record::default();
    let strategy = if devices > 1 { Strategy::Fsdp } else { Strategy::Ddp };
    let builder = trainer(folder).devices(devices).strategy(strategy).seed(1).max_steps(steps);
    let builder = builder.log_every_n_steps(1).ckpt_path(from);
    let mut trainer = builder.callback(record.clone()).callback(FallingRate).build().unwrap();
    let summary = trainer.fit(&module, &train_loader(64, DROP_LAST), None).unwrap();
    let weights = module.0.parameters()[0].1.get().eval().unwrap().to_vec::<f32>().unwrap();
    (weights, record, summary)
}

#[test]
fn a_rule_of_ones_own_changes_a_step_and_logs_what_it_reads() {
    let folder = tempfile::tempdir().unwrap();
    let mut all = Vec::new();
    for devices in [1, 8] {
        let (weights, record, summary) = fit(folder.path(), devices, 12, Path::new(""));
        let logs = record.logs.lock().unwrap();
        let mut updates = 0;
        let mut sum = 0.0;
        for (index, point) in logs.iter().enumerate() {
            let get = |name: &str| point.get(name).unwrap();
            let close = |actual: f64, expected: f64| (actual / expected - 1.0).abs() < 1e-4;
            sum += get("own_loss");
            assert_eq!(get("seen"), index as f64 + 1.0);
            assert!(close(get("loss_sum"), sum), "{point:?}");
            let rate = 0.5 / (f64::from(updates) + 1.0);
            assert!(close(get("rate"), rate) && close(get("lr"), rate), "{point:?}");
            assert!(get("norm") > get("gradient"), "{point:?}");
            if (index + 1) % 4 == 0 {
                assert_eq!(get("change"), 0.0, "{point:?}");
            } else {
                updates += 1;
                // The change is a difference of two rounded weights.
                let expected = rate * get("gradient");
                assert!((get("change") - expected).abs() < 1e-6 + 1e-3 * expected, "{point:?}");
            }
        }
        assert_eq!(logs.len(), 12);
        let (_, _, first) = fit(folder.path(), devices, 7, Path::new(""));
        let (resumed, rest, _) =
            fit(folder.path(), devices, 12, first.last_checkpoint.as_deref().unwrap());
        drop(logs);
        for name in ["seen", "loss_sum", "rate", "norm", "change", "own_loss"] {
            assert_eq!(rest.bits(name), record.bits(name)[7..], "{name}");
        }
        assert_eq!(resumed, weights);
        let checkpoint = summary.last_checkpoint.unwrap();
        let checkpoint = fulmen_checkpoint::Checkpoint::open_folder(&checkpoint).unwrap();
        let names: Vec<_> =
            checkpoint.manifest().tensors.keys().filter(|name| name.contains("falling")).collect();
        assert_eq!(names, ["trainer/falling/seen", "trainer/falling/sum"]);
        all.push(weights);
    }
    let differ = |(a, b): (&f32, &f32)| (a - b).abs() > 1e-5;
    assert!(!all[0].iter().zip(&all[1]).any(differ), "{all:?}");
}

/// Its state begins with a given tensor, which it logs.
#[derive(Debug)]
struct Begins(Tensor);

impl StepRule for Begins {
    fn name(&self) -> &'static str {
        "begins"
    }

    fn init(&self) -> Vec<(&'static str, Tensor)> {
        vec![("state", self.0.clone())]
    }

    fn logged(&self, _: &UpdatedStep, state: &[Tensor]) -> Vec<(String, Tensor)> {
        vec![("state".into(), state[0].sum_all())]
    }
}

struct BeginsWith(Tensor);

impl Callback for BeginsWith {
    fn name(&self) -> &'static str {
        "BeginsWith"
    }

    fn step_rule(&self) -> Option<Arc<dyn StepRule>> {
        Some(Arc::new(Begins(self.0.clone())))
    }
}

/// What the rule logs in the third step of a run whose first two steps did not have it.
fn added(first: Tensor) -> Result<f64, String> {
    let folder = tempfile::tempdir().unwrap();
    let module = Net(Linear::new(FEATURES, 8));
    let data = train_loader(64, DROP_LAST);
    let builder = || trainer(folder.path()).log_every_n_steps(1);
    let before = builder().max_steps(2).build().unwrap().fit(&module, &data, None).unwrap();
    let record = Record::default();
    let resumed = builder().max_steps(3).ckpt_path(before.last_checkpoint.unwrap());
    let resumed = resumed.callback(record.clone()).callback(BeginsWith(first));
    let fit = resumed.build().unwrap().fit(&module, &data, None);
    fit.map_err(|error| error.to_string())?;
    let logs = record.logs.lock().unwrap();
    Ok(logs[0].get("state").unwrap())
}

#[test]
fn a_rule_that_is_new_in_a_resumed_run_begins_with_its_first_value() {
    assert_eq!(added(Tensor::scalar(2.5f32)), Ok(2.5));
    assert_eq!(added(Tensor::full(DType::F32, [3], 2.0)), Ok(6.0));
    assert_eq!(added(Tensor::from_slice(&[1.0f32; 1000], [1000])), Ok(1000.0));
    assert_eq!(added(Tensor::zeros(DType::F32, [2])), Ok(0.0));
    let computed = added(Tensor::ones(DType::F32, [2]).exp()).unwrap_err();
    assert!(computed.contains("has no `trainer/begins/state`"), "{computed}");
}
