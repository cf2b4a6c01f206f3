//! The settings against transformers: the tokens and scores of `reference/generation`, which
//! `generation.py` wrote.

use std::collections::BTreeMap;
use std::sync::Arc;

use fulmen_nn::weights::StateDict;
use fulmen_tensor::{Literal, Runtime};
use serde_json::Value;

use super::beam_search::Found;
use super::*;
use crate::Pretrained;
use crate::decoder::Decoder;
use crate::gpt2::Gpt2;
use crate::marian::Marian;
use crate::reference::{ExpectedValues, folder};
use crate::t5::T5;

/// The settings of a case, as a folder's `generation_config.json` gives them.
#[track_caller]
fn config(settings: &Value) -> GenerationConfig {
    let folder = tempfile::tempdir().unwrap_or_else(|e| panic!("{e}"));
    let file = folder.path().join("generation_config.json");
    std::fs::write(file, settings.to_string()).unwrap_or_else(|e| panic!("{e}"));
    let config = GenerationConfig::from_folder(folder.path()).unwrap_or_else(|e| panic!("{e}"));
    GenerationConfig { pad_token_id: Some(1), ..config }
}

/// The scores from which each token was chosen, f32 `[rows, steps, vocabulary]`, if `tokens`, i32
/// `[rows, steps]`, were chosen.
fn scores_of<M: CausalLm + ?Sized>(start: Start<'_, M>, tokens: &Tensor) -> Tensor {
    let Start { model, processor, tokens: buffer, logits, cache, .. } = start;
    let [rows, steps] = [0, 1].map(|axis| tokens.size(axis));
    let zero = Tensor::zeros(DType::I32, []);
    let buffer = buffer
        .dynamic_update_slice(tokens, &[zero.clone(), zero.clone() + processor.prompt as f64]);
    let scores = Tensor::zeros(DType::F32, [rows, steps, logits.size(-1)]);
    let (_, scores, ..) = while_loop(
        (zero.clone(), scores, logits, cache),
        |(step, ..)| step.lt(steps as f64),
        |(step, all, logits, cache)| {
            let scores = processor.scores(&logits, &buffer, &step).unsqueeze(1);
            let all =
                all.dynamic_update_slice(&scores, &[zero.clone(), step.clone(), zero.clone()]);
            let next = tokens.dynamic_slice(&[zero.clone(), step.clone()], &[rows, 1]);
            let (logits, cache) = model.next_token_logits(&next, &cache);
            (step + 1.0, all, logits, cache)
        },
    );
    scores
}

/// The largest difference of two tensors; excluded tokens are the same in both.
#[track_caller]
fn difference(name: &str, actual: &Literal, expected: &Literal) -> f64 {
    assert_eq!(actual.ty().shape, expected.ty().shape, "{name}");
    let pairs = actual.to_f64().into_iter().zip(expected.to_f64());
    pairs.fold(0.0, |largest, (actual, expected)| {
        assert_eq!(actual.is_finite(), expected.is_finite(), "{name}: {actual} {expected}");
        if actual == expected { largest } else { largest.max((actual - expected).abs()) }
    })
}

/// A model of `reference` with what it continues.
struct Reference<'m> {
    name: &'static str,
    model: &'m dyn CausalLm,
    prompt: Prompt,
    /// The prompt whose second row lacks its first three tokens.
    padded: Prompt,
}

/// The results of one case, each with its expected value.
struct Results {
    /// The tokens, unless they are drawn.
    tokens: Option<(Tensor, Arc<Literal>)>,
    /// The scores of tokens or sequences, unless none are expected.
    scores: Option<(Tensor, Arc<Literal>)>,
}

impl Reference<'_> {
    /// The results of a case. `with_scores` also asks for the scores of greedily chosen tokens.
    #[track_caller]
    fn results(
        &self,
        expected: &StateDict,
        case: &str,
        config: &GenerationConfig,
        with_scores: bool,
    ) -> Results {
        let value = |what| expected.get(&format!("{}/{case}/{what}", self.name)).ok().flatten();
        let prompt = if case.starts_with("padded") { &self.padded } else { &self.prompt };
        let start =
            || Start::new(self.model, prompt, config).unwrap_or_else(|e| panic!("{case}: {e:?}"));
        let chosen = value("tokens").unwrap_or_else(|| panic!("{case} has no tokens"));
        if let Some(expected) = value("sequence_scores") {
            let found = start().repeated(config.num_beams).beam_search();
            let Found { tokens, scores } = found.unwrap_or_else(|e| panic!("{case}: {e:?}"));
            return Results { tokens: Some((tokens, chosen)), scores: Some((scores, expected)) };
        }
        let scores = value("scores").filter(|_| with_scores || config.do_sample).map(|expected| {
            let start = start().repeated(config.num_return_sequences);
            (scores_of(start, &chosen.to_tensor()), expected)
        });
        let tokens = (!config.do_sample).then(|| (generate(self.model, prompt, config), chosen));
        Results { tokens, scores }
    }

    /// Compares cases with transformers: the tokens are equal, and the scores differ by rounding.
    /// `part` selects every fourth case; without it, all are compared.
    #[track_caller]
    fn compare(&self, part: Option<usize>) {
        let cases = std::fs::read_to_string(folder("generation").join("cases.json"));
        let cases: BTreeMap<String, BTreeMap<String, Value>> =
            serde_json::from_str(&cases.unwrap_or_else(|e| panic!("{e}"))).unwrap_or_default();
        let expected = StateDict::read(folder("generation").join("expected.safetensors"))
            .unwrap_or_else(|e| panic!("{e}"));
        let selected = cases[self.name]
            .iter()
            .enumerate()
            .filter(|(i, _)| part.is_none_or(|part| i % 4 == part))
            .map(|(_, case)| case);
        let results: Vec<(&String, Results)> = selected
            .map(|(case, settings)| {
                (case, self.results(&expected, case, &config(settings), part.is_none()))
            })
            .collect();
        // Programs of several cases take less time to compile than one for each.
        let differences: Vec<(f64, &String)> = results
            .chunks(CASES_IN_PROGRAM)
            .flat_map(|results| compare(self.name, results))
            .collect();
        let largest = differences.iter().copied().max_by(|a, b| a.0.total_cmp(&b.0));
        let (difference, case) = largest.unwrap_or_else(|| panic!("{} has no case", self.name));
        let count = differences.len();
        println!("{}: {count} cases, scores up to {difference:.1e} off ({case})", self.name);
        assert!(difference < 2e-4, "{case} is {difference:e} off");
    }
}

/// How many cases are computed in one program.
const CASES_IN_PROGRAM: usize = 16;

/// The largest difference of the scores of each case. The tokens must be equal.
#[track_caller]
fn compare<'c>(name: &str, cases: &[(&'c String, Results)]) -> Vec<(f64, &'c String)> {
    let tensors = |results: &Results| -> Vec<Tensor> {
        results.tokens.iter().chain(&results.scores).map(|(tensor, _)| tensor.clone()).collect()
    };
    let all: Vec<Tensor> = cases.iter().flat_map(|(_, results)| tensors(results)).collect();
    let values = Runtime::global()
        .and_then(|runtime| runtime.eval_many(&all.iter().collect::<Vec<_>>()))
        .unwrap_or_else(|e| panic!("{name}: {e}"));
    let mut values = values.into_iter();
    let mut differences = Vec::new();
    for (case, Results { tokens, scores }) in cases {
        let name = format!("{name}: {case}");
        if let Some((_, expected)) = tokens {
            let actual = values.next().unwrap_or_else(|| panic!("{name}"));
            let rows = |tokens: &Literal| -> Vec<Vec<i32>> {
                let length = tokens.ty().shape.dims().last().copied().unwrap_or(1);
                let ids: Vec<i32> = tokens.to_f64().into_iter().map(|id| id as i32).collect();
                ids.chunks(length).map(<[i32]>::to_vec).collect()
            };
            let actual = rows(&actual);
            let mut expected = rows(expected);
            expected.iter_mut().for_each(|row| row.resize(actual[0].len(), 1));
            assert_eq!(actual, expected, "{name}");
        }
        let largest = scores.as_ref().map_or(0.0, |(_, expected)| {
            let actual = values.next().unwrap_or_else(|| panic!("{name}"));
            difference(&name, &actual, expected)
        });
        differences.push((largest, *case));
    }
    differences
}

/// Compares cases of a decoder without an encoder.
#[track_caller]
fn compare_decoder(name: &'static str, model: &dyn CausalLm, part: Option<usize>) {
    let expected = ExpectedValues::read(name);
    let rows = expected.rows("ids");
    let padded = Prompt::new(&[&rows[0][..], &rows[1][3..]]);
    let prompt = Prompt::from(&expected.tensor("ids"));
    Reference { name, model, prompt, padded }.compare(part);
}

fn compare_gpt2(part: Option<usize>) {
    let model = Gpt2::from_folder(folder("gpt2")).unwrap_or_else(|e| panic!("{e}"));
    compare_decoder("gpt2", &model, part);
}

fn compare_llama(part: Option<usize>) {
    let model = Decoder::from_folder(folder("llama")).unwrap_or_else(|e| panic!("{e}"));
    compare_decoder("llama", &model, part);
}

fn compare_marian(part: Option<usize>) {
    let model = Marian::from_folder(folder("marian")).unwrap_or_else(|e| panic!("{e}"));
    let decoding = model.decoding(ExpectedValues::read("marian").tensor("input_ids"), None);
    let prompt = decoding.start();
    Reference { name: "marian", model: &decoding, padded: prompt.clone(), prompt }.compare(part);
}

fn compare_t5(part: Option<usize>) {
    let model = T5::from_folder(folder("t5")).unwrap_or_else(|e| panic!("{e}"));
    let decoding = model.decoding(ExpectedValues::read("t5").tensor("input_ids"), None);
    let prompt = decoding.start();
    Reference { name: "t5", model: &decoding, padded: prompt.clone(), prompt }.compare(part);
}

#[test]
fn gpt2_generates_as_in_transformers() {
    compare_gpt2(Some(0));
}

#[test]
fn llama_generates_as_in_transformers() {
    compare_llama(Some(1));
}

#[test]
fn marian_generates_as_in_transformers() {
    compare_marian(Some(2));
}

#[test]
fn t5_generates_as_in_transformers() {
    compare_t5(Some(3));
}

/// Compares the cases of `stop_strings.py`.
#[track_caller]
fn compare_stop_strings(name: &str, model: &dyn CausalLm, only: &[&str]) {
    #[derive(serde::Deserialize)]
    struct Case {
        settings: Value,
        tokens: Vec<Vec<i32>>,
    }
    #[derive(serde::Deserialize)]
    struct Cases {
        bytes: Vec<String>,
        cases: BTreeMap<String, Case>,
    }
    let file = std::fs::read(folder("generation").join("stop_strings.json"));
    let mut models: BTreeMap<String, Cases> =
        serde_json::from_slice(&file.unwrap_or_else(|e| panic!("{e}"))).unwrap_or_default();
    let Cases { bytes, mut cases } = models.remove(name).unwrap_or_else(|| panic!("{name}"));
    let byte = |digits: &str, i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap_or_default();
    let bytes = bytes.iter().map(|digits| {
        Some((0..digits.len()).step_by(2).map(|i| byte(digits, i)).collect::<Vec<u8>>())
    });
    let token_bytes = TokenBytes::new(bytes);
    cases.retain(|case, _| only.is_empty() || only.contains(&case.as_str()));
    assert!(!cases.is_empty() && cases.len() >= only.len(), "{name}: {only:?}");

    let rows = ExpectedValues::read(name).rows("ids");
    let padded = Prompt::new(&[&rows[0][..], &rows[1][3..]]);
    let prompt = Prompt::new(&rows);
    let results: Vec<Tensor> = cases
        .iter()
        .map(|(case, Case { settings, .. })| {
            let config =
                GenerationConfig { token_bytes: Some(token_bytes.clone()), ..config(settings) };
            generate(model, if case == "padded" { &padded } else { &prompt }, &config)
        })
        .collect();
    let results = Runtime::global()
        .and_then(|runtime| runtime.eval_many(&results.iter().collect::<Vec<_>>()))
        .unwrap_or_else(|e| panic!("{name}: {e}"));
    for ((case, Case { mut tokens, .. }), actual) in cases.into_iter().zip(&results) {
        let ids = actual.to_vec::<i32>().unwrap_or_else(|e| panic!("{e}"));
        let length = actual.ty().shape.dims()[1];
        tokens.iter_mut().for_each(|row| row.resize(length, 1));
        assert_eq!(ids.chunks(length).collect::<Vec<_>>(), tokens, "{name}: {case}");
    }
}

#[test]
fn gpt2_stops_at_strings_as_in_transformers() {
    let model = Gpt2::from_folder(folder("gpt2")).unwrap_or_else(|e| panic!("{e}"));
    compare_stop_strings("gpt2", &model, &["character_in_two_tokens", "padded", "beams_two"]);
}

#[test]
fn llama_stops_at_strings_as_in_transformers() {
    let model = Decoder::from_folder(folder("llama")).unwrap_or_else(|e| panic!("{e}"));
    compare_stop_strings("llama", &model, &["with_the_prompt", "with_an_end", "beams"]);
}

#[test]
#[ignore = "compiles 22 programs: cargo test -p fulmen-models --lib -- --ignored stop_at_all"]
fn models_stop_at_all_strings_as_in_transformers() {
    let model = Gpt2::from_folder(folder("gpt2")).unwrap_or_else(|e| panic!("{e}"));
    compare_stop_strings("gpt2", &model, &[]);
    let model = Decoder::from_folder(folder("llama")).unwrap_or_else(|e| panic!("{e}"));
    compare_stop_strings("llama", &model, &[]);
}

#[test]
#[ignore = "compiles 300 programs: cargo test -p fulmen-models --lib -- --ignored all_models_generate --nocapture"]
fn all_models_generate_as_in_transformers_with_all_settings() {
    compare_gpt2(None);
    compare_llama(None);
    compare_marian(None);
    compare_t5(None);
}

#[test]
fn padding_of_the_encoder_does_not_count_as_its_tokens() {
    let model = T5::from_folder(folder("t5")).unwrap_or_else(|e| panic!("{e}"));
    let expected = ExpectedValues::read("t5");
    let [ids, mask] = ["input_ids", "attention_mask"].map(|name| expected.tensor(name));
    let config = GenerationConfig {
        max_new_tokens: Some(6),
        encoder_no_repeat_ngram_size: 1,
        ..GenerationConfig::default()
    };
    // The second row has five tokens, and then padding.
    let together = model.decoding(&ids, Some(&mask));
    let alone = model.decoding(ids.narrow(0, 1, 1).narrow(1, 0, 5), None);
    let tokens = [
        generate(&together, &together.start(), &config).narrow(0, 1, 1),
        generate(&alone, &alone.start(), &config),
    ];
    let [together, alone] = tokens.map(|tokens| {
        let tokens = tokens.eval().unwrap_or_else(|e| panic!("{e}"));
        tokens.to_vec::<i32>().unwrap_or_else(|e| panic!("{e}"))
    });
    assert_eq!(together, alone);
}

#[test]
fn what_cannot_be_generated_says_why() {
    let gpt2 = Gpt2::from_folder(folder("gpt2")).unwrap_or_else(|e| panic!("{e}"));
    let t5 = T5::from_folder(folder("t5")).unwrap_or_else(|e| panic!("{e}"));
    let texts = t5.decoding(Tensor::zeros(DType::I32, [1, 2]), None);
    let prompt = || Prompt::new(&[[1, 2, 3]]);
    let plain = GenerationConfig::default;
    let cases: Vec<(&dyn CausalLm, Prompt, GenerationConfig, &str)> = vec![
        (
            &gpt2,
            prompt(),
            GenerationConfig { max_new_tokens: Some(46), ..plain() },
            "3 tokens and 46 new ones exceed the 48 positions",
        ),
        (
            &gpt2,
            prompt(),
            GenerationConfig { max_new_tokens: Some(0), ..plain() },
            "must be at least 1",
        ),
        (
            &gpt2,
            prompt(),
            GenerationConfig { max_length: Some(3), ..plain() },
            "`max_length` is 3, and the prompt has 3 tokens already",
        ),
        (
            &gpt2,
            Prompt::new(&[[1; 48]]),
            plain(),
            "the prompt has 48 tokens, and the model 48 positions",
        ),
        (
            &gpt2,
            prompt(),
            GenerationConfig { num_beams: 2, do_sample: true, ..plain() },
            "a beam search draws nothing",
        ),
        (
            &gpt2,
            prompt(),
            GenerationConfig { num_return_sequences: 2, ..plain() },
            "there is one likeliest sequence",
        ),
        (
            &gpt2,
            prompt(),
            GenerationConfig { num_beams: 2, num_return_sequences: 3, ..plain() },
            "a beam search with `num_beams` 2 finds no more",
        ),
        (
            &gpt2,
            prompt(),
            GenerationConfig { temperature: 0.0, do_sample: true, ..plain() },
            "`temperature` must be above 0, not 0; to choose the likeliest token",
        ),
        (
            &gpt2,
            prompt(),
            GenerationConfig { min_p: 1.5, do_sample: true, ..plain() },
            "`min_p` must be from 0 to 1, not 1.5",
        ),
        (
            &gpt2,
            prompt(),
            GenerationConfig { repetition_penalty: 0.0, ..plain() },
            "`repetition_penalty` must be above 0",
        ),
        (
            &gpt2,
            prompt(),
            GenerationConfig { bad_words_ids: vec![vec![1], vec![2, 40]], ..plain() },
            "`bad_words_ids` has the token 40; the model has the tokens 0 to 39",
        ),
        (
            &texts,
            texts.start(),
            GenerationConfig { decoder_start_token_id: Some(5), ..plain() },
            "`decoder_start_token_id` is 5, but 0 in the model's config",
        ),
        (&gpt2, Prompt::new(&[vec![1], Vec::new()]), plain(), "row 1 has no token"),
        (
            &gpt2,
            Prompt::from(&Tensor::zeros(DType::I32, [4])),
            plain(),
            "the ids i32[4] are not [batch, length]",
        ),
    ];
    for (model, prompt, config, expected) in cases {
        let tokens = generate(model, &prompt, &config);
        let text = tokens.fault().map(|fault| fault.to_string()).unwrap_or_default();
        assert!(text.contains(expected) && text.contains("generate/tests.rs"), "{text}");
    }
}

#[test]
fn sampling_gives_several_sequences_for_each_prompt() {
    let model = Decoder::from_folder(folder("llama")).unwrap_or_else(|e| panic!("{e}"));
    let config = GenerationConfig {
        max_new_tokens: Some(2),
        do_sample: true,
        num_return_sequences: 3,
        ..GenerationConfig::default()
    };
    let tokens = generate(&model, &Prompt::new(&[[3; 4], [5; 4]]), &config);
    assert_eq!(tokens.shape().dims(), [6, 2]);
}

#[test]
fn without_a_length_the_model_s_positions_are_the_limit() {
    let plain = GenerationConfig::default();
    assert_eq!(plain.new_tokens(7, Some(48)), Ok(20));
    assert_eq!(plain.new_tokens(40, Some(48)), Ok(8));
    assert_eq!(plain.new_tokens(40, None), Ok(20));
    let model = Decoder::from_folder(folder("llama")).unwrap_or_else(|e| panic!("{e}"));
    let tokens = generate(&model, &Prompt::new(&[[3; 60]]), &plain);
    assert_eq!(tokens.shape().dims(), [1, 4]);
}
