//! `reload_dataloaders_every_n_epochs`: the module makes a new training loader, even after a
//! resume. A loader that does not match is rejected before the first step.

use crate::common::{Record, trainer};
use fulmen_data::{DataLoader, TensorDataset};
use fulmen_nn::optim::{Optimizer, Sgd};
use fulmen_nn::{Linear, Module};
use fulmen_tensor::Tensor;
use fulmen_trainer::{Batch, Plan, Result, StepContext, TrainingModule};

/// Samples that all have this value.
fn loader(value: u64, samples: usize) -> DataLoader {
    let data = TensorDataset::builder()
        .array("x", [samples, 1], vec![value as f32; samples])
        .build()
        .unwrap();
    DataLoader::builder(data).batch_size(4).build().unwrap()
}

#[derive(Module)]
struct Net {
    linear: Linear,
    #[module(skip)]
    reload: fn(u64) -> Option<DataLoader>,
}

impl TrainingModule for Net {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
        let x = batch.get("x");
        cx.log("x", x.mean(1));
        batch.mean(self.linear.forward(&x).square())
    }
    fn train_dataloader(&self, epoch: u64) -> Result<Option<DataLoader>> {
        Ok((self.reload)(epoch))
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(0.001))
    }
}

fn net(reload: fn(u64) -> Option<DataLoader>) -> Net {
    Net { linear: Linear::new(1, 1), reload }
}

#[test]
fn every_second_epoch_has_its_own_loader() {
    let folder = tempfile::tempdir().unwrap();
    let run = |record: &Record| {
        trainer(folder.path())
            .max_epochs(5)
            .reload_dataloaders_every_n_epochs(2)
            .callback(record.clone())
    };
    let net = || net(|epoch| Some(loader(epoch, 12)));
    let means = |record: &Record| {
        let epochs = record.epochs.lock().unwrap();
        epochs.iter().map(|point| point.get("x_epoch").unwrap()).collect::<Vec<_>>()
    };
    let whole = Record::default();
    let summary = run(&whole).build().unwrap().fit(&net(), &loader(0, 12), None).unwrap();
    assert_eq!(means(&whole), [0.0, 0.0, 2.0, 2.0, 4.0]);
    assert!(summary.train_compilations <= 1);

    // The run ends within the fourth epoch, and another resumes from there.
    let ended = run(&Record::default())
        .max_steps(10)
        .build()
        .unwrap()
        .fit(&net(), &loader(0, 12), None)
        .unwrap();
    let resumed = Record::default();
    let goes_on = run(&resumed).ckpt_path(ended.last_checkpoint.unwrap());
    goes_on.build().unwrap().fit(&net(), &loader(0, 12), None).unwrap();
    assert_eq!(means(&resumed), [2.0, 4.0]);
}

#[test]
fn a_loader_that_does_not_match_is_rejected_before_the_first_step() {
    let folder = tempfile::tempdir().unwrap();
    let error = |reload: fn(u64) -> Option<DataLoader>| {
        let mut trainer = trainer(folder.path())
            .max_epochs(3)
            .reload_dataloaders_every_n_epochs(1)
            .build()
            .unwrap();
        let error = trainer.fit(&net(reload), &loader(0, 12), None).unwrap_err();
        assert!(trainer.run_dir().is_none() && error.is_usage(), "{error}");
        error.to_string()
    };
    let text = error(|_| None);
    assert!(
        text.contains("it is 1, but the module's train_dataloader() returns no loader"),
        "{text}"
    );
    let text = error(|_| Some(loader(1, 16)));
    assert!(
        text.contains("the loader of epoch 1 has 4 batches of 4")
            && text.contains("compiled for 3 batches of 4"),
        "{text}"
    );
    let both = trainer(folder.path())
        .overfit_batches(1)
        .reload_dataloaders_every_n_epochs(1)
        .build()
        .err()
        .unwrap();
    assert!(
        both.to_string()
            .starts_with("overfit_batches: it is 1, and reload_dataloaders_every_n_epochs is 1"),
        "{both}"
    );
}
