//! Logged values on the device: sums and weights in one small tensor that goes through every step and is read as one.
//!
//! It is an `i32` vector so that counters are exact; floats lie in it by their bits.

use fulmen_tensor::{DType, Literal, Tensor, TensorType};

use crate::module::Logged;
use crate::{Batch, Error, Result};

/// Where in the vector what stands, for one kind of step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogLayout {
    names: Vec<String>,
    grad_norm: bool,
}

/// The vector starts with the number (from 1) of the first step whose loss was not finite (0: none), the latest learning
/// rate and the latest length of the gradients; then come a sum and a weight for each name.
const HEAD: usize = 3;

/// The name that the learning rate is logged under.
pub(crate) const LEARNING_RATE: &str = "lr";
/// The name that the length of the gradients is logged under, if it is asked for.
pub(crate) const GRAD_NORM: &str = "grad_norm";

/// What is logged of a training step besides what the user logs.
pub(crate) struct StepFacts<'a> {
    pub(crate) loss: &'a Tensor,
    /// The number of steps before it.
    pub(crate) step: &'a Tensor,
    /// What it ran with.
    pub(crate) learning_rate: &'a Tensor,
    /// The length of the gradients, and whether this step is one of the optimizer's.
    pub(crate) grad_norm: Option<(&'a Tensor, Option<&'a Tensor>)>,
}

/// What was read of the vector.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sums {
    /// The first step, counted from 1, whose loss was not finite.
    pub(crate) bad_step: Option<u64>,
    pub(crate) learning_rate: f64,
    /// The length of the gradients in the latest step of the optimizer, if it is logged.
    pub(crate) grad_norm: Option<f64>,
    /// Name, sum, weight.
    pub(crate) sums: Vec<(String, f64, f64)>,
}

impl Sums {
    /// Adds the sums of a later stretch of steps.
    pub(crate) fn add(&mut self, later: &Sums) {
        self.bad_step = self.bad_step.or(later.bad_step);
        self.learning_rate = later.learning_rate;
        self.grad_norm = later.grad_norm;
        for (name, sum, weight) in &later.sums {
            match self.sums.iter_mut().find(|mine| mine.0 == *name) {
                Some(mine) => (mine.1, mine.2) = (mine.1 + sum, mine.2 + weight),
                None => self.sums.push((name.clone(), *sum, *weight)),
            }
        }
    }

    /// Names and means; a name without weight has none.
    pub(crate) fn means(&self) -> Vec<(String, f64)> {
        self.sums.iter().filter(|s| s.2 > 0.0).map(|s| (s.0.clone(), s.1 / s.2)).collect()
    }
}

impl LogLayout {
    /// The layout of these logged values.
    ///
    /// # Errors
    /// A poisoned value, a name given twice, a value that is neither a scalar nor one a sample, or a scalar that
    /// ignores padding.
    pub(crate) fn new(logged: &[Logged], batch: &Batch) -> Result<LogLayout> {
        for (i, entry) in logged.iter().enumerate() {
            let at =
                |problem: String| Error::usage(format!("log `{}`: {problem}\n  at {}", entry.name, entry.location));
            entry.value.check()?;
            if logged[..i].iter().any(|earlier| earlier.name == entry.name) {
                return Err(at("this name was logged before in the same step; choose another".into()));
            }
            let ty = entry.value.ty();
            if [LEARNING_RATE, "epoch", "step"].contains(&entry.name.as_str()) {
                return Err(at("this name is that of a value which is logged by itself; choose another".into()));
            }
            let per_sample = ty.shape.dims() == [batch.size()];
            if ty.shape.rank() != 0 && !per_sample {
                return Err(at(format!("the value is {ty}; log a scalar or one value a sample, [{}]", batch.size())));
            }
            if !per_sample && batch.is_padded() && !entry.value.depends_on(batch.mask()) {
                return Err(at("the last batch is padded, and this scalar does not depend on the batch's mask, so \
                               padding would count as samples; log the values a sample, [batch], or use batch.mean()"
                    .into()));
            }
        }
        Ok(LogLayout { names: logged.iter().map(|l| l.name.clone()).collect(), grad_norm: false })
    }

    /// Whether the length of the gradients is logged too.
    pub(crate) fn with_grad_norm(self, grad_norm: bool) -> LogLayout {
        LogLayout { grad_norm, ..self }
    }

    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    fn len(&self) -> usize {
        HEAD + 2 * self.names.len()
    }

    pub(crate) fn ty(&self) -> TensorType {
        TensorType::new(DType::I32, [self.len()])
    }

    /// The vector before the first step.
    pub(crate) fn start(&self) -> Result<Literal> {
        Ok(Literal::from_slice(&vec![0i32; self.len()], [self.len()])?)
    }

    /// The vector after a step: `so_far` plus what the step logged. An evaluation has no facts.
    pub(crate) fn accumulate(
        &self,
        so_far: &Tensor,
        logged: &[Logged],
        batch: &Batch,
        facts: Option<&StepFacts<'_>>,
    ) -> Tensor {
        let word = |i: usize| so_far.narrow(0, i, 1).reshape([]);
        let float = |i: usize| word(i).bitcast(DType::F32);
        let bits = |value: &Tensor| value.to_dtype(DType::F32).bitcast(DType::I32);
        let mut words = vec![word(0), word(1), word(2)];
        if let Some(StepFacts { loss, step, learning_rate, grad_norm }) = facts {
            let first = word(0).eq(0.0).and(loss.is_finite().not());
            words[0] = first.select(&(*step + 1.0), &word(0));
            words[1] = bits(learning_rate);
            words[2] = match grad_norm {
                Some((norm, Some(updates))) => updates.select(&bits(norm), &word(2)),
                Some((norm, None)) => bits(norm),
                None => word(2),
            };
        }
        for (i, entry) in logged.iter().enumerate() {
            let count = batch.mask().sum_all();
            let (sum, weight) = if entry.value.rank() == 0 {
                (entry.value.to_dtype(DType::F32) * &count, count)
            } else {
                batch.sum_and_count(&entry.value)
            };
            words.push((float(HEAD + 2 * i) + sum).bitcast(DType::I32));
            words.push((float(HEAD + 2 * i + 1) + weight).bitcast(DType::I32));
        }
        Tensor::stack(&words.iter().collect::<Vec<_>>(), 0)
    }

    /// What the vector says.
    pub(crate) fn read(&self, literal: &Literal) -> Result<Sums> {
        let words = literal.to_vec::<i32>()?;
        let float = |i: usize| f64::from(f32::from_bits(words[i] as u32));
        if words.len() != self.len() {
            return Err(Error::usage(format!("the logged values are {}, expected {}", literal.ty(), self.ty())));
        }
        let sums = self.names.iter().enumerate();
        Ok(Sums {
            bad_step: u64::try_from(words[0]).ok().filter(|&step| step > 0),
            learning_rate: float(1),
            grad_norm: self.grad_norm.then(|| float(2)),
            sums: sums.map(|(i, name)| (name.clone(), float(HEAD + 2 * i), float(HEAD + 2 * i + 1))).collect(),
        })
    }
}
