//! The parts of a metric: sums over samples on the device, and a value computed from them on the
//! host.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use fulmen_tensor::{AsTensor, DType, Fault, FromFault, Refusal, Runtime, Scope, Tensor, autocast};

use crate::library::NN;
use crate::{Error, Result};

/// Sums over samples, and a value computed from the sums.
///
/// ```
/// use fulmen_nn::metrics::{Metric, MetricState, Value};
/// use fulmen_tensor::{DType, Tensor};
///
/// // /// The share of numbers above 0.
/// #[derive(Clone, Debug)]
/// struct Positive;
///
/// impl Metric for Positive {
///     fn statistics(&self, inputs: &[Tensor], mask: &Tensor) -> Vec<Tensor> {
///         let count = |which: &Tensor| which.to_dtype(DType::I32).sum_all();
///         vec![count(&inputs[0].gt(0.0).and(mask)), count(mask)]
///     }
///     fn compute(&self, sums: &[Vec<f64>]) -> Value {
///         Value::Scalar(sums[0][0] / sums[1][0])
///     }
/// }
///
/// let x = Tensor::from_slice(&[1.0f32, -2.0, 3.0, 4.0], [4]);
/// let sums = MetricState::new(Positive, &[&x], &[4]).eval()?;
/// assert_eq!(sums.compute(), Value::Scalar(0.75));
/// # Ok::<(), fulmen_nn::Error>(())
/// ```
pub trait Metric: fmt::Debug + Send + Sync {
    /// The sums over the samples whose mask is true. `inputs` are the inputs of the
    /// [`MetricState`]; `mask` is boolean, with the samples' shape.
    ///
    /// An integer tensor is a counter: a batch may count up to 2³¹ − 1, an epoch any number.
    /// Floating-point numbers are summed in f32, with a compensation of rounding errors.
    fn statistics(&self, inputs: &[Tensor], mask: &Tensor) -> Vec<Tensor>;

    /// The value, from the elements of each of these tensors, summed over all batches.
    fn compute(&self, sums: &[Vec<f64>]) -> Value;
}

/// The value of a metric.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// One number.
    Scalar(f64),
    /// One number for each class.
    Vector(Vec<f64>),
    /// Rows of numbers.
    Matrix(Vec<Vec<f64>>),
}

impl Value {
    /// The number, if it is one.
    pub fn scalar(&self) -> Option<f64> {
        match self {
            Value::Scalar(value) => Some(*value),
            _ => None,
        }
    }

    /// All numbers in order, row by row.
    pub fn elements(&self) -> Vec<f64> {
        match self {
            Value::Scalar(value) => vec![*value],
            Value::Vector(values) => values.clone(),
            Value::Matrix(rows) => rows.concat(),
        }
    }
}

/// The sums of one batch, recorded but not computed yet: the result of a metric's `update`.
#[derive(Clone, Debug)]
#[must_use]
pub struct MetricState {
    metric: Arc<dyn Metric>,
    inputs: Vec<Tensor>,
    samples: Vec<usize>,
    mask: Option<Tensor>,
    location: &'static Location<'static>,
}

impl MetricState {
    /// The state of a metric over samples of this shape, which is the shape of the inputs' first
    /// axes. A poisoned input poisons it.
    #[track_caller]
    pub fn new(
        metric: impl Metric + 'static,
        inputs: &[impl AsTensor],
        samples: &[usize],
    ) -> MetricState {
        let inputs = inputs.iter().map(|input| input.as_tensor().clone()).collect();
        let samples = samples.to_vec();
        MetricState {
            metric: Arc::new(metric),
            inputs,
            samples,
            mask: None,
            location: Scope::line(),
        }
    }

    /// Records a state. `body` returns the inputs and the shape of the samples. Its errors poison
    /// the state.
    #[track_caller]
    pub(super) fn record(
        metric: impl Metric + 'static,
        name: &str,
        body: impl FnOnce() -> Result<(Vec<Tensor>, Vec<usize>), Refusal>,
    ) -> MetricState {
        let _scope = NN.open();
        let (inputs, samples) = match body() {
            Ok(value) => value,
            Err(refusal) => (vec![NN.record(name, || Err(refusal))], Vec::new()),
        };
        MetricState {
            metric: Arc::new(metric),
            inputs,
            samples,
            mask: None,
            location: Scope::line(),
        }
    }

    /// Leaves out samples whose mask is 0 or false. The mask has the shape of the samples' first
    /// axes: for samples `[batch, time]`, a mask `[batch]` leaves out rows, and a mask `[batch,
    /// time]` elements. With several masks, each leaves out its own samples.
    ///
    /// Poisoned if the mask has a different shape.
    #[track_caller]
    pub fn masked(mut self, mask: impl AsTensor) -> MetricState {
        let mask = NN.record("masked", || self.mask_of(mask.as_tensor()));
        match mask.live() {
            Ok(_) => self.mask = Some(mask),
            Err(_) => self.inputs = vec![mask],
        }
        self
    }

    /// The mask of the samples, from a mask of their first axes.
    fn mask_of(&self, mask: &Tensor) -> Result<Tensor, Refusal> {
        mask.live()?;
        if let Some(fault) = self.fault() {
            return Err(fault.clone().into());
        }
        if !self.samples.starts_with(mask.shape().dims()) {
            let ty = mask.ty();
            let samples = &self.samples;
            return Err(format!(
                "the mask {ty} does not have the first axes of the samples {samples:?}"
            )
            .into());
        }
        let dims =
            (0..self.samples.len()).map(|a| if a < mask.rank() { self.samples[a] } else { 1 });
        let mask = mask.ne(0.0).reshape(dims.collect::<Vec<_>>()).broadcast_to(&self.samples[..]);
        Ok(self.mask.as_ref().map_or(mask.clone(), |earlier| earlier.and(&mask)))
    }

    /// The metric.
    pub fn metric(&self) -> &Arc<dyn Metric> {
        &self.metric
    }

    /// The shape of the samples.
    pub fn samples(&self) -> &[usize] {
        &self.samples
    }

    /// The line that made it.
    pub fn location(&self) -> &'static Location<'static> {
        self.location
    }

    /// The first mistake in its inputs.
    pub fn fault(&self) -> Option<&Fault> {
        self.inputs.iter().find_map(Tensor::fault)
    }

    /// Whether the mask depends on `leaf`.
    pub fn mask_depends_on(&self, leaf: &Tensor) -> bool {
        self.mask.as_ref().is_some_and(|mask| mask.depends_on(leaf))
    }

    /// The sums: counters as i32, other sums as f32. A single poisoned tensor if there is a
    /// mistake.
    pub fn tensors(&self) -> Vec<Tensor> {
        if let Some(fault) = self.fault() {
            return FromFault::from_fault(fault.clone());
        }
        let _scope = NN.at(self.location);
        let _user = Scope::leave();
        // Counts must not be rounded to the dtype in which a model is computed.
        autocast(None, || self.sums())
    }

    fn sums(&self) -> Vec<Tensor> {
        let mask =
            self.mask.clone().unwrap_or_else(|| Tensor::ones(DType::Bool, &self.samples[..]));
        let sums = self.metric.statistics(&self.inputs, &mask);
        sums.iter()
            .map(|sum| sum.to_dtype(if sum.dtype().is_float() { DType::F32 } else { DType::I32 }))
            .collect()
    }

    /// Computes the sums of this batch.
    ///
    /// # Errors
    /// The first mistake in its inputs; errors of the runtime.
    #[track_caller]
    pub fn eval(&self) -> Result<Sums> {
        let _scope = NN.open();
        let tensors = self.tensors();
        for tensor in &tensors {
            tensor.check()?;
        }
        let values = Runtime::global()?.eval_many(&tensors)?;
        Ok(Sums::new(self.metric.clone(), values.iter().map(|value| value.to_f64()).collect()))
    }
}

/// Computed sums, of one batch or of many.
#[derive(Clone, Debug)]
pub struct Sums {
    metric: Arc<dyn Metric>,
    sums: Vec<Vec<f64>>,
}

impl Sums {
    /// The sums of a metric: the elements of each of its state tensors.
    pub fn new(metric: Arc<dyn Metric>, sums: Vec<Vec<f64>>) -> Sums {
        Sums { metric, sums }
    }

    /// Adds the sums of other samples.
    ///
    /// # Errors
    /// The metrics or their settings differ; nothing is added then.
    #[track_caller]
    pub fn merge(&mut self, other: &Sums) -> Result<()> {
        let lengths = |sums: &Sums| sums.sums.iter().map(Vec::len).collect::<Vec<_>>();
        let own = format!("{:?}", self.metric);
        let others = format!("{:?}", other.metric);
        if own != others || lengths(self) != lengths(other) {
            let message = format!("cannot add the sums of {others} to those of {own}");
            return Err(Error::usage_at(message, Location::caller()));
        }
        for (sum, other) in self.sums.iter_mut().flatten().zip(other.sums.iter().flatten()) {
            *sum += other;
        }
        Ok(())
    }

    /// The value of the metric over all samples.
    pub fn compute(&self) -> Value {
        self.metric.compute(&self.sums)
    }
}
