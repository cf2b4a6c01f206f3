//! The network and how it is trained.

use fulmen::prelude::*;

/// Two blocks of convolution, batch normalization and pooling, then a linear classifier.
#[derive(Module)]
pub(crate) struct Digits {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    conv2: Conv2d,
    bn2: BatchNorm2d,
    pool: MaxPool2d,
    dropout: Dropout,
    fc1: Linear,
    fc2: Linear,
    learning_rate: f64,
}

impl Digits {
    /// A network without values; the Trainer initializes it.
    pub(crate) fn new(learning_rate: f64) -> Digits {
        Digits {
            conv1: Conv2d::new(1, 16, 3).padding(1),
            bn1: BatchNorm2d::new(16),
            conv2: Conv2d::new(16, 32, 3).padding(1),
            bn2: BatchNorm2d::new(32),
            pool: MaxPool2d::new(2),
            dropout: Dropout::new(0.3),
            fc1: Linear::new(32 * 7 * 7, 128),
            fc2: Linear::new(128, 10),
            learning_rate,
        }
    }

    /// From images `u8[batch, 1, 28, 28]` to logits `f32[batch, 10]`.
    pub(crate) fn forward(&self, images: &Tensor) -> Tensor {
        // Normalized on the device, so only one byte per pixel is transferred instead of four.
        let x = (images.to_dtype(DType::F32) / 255.0 - 0.1307) / 0.3081;
        let x = self.pool.forward(self.bn1.forward(self.conv1.forward(x)).relu());
        let x = self.pool.forward(self.bn2.forward(self.conv2.forward(x)).relu());
        let x = self.fc1.forward(self.dropout.forward(x.flatten(1, -1))).relu();
        self.fc2.forward(self.dropout.forward(x))
    }

    /// Logs the loss and the accuracy of each sample.
    fn evaluate(&self, stage: &str, batch: &Batch, cx: &mut StepContext) {
        let logits = self.forward(&batch.get("image"));
        let labels = batch.get("label");
        cx.log(format!("{stage}_loss"), loss::cross_entropy(&logits, &labels, Reduction::None));
        cx.log(format!("{stage}_acc"), metrics::correct(logits, labels));
    }
}

impl TrainingModule for Digits {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
        let logits = self.forward(&batch.get("image"));
        let labels = batch.get("label");
        cx.log("train_acc", metrics::correct(&logits, &labels));
        loss::cross_entropy(logits, labels, Reduction::Mean)
    }

    fn validation_step(&self, batch: &Batch, cx: &mut StepContext) {
        self.evaluate("val", batch, cx);
    }

    fn test_step(&self, batch: &Batch, cx: &mut StepContext) {
        self.evaluate("test", batch, cx);
    }

    fn predict_step(&self, batch: &Batch) -> Predictions {
        let probabilities = self.forward(&batch.get("image")).softmax(-1);
        [("digit", probabilities.argmax(-1)), ("probability", probabilities.max(-1))].into()
    }

    fn configure_optimizers(&self, plan: &Plan) -> Box<dyn Optimizer> {
        let schedule = schedule::OneCycle::new(self.learning_rate, plan.total_steps);
        Box::new(optim::AdamW::new(schedule).weight_decay(0.05))
    }
}
