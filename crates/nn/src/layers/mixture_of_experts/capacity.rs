//! Experts with a capacity: each expert computes at most a fixed number of tokens of a sequence, in
//! one product for all experts (Lepikhin et al. 2020, "GShard"). Tokens beyond it are dropped.

use fulmen_tensor::internal::{add_rows, take_rows};
use fulmen_tensor::{DType, Refusal, Tensor};

use super::{ExpertWeights, Routing};
use crate::axes::constrain;
use crate::precision::wide;

/// Where the tokens of the experts are.
pub(super) struct Slots {
    /// The position of a selected expert in the list of all, for each place of each expert, i32
    /// `[…, experts, places]`; beyond the list if the place is free.
    pub(super) sources: Tensor,
    /// The number of tokens of each expert, i32 `[…, experts]`.
    pub(super) counts: Tensor,
}

impl Slots {
    /// The first `places` tokens of each expert, for lists `[…, n]` of the selected experts.
    fn new(selected: &Tensor, experts: usize, places: usize) -> Slots {
        let order = selected.argsort(-1, false).to_dtype(DType::I32);
        let counts = selected.one_hot(experts).to_dtype(DType::I32).sum(-2);
        let begins = counts.cumsum(-1) - &counts;
        let place = Tensor::arange(DType::I32, places);
        let at = begins.unsqueeze(-1) + &place;
        let sources = take_rows(&order, &at.flatten(-2, -1)).reshape(at.shape());
        let is_used = place.lt(counts.unsqueeze(-1));
        let beyond = sources.zeros_like() + selected.size(-1) as f64;
        Slots { sources: is_used.select(&sources, &beyond), counts }
    }
}

/// The outputs for tokens `[batch, length, features]`. A sequence has `factor` times the places that
/// it needs if all experts get the same number of tokens. First choices come before second ones,
/// earlier tokens before later ones.
pub(super) fn forward(
    x: &Tensor,
    routing: &mut Routing,
    weights: &ExpertWeights,
    factor: f64,
) -> Result<Tensor, Refusal> {
    let length = x.size(1);
    let top_k = routing.experts.size(-1);
    let experts = weights.count();
    let places = (factor * (length * top_k) as f64 / experts as f64).ceil() as usize;
    let places = places.clamp(1, length.max(1));
    let by_choice = |x: &Tensor| x.transpose(1, 2).flatten(1, 2);
    let slots = Slots::new(&by_choice(&routing.experts), experts, places);
    let used = slots.counts.minimum(places as f64).to_dtype(DType::F32).sum_all();
    let all = routing.experts.shape().num_elements().max(1) as f64;
    routing.dropped = 1.0 - used / all;
    let sources = slots.sources.flatten(1, 2);
    let is_used = sources.lt((length * top_k) as f64);
    let beyond = sources.zeros_like() + length as f64;
    let within = &sources - &sources / (length as f64) * (length as f64);
    let tokens = is_used.select(&within, &beyond);
    let by_expert = |x: Tensor| x.unflatten(1, &[experts as isize, places as isize]);
    // Collected where the tokens are, and sent to where the experts are then.
    let local = |x: Tensor| constrain(x, [Some("batch"), None, None, Some("embed")]);
    let sent = |x: Tensor| constrain(x, [Some("batch"), Some("expert"), None, Some("embed")]);
    let collected = sent(local(by_expert(take_rows(x, &tokens))));
    let factors = by_expert(take_rows(&by_choice(&routing.weights), &sources));
    let equations = ["becd,eid->beci", "beci,edi->becd"];
    let outputs = weights.products(&collected, equations, |hidden| {
        let hidden = &hidden * factors.unsqueeze(-1).to_dtype(hidden.dtype());
        constrain(hidden, [Some("batch"), Some("expert"), None, Some("mlp")])
    });
    let outputs = wide(&local(sent(outputs))).flatten(1, 2);
    let zeros = Tensor::zeros(outputs.dtype(), [x.size(0), length, outputs.size(-1)]);
    Ok(add_rows(&zeros, &tokens, &outputs).to_dtype(x.dtype()))
}
