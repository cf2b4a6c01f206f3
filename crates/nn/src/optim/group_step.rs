//! [`GroupStep`]: what an optimizer does with a group of parameters in one step, as monitors log
//! it.

use fulmen_tensor::Tensor;

/// What an optimizer does with a group of parameters in one step.
///
/// ```
/// use fulmen_nn::optim::{Optimizer, ParamGroups, Sgd, Step};
/// use fulmen_tensor::{DType, Tensor, TensorType};
///
/// let optimizer = ParamGroups::new(Sgd::new(0.1).momentum(0.9)).lr_factor("head.*", 10.0);
/// let step = Step::new(&Tensor::scalar(0i32));
/// let matrix = TensorType::new(DType::F32, [8, 8]);
/// let head = optimizer.group_step(&step, "head.weight", &matrix);
/// assert_eq!((head.name.as_str(), head.learning_rate.eval()?.to_vec::<f32>()?), ("head.*", vec![1.0]));
/// assert_eq!(head.momentum.unwrap().eval()?.to_vec::<f32>()?, [0.9]);
/// assert_eq!(optimizer.group_step(&step, "body.weight", &matrix).name, "");
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct GroupStep {
    /// The pattern that defines the group; empty for the parameters that no pattern matches.
    pub name: String,
    /// The learning rate, an f32 scalar.
    pub learning_rate: Tensor,
    /// The momentum (`momentum`, or the first of Adam's `betas`), an f32 scalar; `None` for an
    /// optimizer without momentum.
    pub momentum: Option<Tensor>,
}
