//! Comparison with transformers.

use super::*;
use crate::reference::{
    ExpectedValues, borrow_tensors, check_decoder, check_packing, folder, outputs_without_cache,
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

#[test]
fn packed_documents_are_the_documents_alone_with_windows_and_scans() {
    let sizes = Config {
        vocab_size: 20,
        hidden_size: 8,
        intermediate_size: 12,
        num_hidden_layers: 4,
        num_attention_heads: 2,
        num_key_value_heads: Some(1),
        head_dim: Some(4),
        ..Config::default()
    };
    let config = Config {
        model_type: ModelType::Gemma2,
        sliding_window: Some(40),
        query_pre_attn_scalar: Some(4),
        attn_logit_softcapping: Some(2.0),
        ..sizes
    };
    // More than one block.
    check_packing(Decoder::new(config).unwrap(), 600, |model, packed, method| {
        model.attention = method;
        (model.scan_layers, model.gradient_checkpointing) = (true, true);
        match packed {
            [ids] => model.forward(ids),
            [ids, segment_ids, positions] => model.forward_packed(ids, segment_ids, positions),
            _ => panic!("ids, or ids with segments and positions"),
        }
    });
}

#[test]
fn documents_that_do_not_fit_are_told() {
    let model = Decoder::new(Config { num_hidden_layers: 1, ..Config::default() }).unwrap();
    let ids = Tensor::zeros(DType::I32, [2, 5]);
    let short = Tensor::zeros(DType::I32, [1, 5]);
    let halves = Tensor::zeros(DType::F32, [2, 5]);
    let fault = |segment_ids, positions| {
        model.forward_packed(&ids, segment_ids, positions).fault().unwrap().to_string()
    };
    let text = fault(&short, &ids);
    let expected = "the segment ids i32[1, 5] must be integers of the shape of the ids i32[2, 5]";
    assert!(text.contains(expected) && text.contains("decoder/tests.rs"), "{text}");
    let text = fault(&ids, &halves);
    assert!(text.contains("the positions f32[2, 5] must be integers"), "{text}");
}

#[test]
fn long_sequences_of_many_heads_are_computed_in_blocks() {
    let llama = |length, layers| StepSizes { length, heads: 32, vocabulary: 128_256, layers };
    let auto = |sizes: StepSizes| sizes.decide(AttentionMethod::Auto);
    assert_eq!(auto(llama(6012, 1)), AttentionMethod::Plain);
    assert_eq!(auto(llama(6013, 1)), AttentionMethod::Blocks);
    assert_eq!(auto(llama(2048, 32)), AttentionMethod::Plain);
    assert_eq!(auto(llama(2049, 32)), AttentionMethod::Blocks);
    assert_eq!(llama(1 << 20, 1).decide(AttentionMethod::Plain), AttentionMethod::Plain);
    assert_eq!(llama(1, 1).decide(AttentionMethod::Blocks), AttentionMethod::Blocks);
}
