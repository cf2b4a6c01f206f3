//! What a module predicts of a batch: [`Predictions`] as they are recorded, [`Predicted`] as they arrive.

use fulmen_tensor::{Literal, Tensor};

use crate::{Batch, Error, Result};

/// What a [`predict_step`](crate::TrainingModule::predict_step) gives: named tensors, each with a row a sample, `[batch, …]`.
///
/// ```
/// use fulmen_tensor::{DType, Tensor};
/// use fulmen_trainer::Predictions;
///
/// let (digit, probability) = (Tensor::zeros(DType::I32, [8]), Tensor::zeros(DType::F32, [8]));
/// let several = Predictions::from([("digit", digit.clone()), ("probability", probability)]);
/// let one: Predictions = digit.into(); // has the name `prediction`
/// # let _ = (several, one);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Predictions(pub(crate) Vec<(String, Tensor)>);

impl From<Tensor> for Predictions {
    fn from(tensor: Tensor) -> Predictions {
        [("prediction", tensor)].into()
    }
}

impl<S: Into<String>, const N: usize> From<[(S, Tensor); N]> for Predictions {
    fn from(tensors: [(S, Tensor); N]) -> Predictions {
        Predictions(tensors.into_iter().map(|(name, tensor)| (name.into(), tensor)).collect())
    }
}

impl Predictions {
    /// Each row belongs to a sample, and a name to one tensor.
    pub(crate) fn check(&self, batch: &Batch) -> Result<()> {
        if self.0.is_empty() {
            return Err(Error::usage(
                "the module predicts nothing; write its predict_step(), and return what it computes of a batch",
            ));
        }
        for (i, (name, tensor)) in self.0.iter().enumerate() {
            tensor.check()?;
            let at = |problem: String| {
                Err(Error::usage(format!("predict_step: `{name}` {problem}\n  at {}", tensor.location())))
            };
            if name.is_empty() || self.0[..i].iter().any(|earlier| earlier.0 == *name) {
                return at("names two tensors or none; names differ and are not empty".into());
            }
            if tensor.shape().dims().first() != Some(&batch.size()) {
                let (ty, rows) = (tensor.ty(), batch.size());
                return at(format!("is {ty}; it must have a row for each sample of the batch, [{rows}, …]"));
            }
        }
        Ok(())
    }
}

/// Predictions on the host for some samples, in the order of the loader: named values, each with a row a sample.
#[derive(Debug)]
pub struct Predicted {
    pub(crate) values: Vec<(String, Literal)>,
}

impl Predicted {
    /// The values of this name.
    pub fn get(&self, name: &str) -> Option<&Literal> {
        self.values.iter().find(|value| value.0 == name).map(|value| &value.1)
    }

    /// Names and values, in the order in which the module gave them.
    pub fn values(&self) -> &[(String, Literal)] {
        &self.values
    }

    /// How many samples these are the predictions of.
    pub fn num_samples(&self) -> usize {
        self.values.first().and_then(|value| value.1.ty().shape.dims().first()).copied().unwrap_or(0)
    }

    pub(crate) fn into_values(self) -> Vec<(String, Literal)> {
        self.values
    }
}
