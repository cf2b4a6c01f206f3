//! [`TrainingFn`]: a [`TrainingModule`] made of a model and closures.

use fulmen_nn::optim::Optimizer;
use fulmen_nn::{Module, Visit};
use fulmen_tensor::Tensor;

use crate::{Batch, Plan, Predictions, StepContext, TrainingModule};

/// A model whose training step and optimizer are closures: a [`TrainingModule`] for
/// [`Trainer::train_step`] and [`Trainer::fit`]. The model can be any module, including one from a
/// library.
///
/// ```
/// use fulmen_nn::{Linear, loss, optim};
/// use fulmen_trainer::TrainingFn;
///
/// let model = Linear::new(8, 3);
/// let module = TrainingFn::new(
///     &model,
///     |model, batch, _| loss::cross_entropy(&model.forward(&batch.get("x")), &batch.get("y"), loss::Reduction::Mean),
///     |_| optim::AdamW::new(1e-3),
/// )
/// .validation_step(|model, batch, cx| {
///     let losses = loss::cross_entropy(&model.forward(&batch.get("x")), &batch.get("y"), loss::Reduction::None);
///     cx.log("val_loss", &losses);
/// })
/// .predict_step(|model, batch| model.forward(&batch.get("x")).softmax(-1));
/// # let _ = module;
/// ```
///
/// [`Trainer::train_step`]: crate::Trainer::train_step
/// [`Trainer::fit`]: crate::Trainer::fit
#[must_use]
pub struct TrainingFn<'a, M> {
    model: &'a M,
    training: TrainingStepFn<'a, M>,
    optimizer: MakeOptimizer<'a>,
    validation: EvalStepFn<'a, M>,
    test: EvalStepFn<'a, M>,
    prediction: Option<PredictStepFn<'a, M>>,
}

type TrainingStepFn<'a, M> = Box<dyn Fn(&M, &Batch, &mut StepContext) -> Tensor + 'a>;
type MakeOptimizer<'a> = Box<dyn Fn(&Plan) -> Box<dyn Optimizer> + 'a>;
type PredictStepFn<'a, M> = Box<dyn Fn(&M, &Batch) -> Predictions + 'a>;
type EvalStepFn<'a, M> = Option<Box<dyn Fn(&M, &Batch, &mut StepContext) + 'a>>;

impl<'a, M: Module> TrainingFn<'a, M> {
    /// Makes a training module from a model, a closure for [`TrainingModule::training_step`], and a
    /// closure that makes the optimizer.
    pub fn new<O: Optimizer + 'static>(
        model: &'a M,
        training_step: impl Fn(&M, &Batch, &mut StepContext) -> Tensor + 'a,
        optimizer: impl Fn(&Plan) -> O + 'a,
    ) -> TrainingFn<'a, M> {
        let optimizer =
            Box::new(move |plan: &Plan| Box::new(optimizer(plan)) as Box<dyn Optimizer>);
        TrainingFn {
            model,
            training: Box::new(training_step),
            optimizer,
            validation: None,
            test: None,
            prediction: None,
        }
    }

    /// Sets the closure for [`TrainingModule::validation_step`].
    pub fn validation_step(
        mut self,
        step: impl Fn(&M, &Batch, &mut StepContext) + 'a,
    ) -> TrainingFn<'a, M> {
        self.validation = Some(Box::new(step));
        self
    }

    /// Sets the closure for [`TrainingModule::test_step`].
    pub fn test_step(
        mut self,
        step: impl Fn(&M, &Batch, &mut StepContext) + 'a,
    ) -> TrainingFn<'a, M> {
        self.test = Some(Box::new(step));
        self
    }

    /// Sets the closure for [`TrainingModule::predict_step`]. It returns a tensor, or several named
    /// ones.
    pub fn predict_step<P: Into<Predictions>>(
        mut self,
        step: impl Fn(&M, &Batch) -> P + 'a,
    ) -> TrainingFn<'a, M> {
        self.prediction = Some(Box::new(move |model, batch| step(model, batch).into()));
        self
    }
}

impl<M: Module> Module for TrainingFn<'_, M> {
    fn visit(&self, visit: &mut Visit<'_>) {
        self.model.visit(visit);
    }
}

impl<M: Module> TrainingModule for TrainingFn<'_, M> {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
        (self.training)(self.model, batch, cx)
    }

    fn validation_step(&self, batch: &Batch, cx: &mut StepContext) {
        if let Some(step) = &self.validation {
            step(self.model, batch, cx);
        }
    }

    fn test_step(&self, batch: &Batch, cx: &mut StepContext) {
        if let Some(step) = &self.test {
            step(self.model, batch, cx);
        }
    }

    fn type_of_model(&self) -> &'static str {
        std::any::type_name::<M>()
    }

    fn predict_step(&self, batch: &Batch) -> Predictions {
        match &self.prediction {
            Some(step) => step(self.model, batch),
            None => Predictions::default(),
        }
    }

    fn configure_optimizers(&self, plan: &Plan) -> Box<dyn Optimizer> {
        (self.optimizer)(plan)
    }
}
