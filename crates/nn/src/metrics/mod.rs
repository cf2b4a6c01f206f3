//! Metrics of model quality over any number of samples, with torchmetrics' names.
//!
//! A metric consists of sums. `update` records the sums of one batch ([`MetricState`]). The sums of
//! all batches are added, and the metric's [`Value`] is computed from the total. So the value of an
//! epoch is exact for every batch size and every number of devices or processes, and samples are
//! not stored.
//!
//! In a training module, `cx.log_metric(name, &state)` makes the sums part of the compiled step and
//! leaves out padding. Outside a training module:
//!
//! ```
//! use fulmen_nn::metrics::{Average, F1};
//! use fulmen_tensor::Tensor;
//!
//! let f1 = F1::new(3).average(Average::Macro);
//! let logits = Tensor::from_slice(&[2.0f32, 0.0, 1.0, 0.0, 3.0, 1.0], [2, 3]);
//! let mut sums = f1.update(&logits, &Tensor::from_slice(&[0i32, 2], [2])).eval()?;
//! let padded = f1.update(&logits, &Tensor::from_slice(&[1i32, 0], [2])).masked(&Tensor::from_slice(&[true, false], [2]));
//! sums.merge(&padded.eval()?)?;
//! let value = sums.compute().scalar().ok_or("no single number")?;
//! assert!((value - (2.0 / 3.0 + 0.0 + 0.0) / 3.0).abs() < 1e-12);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! To write your own metric, implement [`Metric`]. For one number per sample, such as [`correct`],
//! you need no metric: `cx.log` takes the mean.

mod average;
mod bleu;
mod confusion;
mod correct;
mod curve;
mod error_rate;
mod frechet;
mod inception_score;
mod labels;
mod mean;
mod metric;
mod perplexity;
mod regression;
mod scores;
mod token_bleu;

pub use average::Average;
pub use bleu::Bleu;
pub use confusion::{ConfusionMatrix, Normalize};
pub use correct::correct;
pub use curve::{Auroc, AveragePrecision};
pub use error_rate::ErrorRate;
pub use frechet::FrechetDistance;
pub use inception_score::InceptionScore;
pub use mean::Mean;
pub use metric::{Metric, MetricState, Sums, Value};
pub use perplexity::Perplexity;
pub use regression::{MeanAbsoluteError, MeanSquaredError, R2Score};
pub use scores::{Accuracy, F1, JaccardIndex, Precision, Recall};
pub use token_bleu::TokenBleu;
