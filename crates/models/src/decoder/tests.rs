//! Comparison with transformers.

use super::*;
use crate::reference::{
    ExpectedValues, borrow_tensors, check_decoder, folder, outputs_without_cache,
};

fn load(name: &str) -> Decoder {
    Decoder::from_folder(folder(name)).unwrap_or_else(|e| panic!("{e}"))
}

#[track_caller]
fn check(name: &str) {
    let model = load(name);
    check_decoder(name, &model, |ids| model.forward(ids));
}

#[test]
fn llama_of_bf16_gives_transformers_logits_and_tokens() {
    check("llama");
}

#[test]
fn gemma3_gives_transformers_logits_and_tokens() {
    check("gemma3");
}

/// Qwen 3 has an older config, and Mistral's file is the pickle of a wrapped model.
#[test]
fn the_others_give_transformers_logits_and_tokens_without_a_cache() {
    for name in ["qwen2", "qwen3", "mistral", "gemma", "gemma2"] {
        let model = load(name);
        let expected = ExpectedValues::read(name);
        expected
            .check(&borrow_tensors(&outputs_without_cache(&expected, |ids| model.forward(ids))));
    }
}

#[test]
#[ignore = "five programs more, for a minute: cargo test -p fulmen-models -- --ignored the_others"]
fn the_others_give_transformers_tokens_with_a_cache() {
    ["qwen2", "qwen3", "mistral", "gemma", "gemma2"].into_iter().for_each(check);
}
