//! Beam search, as transformers does it: `num_beams` sequences are kept open, each step makes the
//! likeliest continuations of all of them, and finished sequences compete by their log-probability,
//! divided by a power of their length.

use fulmen_tensor::{DType, Refusal, Scope, Tensor, Tree, while_loop};

use super::processor::LogitsProcessor;
use super::stop_strings::StopStrings;
use super::{CausalLm, GenerationConfig, Start, StaticCache, ends_after};
use crate::MODELS;

/// The score of an excluded sequence.
const EXCLUDED_SCORE: f64 = -1e9;

/// The sequences that a beam search found.
pub(super) struct Found {
    /// The new tokens, i32 `[batch · num_return_sequences, new]`.
    pub(super) tokens: Tensor,
    /// Their scores, f32 `[batch · num_return_sequences]`.
    #[cfg(test)]
    pub(super) scores: Tensor,
}

/// What the loop carries.
#[derive(Tree)]
struct Beams {
    /// The number of generated tokens, an i32 scalar.
    step: Tensor,
    /// Whether the search continues, a bool scalar.
    continues: Tensor,
    /// The open sequences with their prompts, i32 `[batch, beams, prompt + new]`.
    open: Tensor,
    /// The log-probabilities of the open sequences, f32 `[batch, beams]`.
    open_scores: Tensor,
    /// The best finished sequences with their prompts, i32 `[batch, beams, prompt + new]`.
    finished: Tensor,
    /// The scores of the finished sequences, f32 `[batch, beams]`.
    finished_scores: Tensor,
    /// Which of the finished sequences exist, bool `[batch, beams]`.
    is_finished: Tensor,
    /// Whether an open sequence can still surpass a finished one, bool `[batch, 1]`.
    can_improve: Tensor,
    /// The next-token logits of the open sequences, f32 `[batch · beams, vocabulary]`.
    logits: Tensor,
    /// The states of the search for stop strings in the open sequences, i32 `[batch, beams]`.
    stop_state: Tensor,
    /// The cache of the open sequences.
    cache: StaticCache,
}

impl<M: CausalLm + ?Sized> Start<'_, M> {
    /// The best sequences of each row. Each prompt has `num_beams` rows.
    pub(super) fn beam_search(self) -> Result<Found, Refusal> {
        let Start { model, processor, tokens, logits, cache, stops, stop_state } = self;
        let GenerationConfig { num_beams: beams, num_return_sequences: count, .. } =
            *processor.config;
        let batch = tokens.size(0) / beams;
        let length = tokens.size(1);
        let open = tokens.reshape([batch, beams, length]);
        // All beams are equal at first, so only the first is open.
        let first = Tensor::arange(DType::I32, beams).gt(0.0).to_dtype(DType::F32) * EXCLUDED_SCORE;
        let start = Beams {
            step: Tensor::zeros(DType::I32, []),
            continues: Tensor::ones(DType::Bool, []),
            open: open.clone(),
            open_scores: first.broadcast_to([batch, beams]),
            finished: open,
            finished_scores: Tensor::full(DType::F32, [batch, beams], EXCLUDED_SCORE),
            is_finished: Tensor::zeros(DType::Bool, [batch, beams]),
            can_improve: Tensor::ones(DType::Bool, [batch, 1]),
            logits,
            stop_state: stop_state.reshape([batch, beams]),
            cache,
        };
        let line = Scope::line();
        let end = while_loop(
            start,
            |beams| beams.continues,
            |beams| {
                let _scope = MODELS.at(line);
                step(model, beams, &processor, stops.as_ref())
            },
        );
        end.step.live()?;
        let tokens = end.finished.narrow(1, 0, count).narrow(2, processor.prompt, processor.new);
        Ok(Found {
            tokens: tokens.reshape([batch * count, processor.new]),
            #[cfg(test)]
            scores: end.finished_scores.narrow(1, 0, count).reshape([batch * count]),
        })
    }
}

/// The state after one more token.
fn step<M: CausalLm + ?Sized>(
    model: &M,
    state: Beams,
    processor: &LogitsProcessor<'_>,
    stops: Option<&StopStrings>,
) -> Beams {
    let config = processor.config;
    let [batch, beams, total] = [0, 1, 2].map(|axis| state.open.size(axis));
    let vocabulary = state.logits.size(-1);
    // The likeliest continuations: enough to keep `beams` sequences open even if as many as
    // possible end.
    let candidates = beams * (1 + config.eos_token_id.len()).max(2);
    let so_far = state.open.reshape([batch * beams, total]);
    let scores = processor
        .scores(&state.logits.log_softmax(-1), &so_far, &state.step)
        .reshape([batch, beams, vocabulary])
        + state.open_scores.unsqueeze(-1);
    let (scores, indices) = scores.flatten(1, 2).topk(candidates);
    let beam = &indices / vocabulary as f64;
    let token = &indices - &beam * vocabulary as f64;
    let zero = Tensor::zeros(DType::I32, []);
    let column = [zero.clone(), zero, &state.step + processor.prompt as f64];
    let sequences =
        gather_rows(&state.open, &beam).dynamic_update_slice(token.unsqueeze(-1), &column);
    let length = &state.step + 1.0;
    let before = gather_rows(&state.stop_state, &beam);
    let (stop_state, ends) = ends_after(config, stops, &before, &token);
    let ends = ends.or(length.ge(processor.new as f64));

    // The sequences that continue.
    let (open_scores, chosen) = (&scores + exclusion_score(&ends)).topk(beams);
    let open = gather_rows(&sequences, &chosen);
    let parent = gather_rows(&beam, &chosen);
    let next = gather_rows(&token, &chosen);
    let stop_state = gather_rows(&stop_state, &chosen);

    // A sequence that ends counts only if it is among the first `beams`; later ones only replace
    // those that end.
    let first = Tensor::arange(DType::I32, candidates).lt(beams as f64);
    let ends_now = ends.and(first);
    let length_penalty =
        |length: &Tensor| (length.to_dtype(DType::F32).log() * config.length_penalty).exp();
    let mut final_scores = scores / length_penalty(&length)
        + exclusion_score(&ends_now.not())
        + exclusion_score(&state.can_improve.not());
    if config.early_stopping {
        final_scores = final_scores + exclusion_score(&state.is_finished.all_keepdim(-1));
    }
    let join = |a: &Tensor, b: &Tensor| Tensor::concatenate(&[a, b], 1);
    let (finished_scores, best) = join(&state.finished_scores, &final_scores).topk(beams);
    let finished = gather_rows(&join(&state.finished, &sequences), &best);
    let is_finished = gather_rows(&join(&state.is_finished, &ends_now), &best);

    // Whether an open sequence can still surpass a finished one.
    let best_open_score = open_scores.narrow(-1, 0, 1) / length_penalty(&length);
    let worst_finished_score = is_finished
        .select(&finished_scores.min_keepdim(-1), &Tensor::full(DType::F32, [], EXCLUDED_SCORE));
    let can_improve =
        state.can_improve.and(best_open_score.gt(&worst_finished_score).any_keepdim(-1));
    let mut continues = can_improve.any([0, 1]).and(ends.all([0, 1]).not());
    if config.early_stopping {
        continues = continues.and(is_finished.all([0, 1]).not());
    }

    let offsets = Tensor::arange(DType::I32, batch).unsqueeze(-1) * beams as f64;
    let rows = (offsets + parent).flatten(0, 1);
    let (logits, cache) = model.next_token_logits(
        &next.reshape([batch * beams, 1]),
        &state.cache.map_rows(|t| t.take(0, &rows)),
    );
    Beams {
        step: length,
        continues,
        open,
        open_scores,
        finished,
        finished_scores,
        is_finished,
        can_improve,
        logits: logits.to_dtype(DType::F32),
        stop_state,
        cache,
    }
}

/// The rows `[batch, n, …]` of `[batch, m, …]` at the indices `[batch, n]`.
fn gather_rows(x: &Tensor, indices: &Tensor) -> Tensor {
    match x.rank() {
        2 => x.gather(1, indices),
        _ => x.take_along_axis(1, indices.unsqueeze(-1)),
    }
}

/// A score to add: very low where the mask is true, to exclude those candidates; 0 elsewhere.
fn exclusion_score(mask: &Tensor) -> Tensor {
    mask.to_dtype(DType::F32) * EXCLUDED_SCORE
}
