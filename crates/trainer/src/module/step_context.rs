//! [`StepContext`]: what a step can say besides its result: values to log, and which optimizer minimizes which loss.

use std::panic::Location;
use std::sync::Arc;

use fulmen_nn::metrics::MetricState;
use fulmen_tensor::{AsTensor, Tensor};

use crate::logs::logged::{LogOptions, Logged, LoggedValue};
use crate::logs::media::MediaKind;
use crate::recorder::Recorder;
use crate::{Error, Result};

/// What a step can say besides its result.
#[derive(Debug, Default)]
pub struct StepContext {
    logged: Vec<Logged>,
    dataset: String,
    /// There while a training step is recorded.
    recorder: Option<Box<Recorder>>,
    /// The optimizer whose loss is being recorded.
    within: Option<String>,
    /// The first mistake.
    mistake: Option<Error>,
}

impl StepContext {
    /// Lets one of several [`Optimizers`](crate::Optimizers) step by the gradient of a loss, a floating-point scalar, with
    /// respect to its parameters: Lightning's manual optimization. What is recorded afterwards sees the new values of the
    /// parameters. Those of other optimizers get no gradient from this loss.
    ///
    /// Each optimizer is minimized once in `training_step`. What `training_step` returns is then only logged: as
    /// `train_loss`, unless it is one of these losses.
    ///
    /// What is recorded within `loss` belongs to this optimizer. With [`every`](crate::Optimizers::every) it is a branch of
    /// the program: a step that the optimizer skips does not compute it. Compute within the closure what the branch alone needs.
    ///
    /// The loss is logged as `loss-NAME`, and what `loss` logs besides, as means over the steps that the optimizer made.
    /// Returned is the loss of this step, or of the latest that the optimizer made; no gradient flows through it.
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
    /// A mistake ends the fit before it begins, with this line: an optimizer that is not there, is a single one without a
    /// name or was minimized before, a call outside of `training_step` or within another, a loss that is not a scalar or
    /// depends on none of the optimizer's parameters. The tensor that is returned is poisoned then.
    #[track_caller]
    pub fn minimize(&mut self, optimizer: &str, loss: impl FnOnce(&mut StepContext) -> Tensor) -> Tensor {
        let at = Location::caller();
        let result = match (self.recorder.take(), &self.within) {
            (Some(mut recorder), _) => {
                let result = recorder.minimize(optimizer, at, &mut self.logged, || {
                    let mut cx = StepContext { within: Some(optimizer.into()), ..StepContext::default() };
                    let loss = loss(&mut cx);
                    Ok((loss, cx.into_logged()?))
                });
                self.recorder = Some(recorder);
                result
            }
            (None, within) => Err(Error::usage(match within {
                Some(other) => format!(
                    "minimize(\"{optimizer}\"): it is called within minimize(\"{other}\"); put it before or after\n  at {at}"
                ),
                None => format!("minimize(\"{optimizer}\"): only training_step can minimize\n  at {at}"),
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

    /// The name of the [set](crate::EvaluationSet) that this `validation_step` or `test_step` is recorded for: Lightning's
    /// `dataloader_idx`. Empty where the loader has no name, and in training.
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
        let gone = || Error::usage("training_step must give back the StepContext that it was given");
        self.recorder.take().map(|recorder| *recorder).ok_or_else(gone)
    }

    /// What was logged.
    ///
    /// # Errors
    /// The first mistake.
    pub(crate) fn into_logged(self) -> Result<Vec<Logged>> {
        self.mistake.map_or(Ok(self.logged), Err)
    }

    fn push(
        &mut self,
        name: impl Into<String>,
        value: LoggedValue,
        line: &'static Location<'static>,
    ) -> LogOptions<'_> {
        let first = self.logged.len();
        self.logged.push(Logged::new(name, value, line));
        LogOptions(&mut self.logged[first..])
    }

    /// Logs a value under a name. It is an output of the compiled step, added up on the device, and reaches progress
    /// bar, loggers and callbacks: in training over the steps since the last log point as `NAME` and over the epoch as
    /// `NAME_epoch`, in validation and test over all samples as `NAME`. The [`LogOptions`] that it returns choose where it
    /// is shown, and whether it is a mean, a sum, the smallest, the largest or the latest value.
    ///
    /// A tensor with one value a sample, `[batch]`, is averaged over the real samples: padding is left out. A scalar
    /// is taken as the mean of the batch and weighted by its number of real samples; where batches are padded it must
    /// have been computed with the mask (see [`Batch::mean`](crate::Batch::mean)), which is checked.
    #[track_caller]
    pub fn log(&mut self, name: impl Into<String>, value: impl AsTensor) -> LogOptions<'_> {
        let value = LoggedValue::Value(value.as_tensor().clone());
        self.push(name, value, Location::caller())
    }

    /// Logs several values with the same choices, each as [`StepContext::log`] does.
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
        let (first, line) = (self.logged.len(), Location::caller());
        for (name, value) in values {
            self.push(name, LoggedValue::Value(value.as_tensor().clone()), line);
        }
        LogOptions(&mut self.logged[first..])
    }

    /// Logs a metric under a name: what its `update` made of this batch. The sums are part of the compiled step and are
    /// added up on the device; the value is computed of them when they are read, in training at log points and for the
    /// epoch, in validation for all samples. It is exact: not a mean of the batches' values.
    ///
    /// Padding is left out where the metric's samples are rows of the batch, `[batch, …]`. Of other samples the metric
    /// must have been [masked](MetricState::masked) by what is computed from [`Batch::mask`](crate::Batch::mask), which is
    /// checked.
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
    pub fn log_metric(&mut self, name: impl Into<String>, statistics: MetricState) -> LogOptions<'_> {
        self.push(name, LoggedValue::Metric(statistics), Location::caller())
    }

    /// Logs a picture, `[C, H, W]`, or several, `[N, C, H, W]`, with 1, 3 or 4 channels: u8, or floating-point numbers from
    /// 0 to 1 (values outside are clamped). Loggers and callbacks get those of the step at each log point; in validation
    /// and test, those of the first batch. The other steps compute and transfer nothing for it.
    ///
    /// ```
    /// use fulmen_trainer::{Batch, StepContext};
    ///
    /// fn training_step(batch: &Batch, cx: &mut StepContext) {
    ///     cx.log_image("inputs", batch.get("image").narrow(0, 0, 8));
    /// }
    /// ```
    #[track_caller]
    pub fn log_image(&mut self, name: impl Into<String>, pictures: impl AsTensor) {
        let value = LoggedValue::Media(pictures.as_tensor().clone(), MediaKind::Image);
        self.push(name, value, Location::caller());
    }

    /// Logs how the elements of a tensor are distributed: how many fall into each of `bins` parts of the same width between
    /// the smallest and the largest (NumPy's `histogram`). What is not finite is counted apart. Padding is left out of a
    /// tensor with the batch axis first. When it is computed: as [`StepContext::log_image`].
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

    /// Logs texts: token ids, `[T]` or `[N, T]` of an integer type, which `decode` turns into a text on the host, row by row.
    /// When: as [`StepContext::log_image`].
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
