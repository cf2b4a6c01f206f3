//! The model and how it is trained.

use fulmen::prelude::*;

/// Two hidden layers.
#[derive(Module)]
pub(crate) struct Classifier {
    fc1: Linear,
    fc2: Linear,
    fc3: Linear,
    learning_rate: f64,
}

impl Classifier {
    /// A network without values; the Trainer initializes it.
    pub(crate) fn new(learning_rate: f64) -> Classifier {
        Self {
            fc1: Linear::new(2, 64),
            fc2: Linear::new(64, 64),
            fc3: Linear::new(64, 2),
            learning_rate,
        }
    }

    /// Maps points `f32[batch, 2]` to logits `f32[batch, 2]`.
    fn forward(&self, points: &Tensor) -> Tensor {
        let x = self.fc1.forward(points).relu();
        let x = self.fc2.forward(x).relu();
        self.fc3.forward(x)
    }

    /// Logs the loss and the accuracy of each sample.
    fn evaluate(&self, stage: &str, batch: &Batch, cx: &mut StepContext) {
        let logits = self.forward(&batch.get("point"));
        let spirals = batch.get("spiral");
        let loss = loss::cross_entropy(&logits, &spirals, Reduction::None);
        cx.log(format!("{stage}_loss"), loss);
        cx.log(format!("{stage}_acc"), metrics::correct(logits, spirals));
    }
}

impl TrainingModule for Classifier {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
        let logits = self.forward(&batch.get("point"));
        let spirals = batch.get("spiral");
        cx.log("train_acc", metrics::correct(&logits, &spirals));
        loss::cross_entropy(logits, spirals, Reduction::Mean)
    }

    fn validation_step(&self, batch: &Batch, cx: &mut StepContext) {
        self.evaluate("val", batch, cx);
    }

    fn test_step(&self, batch: &Batch, cx: &mut StepContext) {
        self.evaluate("test", batch, cx);
    }

    fn predict_step(&self, batch: &Batch) -> Predictions {
        let probabilities = self.forward(&batch.get("point")).softmax(-1);
        [("spiral", probabilities.argmax(-1))].into()
    }

    fn configure_optimizers(&self, plan: &Plan) -> Box<dyn Optimizer> {
        let schedule = schedule::OneCycle::new(self.learning_rate, plan.total_steps);
        Box::new(optim::AdamW::new(schedule))
    }
}
