//! What a metric is: sums over samples on the device, and a value from them on the host.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use fulmen_tensor::{AsTensor, DType, Fault, FromFault, Refusal, Runtime, Scope, Tensor, autocast};

use crate::record::NN;
use crate::{Error, Result};

/// Sums over samples, and a value made of the sums.
///
/// ```
/// use fulmen_nn::metrics::{Metric, MetricState, Value};
/// use fulmen_tensor::{DType, Tensor};
///
/// /// How many numbers are above 0, of all.
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
    /// The sums over those of the samples whose mask is true. The inputs are those that the [`MetricState`] were made with;
    /// the mask is booleans of the samples' shape.
    ///
    /// A tensor of integers is a counter, of which a batch may count up to 2³¹ − 1 and an epoch any number; floating-point
    /// numbers are summed as f32, with what rounding loses kept beside.
    fn statistics(&self, inputs: &[Tensor], mask: &Tensor) -> Vec<Tensor>;

    /// The value, from the elements of each of those tensors, summed over all batches.
    fn compute(&self, sums: &[Vec<f64>]) -> Value;
}

/// What a metric says.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// One number.
    Scalar(f64),
    /// One number a class.
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

    /// The numbers one after the other, row by row.
    pub fn elements(&self) -> Vec<f64> {
        match self {
            Value::Scalar(value) => vec![*value],
            Value::Vector(values) => values.clone(),
            Value::Matrix(rows) => rows.concat(),
        }
    }
}

/// The sums of one batch, recorded and not yet computed: what a metric's `update` returns.
#[derive(Clone, Debug)]
pub struct MetricState {
    metric: Arc<dyn Metric>,
    inputs: Vec<Tensor>,
    samples: Vec<usize>,
    mask: Option<Tensor>,
    location: &'static Location<'static>,
}

impl MetricState {
    /// The statistics of a metric over samples of this shape, which its inputs begin with. A poisoned input poisons them.
    #[track_caller]
    pub fn new(metric: impl Metric + 'static, inputs: &[&Tensor], samples: &[usize]) -> MetricState {
        let inputs = inputs.iter().map(|&input| input.clone()).collect();
        let samples = samples.to_vec();
        MetricState { metric: Arc::new(metric), inputs, samples, mask: None, location: Scope::line() }
    }

    /// The statistics over the inputs and the shape of the samples that `body` gives; poisoned by what it refuses.
    #[track_caller]
    pub(super) fn record(
        metric: impl Metric + 'static,
        name: &str,
        body: impl FnOnce() -> Result<(Vec<Tensor>, Vec<usize>), Refusal>,
    ) -> MetricState {
        let _scope = NN.open();
        let (inputs, samples) = match body() {
            Ok(found) => found,
            Err(refusal) => (vec![NN.record(name, || Err(refusal))], vec![]),
        };
        MetricState { metric: Arc::new(metric), inputs, samples, mask: None, location: Scope::line() }
    }

    /// Leaves samples out: those whose mask is 0 or false. The mask has the first axes of the samples, one or several: of
    /// samples `[batch, time]`, `[batch]` leaves out rows, `[batch, time]` elements. Several masks leave out what one of
    /// them does.
    ///
    /// Poisoned by a mask of another shape.
    #[track_caller]
    pub fn masked(mut self, mask: impl AsTensor) -> MetricState {
        let mask = NN.record("masked", || self.mask_of(mask.as_tensor()));
        match mask.live() {
            Ok(_) => self.mask = Some(mask),
            Err(_) => self.inputs = vec![mask],
        }
        self
    }

    /// What is left of the samples by a mask of their first axes.
    fn mask_of(&self, mask: &Tensor) -> Result<Tensor, Refusal> {
        mask.live()?;
        if let Some(fault) = self.fault() {
            return Err(fault.clone().into());
        }
        if !self.samples.starts_with(mask.shape().dims()) {
            let (ty, samples) = (mask.ty(), &self.samples);
            return Err(format!("the mask {ty} does not have the first axes of the samples {samples:?}").into());
        }
        let dims = (0..self.samples.len()).map(|a| if a < mask.rank() { self.samples[a] } else { 1 });
        let mask = mask.ne(0.0).reshape(dims.collect::<Vec<_>>()).broadcast_to(&self.samples[..]);
        Ok(self.mask.as_ref().map_or(mask.clone(), |earlier| earlier.and(&mask)))
    }

    /// The metric that they are of.
    pub fn metric(&self) -> &Arc<dyn Metric> {
        &self.metric
    }

    /// The shape of the samples.
    pub fn samples(&self) -> &[usize] {
        &self.samples
    }

    /// The line that asked for them.
    pub fn location(&self) -> &'static Location<'static> {
        self.location
    }

    /// The first mistake in what they are computed from.
    pub fn fault(&self) -> Option<&Fault> {
        self.inputs.iter().find_map(Tensor::fault)
    }

    /// Whether a mask that leaves samples out is computed from `leaf`.
    pub fn mask_depends_on(&self, leaf: &Tensor) -> bool {
        self.mask.as_ref().is_some_and(|mask| mask.depends_on(leaf))
    }

    /// The sums: counters as i32, other sums as f32. One poisoned tensor if there is a mistake.
    pub fn tensors(&self) -> Vec<Tensor> {
        if let Some(fault) = self.fault() {
            return FromFault::from_fault(fault.clone());
        }
        let _scope = NN.at(self.location);
        let _user = Scope::leave();
        // Counts must not be rounded to the dtype that a model is computed in.
        autocast(None, || self.sums())
    }

    fn sums(&self) -> Vec<Tensor> {
        let mask = self.mask.clone().unwrap_or_else(|| Tensor::ones(DType::Bool, &self.samples[..]));
        let sums = self.metric.statistics(&self.inputs, &mask);
        sums.iter().map(|sum| sum.to_dtype(if sum.dtype().is_float() { DType::F32 } else { DType::I32 })).collect()
    }

    /// Computes the sums of this batch.
    ///
    /// # Errors
    /// The first mistake in what they are computed from; whatever the runtime reports.
    #[track_caller]
    pub fn eval(&self) -> Result<Sums> {
        let _scope = NN.open();
        let tensors = self.tensors();
        for tensor in &tensors {
            tensor.check().map_err(Error::from)?;
        }
        let values = Runtime::global()?.eval_many(&tensors.iter().collect::<Vec<_>>())?;
        Ok(Sums::new(self.metric.clone(), values.iter().map(|value| value.to_f64()).collect()))
    }
}

/// Sums that have been computed, of one batch or of many.
#[derive(Clone, Debug)]
pub struct Sums {
    metric: Arc<dyn Metric>,
    sums: Vec<Vec<f64>>,
}

impl Sums {
    /// The sums of a metric: the elements of each of its statistics.
    pub fn new(metric: Arc<dyn Metric>, sums: Vec<Vec<f64>>) -> Sums {
        Sums { metric, sums }
    }

    /// Adds the sums of other samples.
    ///
    /// # Errors
    /// They are of another metric, or of one with other settings; nothing is added then.
    #[track_caller]
    pub fn merge(&mut self, other: &Sums) -> Result<()> {
        let lengths = |sums: &Sums| sums.sums.iter().map(Vec::len).collect::<Vec<_>>();
        let (mine, others) = (format!("{:?}", self.metric), format!("{:?}", other.metric));
        if mine != others || lengths(self) != lengths(other) {
            let message = format!("sums of {others} cannot be added to those of {mine}");
            return Err(Error::usage(message, Location::caller()));
        }
        for (sum, other) in self.sums.iter_mut().flatten().zip(other.sums.iter().flatten()) {
            *sum += other;
        }
        Ok(())
    }

    /// The metric over all samples that were summed.
    pub fn compute(&self) -> Value {
        self.metric.compute(&self.sums)
    }
}
