//! One pass of a validation or test step over a loader.

use std::sync::Arc;

use fulmen_data::DataLoader;
use fulmen_tensor::{Argument, Compiled, DeviceArray, Runtime};

use crate::bad_samples::BadCount;
use crate::hosts::Hosts;
use crate::in_flight::InFlight;
use crate::logs::LogLayout;
use crate::{Error, Result, Strategy};

/// Which of the programs for a loader's shapes is that of a batch.
pub(crate) fn for_shape(compiled: &[Compiled], bucket: usize) -> Result<&Compiled> {
    compiled
        .get(bucket)
        .ok_or_else(|| Error::data(format!("the loader gave a batch of shape {bucket}, which it did not name")))
}

/// A compiled evaluation step with where its logged values stand.
pub(crate) struct Evaluation {
    /// One for each shape of batches.
    pub(crate) compiled: Vec<Compiled>,
    pub(crate) layout: LogLayout,
    /// What it is: validation or test.
    pub(crate) what: &'static str,
}

impl Evaluation {
    /// Runs the step over all batches. The logged values stay on the device, for the caller to read with others.
    pub(crate) fn run(
        &self,
        runtime: &Runtime,
        hosts: Option<&Arc<Hosts>>,
        loader: &DataLoader,
        values: &[&DeviceArray],
    ) -> Result<DeviceArray> {
        // Tells of them when the pass ends, however that is.
        let _bad = BadCount::new(loader, self.what);
        let mut logs = runtime.to_device(&self.layout.start()?)?;
        let mut in_flight = InFlight::new(hosts);
        for batch in loader.prefetch_to(runtime, &Strategy::batch(runtime.mesh()), 0, 0) {
            let batch = batch?;
            in_flight.make_room()?;
            let mut arguments: Vec<Argument<'_>> = values.iter().map(|&value| Argument::Borrow(value)).collect();
            arguments.push(Argument::Donate(logs));
            arguments.extend(batch.arrays.iter().map(Argument::Borrow));
            let mut outputs = for_shape(&self.compiled, batch.bucket)?.call(arguments)?;
            in_flight.push(outputs.done);
            logs = outputs.arrays.pop().ok_or_else(|| Error::data("the evaluation step gave no result"))?;
        }
        Ok(logs)
    }
}
