//! The samples of an epoch, on one device and on many: every sample counts once, and padding does
//! not count.

use crate::common::{Record, trainer};
use fulmen_data::{
    DType, DataLoader, Error, Field, Fingerprint, Items, OnError, Replica, Sampler, Stream,
    StreamItem, TensorDataset,
};
use fulmen_nn::optim::{Optimizer, Sgd};
use fulmen_nn::{Linear, Module};
use fulmen_tensor::{Mesh, Tensor};
use fulmen_trainer::{Batch, LogPoint, Plan, StepContext, TrainingModule};

const DEVICES: [usize; 3] = [1, 2, 8];
const BATCH_SIZE: usize = 16;

/// Logs its inputs.
#[derive(Module)]
struct Probe {
    linear: Linear,
}

impl Probe {
    fn new() -> Probe {
        Probe { linear: Linear::new(1, 1) }
    }

    /// One output per sample.
    fn forward(&self, batch: &Batch) -> Tensor {
        self.linear.forward(&batch.get("x").reshape([batch.size(), 1])).reshape([batch.size()])
    }

    fn log(&self, batch: &Batch, cx: &mut StepContext) {
        let x = batch.get("x");
        cx.log("x", &x);
        cx.log("square", &(&x * &x));
        cx.log("scalar", &batch.mean(&x));
        cx.log("output", &self.forward(batch));
    }
}

impl TrainingModule for Probe {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
        cx.log("seen", &batch.get("x"));
        cx.log("seen_square", &(batch.get("x") * batch.get("x")));
        let output = self.forward(batch);
        batch.mean(&(&output * &output))
    }

    fn validation_step(&self, batch: &Batch, cx: &mut StepContext) {
        self.log(batch, cx);
    }

    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(1e-5))
    }
}

/// Quarters, so that sums of them and of their squares are exact in f32, in any order.
fn value(sample: usize) -> f32 {
    (sample * 37 % 101) as f32 / 4.0
}

fn data(len: usize) -> TensorDataset {
    TensorDataset::builder()
        .array("x", [len], (0..len).map(value).collect::<Vec<_>>())
        .build()
        .unwrap()
}

fn mean(len: usize, function: impl Fn(f64) -> f64) -> f64 {
    (0..len).map(|sample| function(f64::from(value(sample)))).sum::<f64>() / len as f64
}

fn validated(len: usize, devices: usize, loader: &DataLoader) -> LogPoint {
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = trainer(folder.path()).devices(devices).build().unwrap();
    trainer
        .validate(&Probe::new(), loader)
        .unwrap_or_else(|e| panic!("{len} samples on {devices}: {e}"))
}

#[test]
fn the_masked_mean_is_the_mean_over_samples_on_any_number_of_devices() {
    for len in [1, 7, 64, 1000] {
        let loader =
            DataLoader::builder(data(len)).batch_size(BATCH_SIZE).num_workers(1).build().unwrap();
        assert_eq!(loader.pads(), len != 64);
        let points = DEVICES.map(|devices| validated(len, devices, &loader));
        for (point, devices) in points.iter().zip(DEVICES) {
            let metric = |name: &str| point.get(name).unwrap();
            assert_eq!(metric("x"), mean(len, |x| x), "{len} samples on {devices} devices");
            assert_eq!(
                metric("square"),
                mean(len, |x| x * x),
                "{len} samples on {devices} devices"
            );
            let close = |a: f64, b: f64| (a - b).abs() <= 2e-6 * b.abs().max(1.0);
            assert!(
                close(metric("scalar"), metric("x")),
                "{} and {}",
                metric("scalar"),
                metric("x")
            );
            assert!(
                close(metric("output"), points[0].get("output").unwrap()),
                "{len} samples on {devices} devices"
            );
        }
    }
}

#[test]
fn mesh_axes_that_split_the_batch_share_it_and_the_others_repeat_it() {
    for (axes, each) in [
        ([("data", 4), ("model", 2)], 4),
        ([("model", 4), ("data", 2)], 8),
        ([("data", 2), ("fsdp", 4)], 2),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let builder =
            trainer(folder.path()).devices(8).mesh(Mesh::new(axes).unwrap()).max_epochs(1);
        let mut trainer = builder.enable_checkpointing(false).build().unwrap();
        let loader = DataLoader::builder(data(71)).batch_size(BATCH_SIZE).build().unwrap();
        let point = trainer.validate(&Probe::new(), &loader).unwrap();
        assert_eq!(point.get("x"), Some(mean(71, |x| x)), "{axes:?}");
        assert_eq!(point.get("square"), Some(mean(71, |x| x * x)), "{axes:?}");
        let spelled = DataLoader::builder(data(71)).per_device_batch_size(each).build().unwrap();
        assert_eq!(trainer.fit(&Probe::new(), &spelled, None).unwrap().global_step, 5, "{axes:?}");
    }
}

#[test]
fn every_sample_is_trained_on_once_per_epoch_on_any_number_of_devices() {
    for len in [1, 7, 64, 1000] {
        for devices in DEVICES {
            let folder = tempfile::tempdir().unwrap();
            let record = Record::default();
            let builder =
                trainer(folder.path()).devices(devices).max_epochs(2).enable_checkpointing(false);
            let mut trainer = builder.callback(record.clone()).build().unwrap();
            let builder =
                DataLoader::builder(data(len)).batch_size(BATCH_SIZE).shuffle(true).seed(4);
            trainer.fit(&Probe::new(), &builder.build().unwrap(), None).unwrap();
            let epochs = record.epochs.lock().unwrap();
            assert_eq!(epochs.len(), 2);
            for point in epochs.iter() {
                assert_eq!(
                    point.get("seen_epoch"),
                    Some(mean(len, |x| x)),
                    "{len} samples on {devices} devices"
                );
                assert_eq!(point.get("seen_square_epoch"), Some(mean(len, |x| x * x)));
            }
        }
    }
}

#[test]
fn a_batch_size_for_each_device_grows_with_the_devices() {
    for devices in DEVICES {
        let folder = tempfile::tempdir().unwrap();
        let builder =
            trainer(folder.path()).devices(devices).max_epochs(1).enable_checkpointing(false);
        let loader = DataLoader::builder(data(1000)).per_device_batch_size(4).build().unwrap();
        let summary = builder.build().unwrap().fit(&Probe::new(), &loader, None).unwrap();
        assert_eq!(summary.global_step, 1000u64.div_ceil(4 * devices as u64), "{devices} devices");
    }
}

#[test]
fn a_batch_size_that_the_devices_cannot_share_is_rejected_with_sizes_that_fit() {
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = trainer(folder.path()).devices(8).max_epochs(1).build().unwrap();
    let loader = |size| DataLoader::builder(data(64)).batch_size(size).build().unwrap();
    let error = trainer.fit(&Probe::new(), &loader(20), None).unwrap_err();
    assert!(
        error.to_string().contains("a batch size of 20 cannot be shared equally by 8 devices"),
        "{error}"
    );
    assert!(error.to_string().contains("16 and 24"), "{error}");
    let error = trainer.fit(&Probe::new(), &loader(16), Some(&loader(9))).unwrap_err();
    assert!(
        error.to_string().contains("a batch size of 9 cannot be shared equally by 8 devices"),
        "{error}"
    );
    let error = trainer.validate(&Probe::new(), &loader(7)).unwrap_err();
    assert!(
        error.to_string().contains("a batch size of 7 cannot be shared equally by 8 devices"),
        "{error}"
    );
}

#[test]
fn a_users_own_sampler_is_respected() {
    /// Selects the first half of the samples, in reverse order.
    struct FirstHalf {
        is_presharded: bool,
    }
    impl Sampler for FirstHalf {
        fn is_presharded(&self) -> bool {
            self.is_presharded
        }
        fn num_samples(&self, len: usize, _: Replica) -> usize {
            len / 2
        }
        fn order(&self, _: u64, len: usize, replica: Replica) -> Vec<usize> {
            // One process reads all samples, for any number of devices.
            assert_eq!(replica, Replica::ONLY);
            (0..len / 2).rev().collect()
        }
    }
    for is_presharded in [false, true] {
        for devices in DEVICES {
            let builder = DataLoader::builder(data(74))
                .batch_size(BATCH_SIZE)
                .sampler(FirstHalf { is_presharded });
            let loader = builder.drop_last(false).build().unwrap();
            assert_eq!(
                validated(74, devices, &loader).get("square"),
                Some(mean(37, |x| x * x)),
                "{devices} devices"
            );
        }
    }
}

/// The indices of this number of samples, in order.
struct Numbers(usize);

impl Stream for Numbers {
    type Item = usize;
    fn len(&self) -> Option<usize> {
        Some(self.0)
    }
    fn items(&self, _epoch: u64) -> fulmen_data::Result<Items<usize>> {
        let item = |i| Ok(StreamItem { index: i as u64, origin: format!("sample {i}"), item: i });
        Ok(Box::new((0..self.0).map(item)))
    }
    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> fulmen_data::Result<()> {
        fingerprint.add("count", self.0.to_le_bytes());
        Ok(())
    }
}

#[test]
fn every_good_record_of_a_stream_counts_once_on_any_number_of_devices() {
    const LEN: usize = 203;
    let good = |sample: usize| sample % 10 != 3 && !(32..40).contains(&sample);
    for devices in DEVICES {
        let folder = tempfile::tempdir().unwrap();
        let record = Record::default();
        let builder =
            trainer(folder.path()).devices(devices).max_epochs(2).enable_checkpointing(false);
        let mut trainer = builder.callback(record.clone()).build().unwrap();
        let values = Numbers(LEN).map(move |sample| {
            if good(sample) { Ok(value(sample)) } else { Err(Error::new("torn")) }
        });
        let samples = values
            .shuffle(40, 1)
            .into_dataset(vec![Field::new("x", DType::F32, [])], |x, sample| {
                sample.write_value(0, x)
            });
        let builder = DataLoader::from_stream(samples)
            .batch_size(BATCH_SIZE)
            .num_workers(2)
            .on_error(OnError::Skip);
        let loader = builder.build().unwrap();
        trainer.fit(&Probe::new(), &loader, None).unwrap();
        let all: Vec<f64> = (0..LEN).filter(|&i| good(i)).map(|i| f64::from(value(i))).collect();
        let mean = |function: fn(f64) -> f64| {
            all.iter().map(|&x| function(x)).sum::<f64>() / all.len() as f64
        };
        let epochs = record.epochs.lock().unwrap();
        assert_eq!(epochs.len(), 2);
        for point in epochs.iter() {
            assert_eq!(point.get("seen_epoch"), Some(mean(|x| x)), "{devices} devices");
            assert_eq!(point.get("seen_square_epoch"), Some(mean(|x| x * x)), "{devices} devices");
        }
        assert_eq!(loader.bad_samples().count, 2 * (LEN - all.len()) as u64);
    }
}
