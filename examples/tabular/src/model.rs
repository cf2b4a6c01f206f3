//! The network and its training.

use fulmen::cli::clap;
use fulmen::nn::Buffer;
use fulmen::nn::metrics::{MeanAbsoluteError, R2Score};
use fulmen::nn::optim::ParamGroups;
use fulmen::prelude::*;

use crate::columns::{Columns, category};

/// The network and the training recipe.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Recipe")]
pub(crate) struct Recipe {
    /// The number of features of each hidden layer.
    #[arg(long, value_delimiter = ',', default_value = "64,64")]
    hidden: Vec<usize>,
    /// The dropout after each hidden layer.
    #[arg(long, default_value_t = 0.1)]
    dropout: f64,
    /// The highest learning rate of the one-cycle schedule.
    #[arg(long, default_value_t = 5e-3)]
    learning_rate: f64,
    /// The weight decay of matrices; biases have none.
    #[arg(long, default_value_t = 0.01)]
    weight_decay: f64,
}

/// A network that standardizes numbers, embeds categories, and passes both to a multilayer
/// perceptron. The output is logits or a number.
#[derive(Module)]
pub(crate) struct Tabular {
    numbers: Standardization,
    embeddings: Vec<Embedding>,
    mlp: Sequential,
    /// The standardization of the target, for regression.
    target: Option<Standardization>,
    #[module(skip)]
    recipe: Recipe,
}

/// Means and standard deviations of the training data. They are saved with the weights.
#[derive(Module)]
pub(crate) struct Standardization {
    mean: Buffer,
    deviation: Buffer,
}

impl Standardization {
    /// The mean and the deviation have the shape `[columns]`.
    pub(crate) fn new(mean: Vec<f32>, deviation: Vec<f32>) -> Standardization {
        let buffer = |values: Vec<f32>| Buffer::new(Tensor::from_slice(&values, [values.len()]));
        Standardization { mean: buffer(mean), deviation: buffer(deviation) }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        (x - self.mean.get()) / self.deviation.get()
    }

    fn inverse(&self, x: &Tensor) -> Tensor {
        x * self.deviation.get() + self.mean.get()
    }
}

impl Tabular {
    /// `target` is the standardization of the target, for regression.
    pub(crate) fn new(
        columns: &Columns,
        numbers: Standardization,
        target: Option<Standardization>,
        recipe: Recipe,
    ) -> Tabular {
        // A second feature for each number says whether it is missing.
        let mut features = 2 * columns.numbers.len();
        let mut embeddings = Vec::new();
        for (_, names) in &columns.categories {
            let width = names.len().div_ceil(2).min(50);
            embeddings.push(Embedding::new(names.len(), width));
            features += width;
        }
        let mut mlp = Sequential::new();
        for &hidden in &recipe.hidden {
            mlp = mlp
                .add(Linear::new(features, hidden))
                .add(Relu::new())
                .add(Dropout::new(recipe.dropout));
            features = hidden;
        }
        let mlp = mlp.add(Linear::new(features, columns.classes.as_ref().map_or(1, Vec::len)));
        Tabular { numbers, embeddings, mlp, target, recipe }
    }

    /// Logits `[batch, classes]`, or a standardized number `[batch, 1]`.
    fn forward(&self, batch: &Batch) -> Tensor {
        let numbers = self.numbers.forward(&batch.get("numbers"));
        let missing = numbers.is_nan(); // replaced by the mean
        let mut features = vec![numbers.masked_fill(&missing, 0.0), missing.to_dtype(DType::F32)];
        for (index, embedding) in self.embeddings.iter().enumerate() {
            features.push(embedding.forward(batch.get(&category(index))));
        }
        self.mlp.forward(Tensor::concatenate(&features, -1))
    }

    /// The loss of each sample.
    fn losses(&self, output: &Tensor, batch: &Batch) -> Tensor {
        let target = batch.get("target");
        match &self.target {
            None => loss::cross_entropy(output, target, Reduction::None),
            Some(standardization) => {
                let target = standardization.forward(&target.unsqueeze(-1));
                loss::mse_loss(output, target, Reduction::None).squeeze(-1)
            }
        }
    }

    /// Logs the loss and the accuracy. For regression, logs the mean absolute error and the
    /// coefficient of determination in the target's unit instead of the accuracy.
    fn evaluate(&self, stage: &str, batch: &Batch, cx: &mut StepContext) {
        let output = self.forward(batch);
        let target = batch.get("target");
        cx.log(format!("{stage}_loss"), self.losses(&output, batch));
        match &self.target {
            None => {
                cx.log(format!("{stage}_acc"), metrics::correct(output, target));
            }
            Some(standardization) => {
                let prediction = standardization.inverse(&output).squeeze(-1);
                cx.log_metric(
                    format!("{stage}_mae"),
                    MeanAbsoluteError::new().update(&prediction, &target),
                );
                cx.log_metric(format!("{stage}_r2"), R2Score::new().update(&prediction, &target));
            }
        }
    }
}

impl TrainingModule for Tabular {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        batch.mean(self.losses(&self.forward(batch), batch))
    }

    fn validation_step(&self, batch: &Batch, cx: &mut StepContext) {
        self.evaluate("val", batch, cx);
    }

    fn test_step(&self, batch: &Batch, cx: &mut StepContext) {
        self.evaluate("test", batch, cx);
    }

    fn predict_step(&self, batch: &Batch) -> Predictions {
        let output = self.forward(batch);
        match &self.target {
            None => {
                let probabilities = output.softmax(-1);
                [("class", probabilities.argmax(-1)), ("probability", probabilities.max(-1))].into()
            }
            Some(standardization) => {
                [("prediction", standardization.inverse(&output).squeeze(-1))].into()
            }
        }
    }

    fn configure_optimizers(&self, plan: &Plan) -> Box<dyn Optimizer> {
        let schedule = schedule::OneCycle::new(self.recipe.learning_rate, plan.total_steps);
        let adam = optim::AdamW::new(schedule).weight_decay(self.recipe.weight_decay);
        Box::new(ParamGroups::new(adam).no_decay_on_biases_and_norms())
    }
}
