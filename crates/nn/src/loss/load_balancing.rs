//! [`load_balancing_loss`]: the loss that keeps the experts of a router equally busy.

use fulmen_tensor::Tensor;

use crate::library::NN;

/// The loss that is smallest if all experts get the same number of tokens: `experts·Σ f·p`, with the
/// fraction `f` of tokens that selected an expert ([`Routing::tokens_per_expert`](crate::Routing::tokens_per_expert)) and the mean `p`
/// of its probabilities, each `[experts]`. transformers' `load_balancing_loss_func`, after equations
/// 4 to 6 of Fedus et al. 2021, "Switch Transformers". No gradient flows through `f`. A scalar, from
/// `top_k` on. Add it to the loss, times 0.01 for example.
///
/// For several layers, transformers takes the means of `f` and of `p` over the layers.
///
/// ```
/// use fulmen_nn::loss::load_balancing_loss;
/// use fulmen_tensor::Tensor;
///
/// let balanced = Tensor::from_slice(&[0.5f32, 0.5], [2]);
/// let uneven = Tensor::from_slice(&[1.0f32, 0.0], [2]);
/// assert_eq!(load_balancing_loss(&balanced, &balanced).eval()?.to_vec::<f32>()?, [1.0]);
/// assert_eq!(load_balancing_loss(&uneven, &uneven).eval()?.to_vec::<f32>()?, [2.0]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn load_balancing_loss(tokens_per_expert: &Tensor, mean_probability: &Tensor) -> Tensor {
    NN.record("load_balancing_loss", || {
        let experts = tokens_per_expert.live()?.size(-1) as f64;
        let shares = tokens_per_expert.detach() * mean_probability.live()?;
        Ok(shares.sum_all() * experts)
    })
}
