//! [`Batch`]: the symbolic batch that a step is traced with.

use fulmen_data::{DataLoader, Field};
use fulmen_tensor::{AsTensor, DType, Tensor, TensorType};

/// A batch of samples as a step sees it: the data set's fields by name, each with the batch axis
/// first, and a mask that distinguishes samples from padding.
/// ```
/// use fulmen_nn::Linear;
/// use fulmen_nn::loss::{Reduction, cross_entropy};
/// use fulmen_tensor::Tensor;
/// use fulmen_trainer::Batch;
///
/// /// The fields `image` (f32[batch, 784]) and `label` (i32[batch]).
/// fn loss(layer: &Linear, batch: &Batch) -> Tensor {
///     let logits = layer.forward(batch.get("image") / 255.0);
///     let losses = cross_entropy(logits, batch.get("label"), Reduction::None);
///     // The mean over the samples, without padding.
///     batch.mean(losses)
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Batch {
    /// The program's inputs.
    inputs: Vec<Tensor>,
    /// The fields by name, as a step sees them.
    fields: Vec<(String, Tensor)>,
    mask: Tensor,
    padded: bool,
}

impl Batch {
    /// Placeholders for the batches of a loader, one for each of its shapes. If `floats` is given,
    /// floating-point fields are converted to it.
    pub(crate) fn placeholders(loader: &DataLoader, floats: Option<DType>) -> Vec<Batch> {
        let of_shape =
            |fields: &Vec<Field>| Batch::new(fields, loader.batch_size(), loader.pads(), floats);
        loader.shapes().iter().map(of_shape).collect()
    }

    /// Placeholders for batches of the loader's largest shape, with `batch` rows.
    pub(crate) fn of_size(loader: &DataLoader, batch: usize, floats: Option<DType>) -> Batch {
        Batch::new(loader.fields(), batch, loader.pads(), floats)
    }

    fn new(declared: &[Field], batch: usize, padded: bool, floats: Option<DType>) -> Batch {
        let mut inputs = Vec::new();
        let mut fields = Vec::new();
        for field in declared {
            let ty = TensorType::new(field.dtype, [&[batch], &field.shape[..]].concat());
            let input = Tensor::placeholder(format!("batch.{}", field.name), ty);
            let converted = match floats.filter(|_| field.dtype.is_float()) {
                Some(dtype) => input.to_dtype(dtype),
                None => input.clone(),
            };
            fields.push((field.name.clone(), converted));
            inputs.push(input);
        }
        let mask = Tensor::placeholder("batch.mask", TensorType::new(DType::F32, [batch]));
        inputs.push(mask.clone());
        Batch { inputs, fields, mask, padded }
    }

    /// The placeholders in the order of the loader's buffers: the fields, then the mask.
    pub(crate) fn inputs(&self) -> impl Iterator<Item = &Tensor> {
        self.inputs.iter()
    }

    /// The field with this name, `[batch, …]`. For an unknown name, returns a poisoned tensor whose
    /// message lists the known names.
    #[track_caller]
    pub fn get(&self, name: &str) -> Tensor {
        match self.fields.iter().find(|f| f.0 == name) {
            Some((_, tensor)) => tensor.clone(),
            None => {
                let known: Vec<_> = self.fields.iter().map(|f| f.0.as_str()).collect();
                Tensor::poison(
                    "batch",
                    format!("there is no field `{name}`; the data set has: {}", known.join(", ")),
                )
            }
        }
    }

    /// 1 for each sample and 0 for each row of padding: f32 `[batch]`.
    pub fn mask(&self) -> &Tensor {
        &self.mask
    }

    /// Whether a batch of the loader can end with padding.
    pub fn is_padded(&self) -> bool {
        self.padded
    }

    /// The number of rows, including padding.
    pub fn size(&self) -> usize {
        self.mask.size(0)
    }

    /// The mean over the real samples of a tensor with one value per sample, `[batch]`, as a
    /// scalar. With several values per sample, `[batch, …]`, it is the mean over all of them.
    ///
    /// Poisoned if the first axis is not the batch axis.
    #[track_caller]
    pub fn mean(&self, per_sample: impl AsTensor) -> Tensor {
        let per_sample = per_sample.as_tensor();
        if per_sample.fault().is_some() {
            return per_sample.clone();
        }
        if per_sample.shape().dims().first() != Some(&self.size()) {
            let message = format!(
                "needs at least one value per sample, [{}, ..], got {}",
                self.size(),
                per_sample.ty()
            );
            return Tensor::poison("mean", message);
        }
        let other_axes: Vec<isize> = (1..per_sample.rank() as isize).collect();
        let (sum, count) = self.sum_and_count(&per_sample.to_dtype(DType::F32).mean(&other_axes));
        (sum / count.maximum(1.0)).to_dtype(per_sample.dtype())
    }

    /// The sum over the real samples, and their number, as f32 scalars.
    #[track_caller]
    pub(crate) fn sum_and_count(&self, per_sample: &Tensor) -> (Tensor, Tensor) {
        let values = per_sample.to_dtype(DType::F32);
        // Select instead of multiplying: 0 times an infinite value would be NaN.
        let real = self.mask.gt(0.0).select(&values, &values.zeros_like());
        (real.sum_all(), self.mask.sum_all())
    }
}
