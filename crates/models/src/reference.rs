//! The results of the Python library for the models in `reference`, which the tests read.

use std::path::{Path, PathBuf};
use std::process::Command;

use fulmen_nn::Module;
use fulmen_nn::attention::AttentionMethod;
use fulmen_nn::weights::StateDict;
use fulmen_tensor::{Runtime, Tensor, grad};

use crate::{CausalLm, GenerationConfig, Pretrained, Prompt, generate};

/// The values of tensors.
pub(crate) fn evaluated(tensors: &[Tensor]) -> Vec<Vec<f64>> {
    let values = Runtime::global().unwrap().eval_many(tensors).unwrap_or_else(|e| panic!("{e}"));
    values.iter().map(|value| value.to_f64()).collect()
}

/// Fails if a number differs by more than this part of the largest one, or if all are 0.
#[track_caller]
pub(crate) fn assert_close(actual: &[f64], expected: &[f64], tolerance: f64) {
    let largest = expected.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
    assert!(largest > 0.0 && actual.len() == expected.len());
    for (a, b) in actual.iter().zip(expected) {
        assert!((a - b).abs() <= tolerance * largest, "{a} and {b}; the largest is {largest}");
    }
}

/// `reference/NAME`, the folder of a model that a script of `reference` wrote.
pub(crate) fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("reference").join(name)
}

/// The inputs and outputs of a model: the folder's `expected.safetensors`.
pub(crate) struct ExpectedValues(StateDict);

impl ExpectedValues {
    #[track_caller]
    pub(crate) fn read(name: &str) -> ExpectedValues {
        ExpectedValues(
            StateDict::read(folder(name).join("expected.safetensors"))
                .unwrap_or_else(|e| panic!("{e}")),
        )
    }

    /// A value of the file.
    #[track_caller]
    pub(crate) fn tensor(&self, name: &str) -> Tensor {
        let value = self.0.get(name).unwrap_or_else(|e| panic!("{e}"));
        value.unwrap_or_else(|| panic!("expected.safetensors has no `{name}`")).to_tensor()
    }

    /// Whether the file has such a value.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(known, _)| known == name)
    }

    /// The token ids of a value, by rows.
    #[track_caller]
    pub(crate) fn rows(&self, name: &str) -> Vec<Vec<u32>> {
        let ids = self.0.get(name).ok().flatten().unwrap_or_else(|| panic!("no `{name}`"));
        let length = ids.ty().shape.dims().last().copied().unwrap_or(1);
        let all: Vec<u32> = ids.to_f64().into_iter().map(|id| id as u32).collect();
        all.chunks(length).map(<[u32]>::to_vec).collect()
    }

    /// Computes all tensors as one program, and compares each with the file's value of the same
    /// name. The tolerance is 1e-4 of the largest expected number. Prints each difference.
    #[track_caller]
    pub(crate) fn check(&self, actual: &[(&str, &Tensor)]) {
        let tensors: Vec<&Tensor> = actual.iter().map(|(_, tensor)| *tensor).collect();
        let values = Runtime::global()
            .and_then(|runtime| runtime.eval_many(&tensors))
            .unwrap_or_else(|e| panic!("{e}"));
        for ((name, tensor), value) in actual.iter().zip(values) {
            let expected = self
                .0
                .get(name)
                .ok()
                .flatten()
                .unwrap_or_else(|| panic!("no `{name}` is expected"));
            assert_eq!(tensor.shape(), &expected.ty().shape, "{name}: shape");
            let value = value.to_f64();
            let expected = expected.to_f64();
            let largest = expected.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
            let error =
                value.iter().zip(&expected).fold(0.0f64, |error, (x, y)| error.max((x - y).abs()));
            println!("{name}: {:.1e} off, relative to the largest number", error / largest);
            assert!(
                largest > 0.0 && error <= 1e-4 * largest,
                "{name} is {error:e} off; its largest number is {largest:e}"
            );
        }
    }
}

/// The outputs of a decoder without a cache, under the names of the expected ones: the logits, and
/// the greedy tokens, each the likeliest after the whole sequence before it.
#[track_caller]
pub(crate) fn outputs_without_cache(
    expected: &ExpectedValues,
    forward: impl Fn(&Tensor) -> Tensor,
) -> Vec<(&'static str, Tensor)> {
    let ids = expected.tensor("ids");
    let greedy = expected.tensor("greedy");
    assert!(
        expected.rows("greedy")[0].windows(2).any(|two| two[0] != two[1]),
        "all tokens are the same"
    );
    let logits = forward(&Tensor::concatenate(&[&ids, &greedy], 1));
    let tokens = logits.argmax(-1).narrow(1, ids.size(1) - 1, greedy.size(1));
    vec![("logits", logits.narrow(1, 0, ids.size(1))), ("greedy", tokens)]
}

/// Checks the outputs of a decoder without a cache and with one: greedy tokens, those after a
/// padded prompt, those of a beam search, and those with some tokens forbidden or forced.
#[track_caller]
pub(crate) fn check_decoder(name: &str, model: &dyn CausalLm, forward: impl Fn(&Tensor) -> Tensor) {
    let expected = ExpectedValues::read(name);
    let mut outputs = outputs_without_cache(&expected, forward);
    let ids = expected.tensor("ids");
    let plain = GenerationConfig { max_new_tokens: Some(32), ..GenerationConfig::default() };
    outputs.push(("greedy", generate(model, &Prompt::from(&ids), &plain)));
    let end = expected.rows("end")[0][0] as i32;
    let ending = GenerationConfig {
        max_new_tokens: Some(8),
        eos_token_id: vec![end],
        pad_token_id: Some(1),
        ..plain
    };
    if expected.has("padded") {
        let rows = expected.rows("ids");
        outputs.push((
            "padded",
            generate(model, &Prompt::new(&[&rows[0][..], &rows[1][3..]]), &ending),
        ));
    }
    if expected.has("beams") {
        let beams = GenerationConfig { num_beams: 3, ..ending.clone() };
        outputs.push(("beams", generate(model, &Prompt::from(&ids), &beams)));
    }
    if expected.has("restricted") {
        let bad = expected.rows("bad")[0][0] as i32;
        let restricted = GenerationConfig {
            max_new_tokens: Some(6),
            eos_token_id: Vec::new(),
            forced_eos_token_id: vec![end],
            bad_words_ids: vec![vec![bad]],
            ..ending
        };
        let beams = GenerationConfig { num_beams: 3, ..restricted.clone() };
        let renormalized = GenerationConfig { renormalize_logits: true, ..beams.clone() };
        let all = [
            ("restricted", restricted),
            ("restricted_beams", beams),
            ("renormalized_beams", renormalized),
        ];
        outputs.extend(
            all.map(|(name, config)| (name, generate(model, &Prompt::from(&ids), &config))),
        );
    }
    expected.check(&borrow_tensors(&outputs));
}

pub(crate) fn borrow_tensors<'a>(outputs: &'a [(&'a str, Tensor)]) -> Vec<(&'a str, &'a Tensor)> {
    outputs.iter().map(|(name, tensor)| (*name, tensor)).collect()
}

/// Saves a model that was loaded from `reference/NAME`, and checks in Python that it gives the
/// expected outputs.
pub(crate) fn compare_in_python(model: &impl Pretrained, name: &str, script: &str) {
    let saved = tempfile::tempdir().unwrap();
    model.save_pretrained(saved.path()).unwrap();
    let expected = "expected.safetensors";
    std::fs::copy(folder(name).join(expected), saved.path().join(expected)).unwrap();
    let python = std::env::var("PYTHON").expect("PYTHON is the python to ask");
    let status = Command::new(python).arg(folder(script)).arg(saved.path()).status().unwrap();
    assert!(status.success(), "{name}: {script} {status}");
}

/// Checks that the logits of two packed documents are those of the documents alone, with plain
/// attention and in blocks, and that both have the same gradients. `forward` gets the ids, or also
/// segment ids and positions.
#[cfg(any(feature = "decoder", feature = "gpt2"))]
#[track_caller]
pub(crate) fn check_packing<M: Module>(
    mut model: M,
    length: usize,
    forward: impl Fn(&mut M, &[Tensor], AttentionMethod) -> Tensor,
) {
    model.initialize(1);
    let first = length / 3;
    let integers = |of: &dyn Fn(usize) -> usize| {
        let integers: Vec<i32> = (0..length).map(|i| of(i) as i32).collect();
        Tensor::from_slice(&integers, [1, length])
    };
    let ids = integers(&|i| i * i * 7 % 19);
    let segment_ids = integers(&|i| 1 + usize::from(i >= first));
    let positions = integers(&|i| if i < first { i } else { i - first });
    let packed = [ids.clone(), segment_ids, positions];
    let alone = [(0, first), (first, length - first)].map(|(start, count)| {
        forward(&mut model, &[ids.narrow(1, start, count)], AttentionMethod::Plain)
    });
    let mut all = vec![Tensor::concatenate(&alone, 1)];
    let weights: Vec<Tensor> = model.parameters().iter().map(|(_, weight)| weight.get()).collect();
    for method in [AttentionMethod::Plain, AttentionMethod::Blocks, AttentionMethod::Kernel] {
        let logits = forward(&mut model, &packed, method);
        all.push(logits.clone());
        all.extend(grad(&(&logits * &logits).mean_all(), &weights));
    }
    let values = Runtime::global().and_then(|runtime| runtime.eval_many(&all)).unwrap();
    let values: Vec<Vec<f64>> = values.iter().map(|value| value.to_f64()).collect();
    let check = |a: &[f64], b: &[f64], name: &str| {
        let largest = b.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
        let error = a.iter().zip(b).fold(0.0f64, |error, (x, y)| error.max((x - y).abs()));
        assert!(
            error <= 1e-5 * largest,
            "{name}: {error:e} off; the largest number is {largest:e}"
        );
    };
    let methods: Vec<&[Vec<f64>]> = values[1..].chunks(1 + weights.len()).collect();
    check(&methods[0][0], &values[0], "packed documents, plain");
    for (i, plain) in methods[0].iter().enumerate() {
        check(&methods[1][i], plain, &format!("tensor {i} in blocks"));
        check(&methods[2][i], plain, &format!("tensor {i} by the kernel"));
    }
}
