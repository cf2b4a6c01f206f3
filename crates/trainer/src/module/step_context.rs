//! [`StepContext`]: logs values, and assigns losses to optimizers.

use std::panic::Location;
use std::sync::Arc;

use fulmen_nn::metrics::MetricState;
use fulmen_tensor::{AsTensor, Tensor};

use crate::logs::log_entry::{LogEntry, LogOptions, LoggedValue};
use crate::logs::media::MediaKind;
use crate::recorder::Recorder;
use crate::{Error, Result};

/// The second argument of a step: logs values, and assigns losses to optimizers.
///
/// ```
/// use fulmen_nn::Linear;
/// use fulmen_nn::loss::{Reduction, mse_loss};
/// use fulmen_tensor::Tensor;
/// use fulmen_trainer::{Batch, StepContext};
///
/// fn training_step(layer: &Linear, batch: &Batch, cx: &mut StepContext) -> Tensor {
///     let predicted = layer.forward(batch.get("x"));
///     cx.log("prediction", predicted.mean_all());
///     mse_loss(predicted, batch.get("y"), Reduction::Mean)
/// }
/// ```
#[derive(Debug, Default)]
pub struct StepContext {
    logged: Vec<LogEntry>,
    dataset: String,
    /// Set while a training step is recorded.
    recorder: Option<Box<Recorder>>,
    /// The optimizer whose loss is being recorded.
    minimizing: Option<String>,
    /// The first mistake of the step, if any.
    mistake: Option<Error>,
}

impl StepContext {
    /// Updates the parameters of one of several [`Optimizers`](crate::Optimizers) by the gradient
    /// of a loss, a floating-point scalar: Lightning's manual optimization. Code recorded
    /// afterwards sees the new parameters. With gradient accumulation, that is in the last batch of
    /// a group, where the optimizer steps. The parameters of other optimizers get no gradient from
    /// this loss.
    ///
    /// Call it once for each optimizer in `training_step`. The value that `training_step` returns
    /// is then only logged: as `train_loss`, unless it is one of these losses.
    ///
    /// Everything recorded within `loss` belongs to this optimizer. With
    /// [`every`](crate::Optimizers::every), it becomes a branch of the program, and the steps that
    /// the optimizer skips do not compute it. Put computations that only this branch needs into the
    /// closure.
    ///
    /// The loss is logged as `loss-NAME`. This value and the values that `loss` logs are means over
    /// the steps of this optimizer. Returns the loss of this step, or of the optimizer's latest
    /// step. No gradient flows through it.
    ///
    /// ```
    /// use fulmen_nn::{Linear, loss::{Reduction, mse_loss}};
    /// use fulmen_tensor::Tensor;
    /// use fulmen_trainer::{Batch, StepContext};
    ///
    /// fn training_step(actor: &Linear, critic: &Linear, batch: &Batch, cx: &mut StepContext) -> Tensor {
    ///     let state = batch.get("state");
    ///     cx.minimize("critic", |_| mse_loss(critic.forward(&state), batch.get("reward"), Reduction::Mean));
    ///     cx.minimize("actor", |cx| {
    ///         let value = critic.forward(actor.forward(&state)).mean_all();
    ///         cx.log("value", &value);
    ///         -value
    ///     })
    /// }
    /// ```
    ///
    /// # Errors
    /// A mistake ends the fit before it begins, with this line: an unknown optimizer, a single
    /// optimizer without a name, one that was minimized before, a call outside of `training_step`
    /// or within another, a loss that is not a scalar or depends on none of the optimizer's
    /// parameters. The returned tensor is then poisoned.
    #[track_caller]
    pub fn minimize(
        &mut self,
        optimizer: &str,
        loss: impl FnOnce(&mut StepContext) -> Tensor,
    ) -> Tensor {
        let line = Location::caller();
        let result = match (self.recorder.take(), &self.minimizing) {
            (Some(mut recorder), _) => {
                let result = recorder.minimize(optimizer, line, &mut self.logged, || {
                    let mut cx = StepContext {
                        minimizing: Some(optimizer.into()),
                        ..StepContext::default()
                    };
                    let loss = loss(&mut cx);
                    Ok((loss, cx.into_logged()?))
                });
                self.recorder = Some(recorder);
                result
            }
            (None, minimizing) => Err(Error::usage(match minimizing {
                Some(other) => format!(
                    "minimize(\"{optimizer}\"): it is called within minimize(\"{other}\"); call it before or after\n  at {line}"
                ),
                None => format!(
                    "minimize(\"{optimizer}\"): only training_step can minimize\n  at {line}"
                ),
            })),
        };
        match result {
            Ok(loss) => loss,
            Err(mistake) => {
                let poison = Tensor::poison("minimize", mistake.to_string());
                self.mistake.get_or_insert(mistake);
                poison
            }
        }
    }

    /// The name of the [set](crate::EvaluationSet) for which this `validation_step` or `test_step`
    /// is recorded: Lightning's `dataloader_idx`. Empty in training, and if the loader has no name.
    ///
    /// ```
    /// use fulmen_nn::{Linear, loss::{Reduction, cross_entropy}};
    /// use fulmen_trainer::{Batch, StepContext};
    ///
    /// fn validation_step(model: &Linear, batch: &Batch, cx: &mut StepContext) {
    ///     let smoothing = if cx.dataset() == "noisy" { 0.1 } else { 0.0 };
    ///     let logits = model.forward(&batch.get("x")) * (1.0 - smoothing);
    ///     cx.log("val_loss", &cross_entropy(&logits, &batch.get("y"), Reduction::None));
    /// }
    /// ```
    #[doc(alias = "dataloader_idx")]
    pub fn dataset(&self) -> &str {
        &self.dataset
    }

    /// The context of a step that does not train.
    pub(crate) fn of_dataset(name: &str) -> StepContext {
        StepContext { dataset: name.to_owned(), ..StepContext::default() }
    }

    /// The context of a training step.
    pub(crate) fn recording(recorder: Recorder) -> StepContext {
        StepContext { recorder: Some(Box::new(recorder)), ..StepContext::default() }
    }

    pub(crate) fn take_recorder(&mut self) -> Result<Recorder> {
        let missing = || {
            Error::usage(
                "training_step replaced its StepContext; leave the one that it was given in place",
            )
        };
        self.recorder.take().map(|recorder| *recorder).ok_or_else(missing)
    }

    /// The logged values.
    ///
    /// # Errors
    /// The first mistake of the step.
    pub(crate) fn into_logged(self) -> Result<Vec<LogEntry>> {
        self.mistake.map_or(Ok(self.logged), Err)
    }

    fn push(
        &mut self,
        name: impl Into<String>,
        value: LoggedValue,
        line: &'static Location<'static>,
    ) -> LogOptions<'_> {
        let first = self.logged.len();
        self.logged.push(LogEntry::new(name, value, line));
        LogOptions(&mut self.logged[first..])
    }

    /// Logs a value under a name. The compiled step outputs the value and sums it on the device.
    /// The progress bar, loggers and callbacks receive it. Training logs it over the steps since
    /// the last log point as `NAME`, and over the epoch as `NAME_epoch`. Validation and tests log
    /// it over all samples as `NAME`. The returned [`LogOptions`] choose where it is shown, and
    /// whether it is a mean, a sum, a minimum, a maximum or the latest value.
    ///
    /// A tensor with one value per sample, `[batch]`, is averaged over the real samples, without
    /// padding. A scalar counts as the mean of the batch, weighted by its number of real samples. A
    /// mean that brings its weight ([`with_weight`](fulmen_nn::loss::with_weight)), such as a loss
    /// with ignored targets, is weighted by that.
    /// If batches are padded, compute the scalar with the mask (see
    /// [`Batch::mean`](crate::Batch::mean)); the Trainer checks that.
    #[track_caller]
    pub fn log(&mut self, name: impl Into<String>, value: impl AsTensor) -> LogOptions<'_> {
        let value = LoggedValue::Value(value.as_tensor().clone());
        self.push(name, value, Location::caller())
    }

    /// Logs several values with the same options, each like [`StepContext::log`].
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// use fulmen_trainer::StepContext;
    ///
    /// fn log_losses(cx: &mut StepContext, reconstruction: &Tensor, kl: &Tensor) {
    ///     cx.log_dict([("reconstruction", reconstruction), ("kl", kl)]).prog_bar(false);
    /// }
    /// ```
    #[track_caller]
    pub fn log_dict<N: Into<String>, T: AsTensor>(
        &mut self,
        values: impl IntoIterator<Item = (N, T)>,
    ) -> LogOptions<'_> {
        let first = self.logged.len();
        let line = Location::caller();
        for (name, value) in values {
            self.push(name, LoggedValue::Value(value.as_tensor().clone()), line);
        }
        LogOptions(&mut self.logged[first..])
    }

    /// Logs a metric under a name, from what its `update` computed for this batch. The compiled
    /// step sums the metric's statistics on the device. The value is computed from them when the
    /// host reads them: in training at log points and for the epoch, in validation for all samples.
    /// The value is exact, not a mean over batches.
    ///
    /// If the metric's samples are rows of the batch, `[batch, …]`, padding is left out. For other
    /// samples, [mask](MetricState::masked) the metric with a mask computed from
    /// [`Batch::mask`](crate::Batch::mask); the Trainer checks that.
    ///
    /// ```
    /// use fulmen_nn::{Linear, metrics::F1};
    /// use fulmen_trainer::{Batch, StepContext};
    ///
    /// fn validation_step(model: &Linear, batch: &Batch, cx: &mut StepContext) {
    ///     let logits = model.forward(&batch.get("x"));
    ///     cx.log_metric("val_f1", F1::new(10).update(&logits, &batch.get("y")));
    /// }
    /// ```
    #[track_caller]
    pub fn log_metric(
        &mut self,
        name: impl Into<String>,
        statistics: MetricState,
    ) -> LogOptions<'_> {
        self.push(name, LoggedValue::Metric(statistics), Location::caller())
    }

    /// Logs an image, `[C, H, W]`, or several, `[N, C, H, W]`, with 1, 3 or 4 channels. Values are
    /// u8, or floating-point numbers clamped to 0 to 1. Loggers and callbacks get the images of the
    /// step at each log point. In validation and tests, they get the images of the first batch.
    /// Other steps neither compute nor transfer images.
    ///
    /// ```
    /// use fulmen_trainer::{Batch, StepContext};
    ///
    /// fn training_step(batch: &Batch, cx: &mut StepContext) {
    ///     cx.log_image("inputs", batch.get("image").narrow(0, 0, 8));
    /// }
    /// ```
    #[track_caller]
    pub fn log_image(&mut self, name: impl Into<String>, images: impl AsTensor) {
        let value = LoggedValue::Media(images.as_tensor().clone(), MediaKind::Image);
        self.push(name, value, Location::caller());
    }

    /// Logs a histogram of a tensor's elements: `bins` bins of equal width from the smallest to the
    /// largest value (NumPy's `histogram`). NaN and infinite values are counted separately. If the
    /// batch axis comes first, padding is left out. Histograms are computed at the same steps as
    /// the images of [`StepContext::log_image`].
    ///
    /// ```
    /// use fulmen_nn::Linear;
    /// use fulmen_trainer::StepContext;
    ///
    /// fn log_weights(model: &Linear, cx: &mut StepContext) {
    ///     cx.log_histogram("weight", model.weight.get(), 64);
    /// }
    /// ```
    #[track_caller]
    pub fn log_histogram(&mut self, name: impl Into<String>, values: impl AsTensor, bins: usize) {
        let value = LoggedValue::Media(values.as_tensor().clone(), MediaKind::Histogram(bins));
        self.push(name, value, Location::caller());
    }

    /// Logs texts from token ids, `[T]` or `[N, T]` of an integer type. On the host, `decode` turns
    /// each row into a text. Texts are computed at the same steps as the images of
    /// [`StepContext::log_image`].
    ///
    /// ```
    /// use fulmen_trainer::{Batch, StepContext};
    ///
    /// fn validation_step(batch: &Batch, cx: &mut StepContext) {
    ///     let decode = |ids: &[i64]| ids.iter().filter_map(|&id| char::from_u32(id as u32)).collect();
    ///     cx.log_text("inputs", batch.get("input_ids").narrow(0, 0, 2), decode);
    /// }
    /// ```
    #[track_caller]
    pub fn log_text(
        &mut self,
        name: impl Into<String>,
        ids: impl AsTensor,
        decode: impl Fn(&[i64]) -> String + Send + Sync + 'static,
    ) {
        let value = LoggedValue::Media(ids.as_tensor().clone(), MediaKind::Text(Arc::new(decode)));
        self.push(name, value, Location::caller());
    }
}
