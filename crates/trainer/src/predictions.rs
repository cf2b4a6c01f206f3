//! Predictions of a module: [`Predictions`] while they are recorded, [`Predicted`] on the host.

use fulmen_tensor::{Literal, Tensor};

use crate::{Batch, Error, Result};

/// The return value of [`predict_step`](crate::TrainingModule::predict_step): named tensors, each
/// with one row per sample, `[batch, …]`.
///
/// ```
/// use fulmen_tensor::{DType, Tensor};
/// use fulmen_trainer::Predictions;
///
/// let digit = Tensor::zeros(DType::I32, [8]);
/// let probability = Tensor::zeros(DType::F32, [8]);
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
    /// Checks that each tensor has one row per sample and its own name.
    pub(crate) fn check(&self, batch: &Batch) -> Result<()> {
        if self.0.is_empty() {
            return Err(Error::usage(
                "the module predicts nothing; implement predict_step() and return the predictions for a batch",
            ));
        }
        for (i, (name, tensor)) in self.0.iter().enumerate() {
            tensor.check()?;
            let error = |problem: String| {
                Err(Error::usage(format!(
                    "predict_step: `{name}` {problem}\n  at {}",
                    tensor.location()
                )))
            };
            if name.is_empty() || self.0[..i].iter().any(|earlier| earlier.0 == *name) {
                return error(
                    "is empty or names two tensors; give each tensor a different name".into(),
                );
            }
            if tensor.shape().dims().first() != Some(&batch.size()) {
                let ty = tensor.ty();
                let rows = batch.size();
                return error(format!(
                    "is {ty}; it must have a row for each sample of the batch, [{rows}, …]"
                ));
            }
        }
        Ok(())
    }
}

/// Predictions on the host for some samples, in the order of the loader: named values, each with
/// one row per sample.
#[derive(Debug)]
pub struct Predicted {
    pub(crate) values: Vec<(String, Literal)>,
    /// Where each sample comes from, if the loader knows it.
    pub(crate) origins: Option<Vec<String>>,
}

impl Predicted {
    /// Where each sample comes from, if the dataset knows it: its file, and its place there if the
    /// file has several samples ([`DataLoader::origins`](fulmen_data::DataLoader::origins)).
    pub fn origins(&self) -> Option<&[String]> {
        self.origins.as_deref()
    }

    /// The value with this name.
    pub fn get(&self, name: &str) -> Option<&Literal> {
        self.values.iter().find(|value| value.0 == name).map(|value| &value.1)
    }

    /// Names and values, in the module's order.
    pub fn values(&self) -> &[(String, Literal)] {
        &self.values
    }

    /// The number of samples in these predictions.
    pub fn num_samples(&self) -> usize {
        self.values
            .first()
            .and_then(|value| value.1.ty().shape.dims().first())
            .copied()
            .unwrap_or(0)
    }

    pub(crate) fn into_values(self) -> Vec<(String, Literal)> {
        self.values
    }
}
