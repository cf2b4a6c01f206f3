//! Models of Python's world, with the weights that Python wrote: the same logits. `reference/pretrained.py` made the
//! files.

#![allow(clippy::unwrap_used)] // a test helper may panic: that fails the test

use std::path::{Path, PathBuf};

use crate::common::reference::{Expected, count, path, tensor};
use fulmen_nn::attention::Attention;
use fulmen_nn::weights::{LoadReport, StateDict, Strictness};
use fulmen_nn::{Embedding, LayerNorm, Linear, Module, activation};
use fulmen_tensor::{DType, Tensor};
use serde_json::Value;

/// `[batch, length, width]` to `[batch, heads, length, width / heads]`.
fn split_heads(x: &Tensor, heads: usize) -> Tensor {
    x.reshape([x.size(0), x.size(1), heads, x.size(2) / heads]).transpose(1, 2)
}

/// The way back.
fn join_heads(x: &Tensor) -> Tensor {
    let x = x.transpose(1, 2);
    x.reshape([x.size(0), x.size(1), x.size(2) * x.size(3)])
}

/// Hugging Face's `BertForSequenceClassification` with one layer.
#[derive(Module)]
struct Bert {
    bert: BertModel,
    classifier: Linear,
}

#[derive(Module)]
struct BertModel {
    embeddings: BertEmbeddings,
    /// `encoder.layer.0`, renamed.
    layer: BertLayer,
    pooler: Linear,
}

#[derive(Module)]
struct BertEmbeddings {
    word_embeddings: Embedding,
    position_embeddings: Embedding,
    token_type_embeddings: Embedding,
    #[module(rename = "LayerNorm")]
    norm: LayerNorm,
}

#[derive(Module)]
struct BertLayer {
    query: Linear,
    key: Linear,
    value: Linear,
    attention: BertOutput,
    intermediate: Linear,
    output: BertOutput,
    heads: usize,
}

#[derive(Module)]
struct BertOutput {
    dense: Linear,
    #[module(rename = "LayerNorm")]
    norm: LayerNorm,
}

impl BertOutput {
    fn new(from: usize, to: usize) -> BertOutput {
        BertOutput { dense: Linear::new(from, to), norm: LayerNorm::new([to]).eps(1e-12) }
    }
    fn forward(&self, x: &Tensor, short: &Tensor) -> Tensor {
        self.norm.forward(&(self.dense.forward(x) + short))
    }
}

impl Bert {
    fn new(case: &Value) -> Bert {
        let [hidden, heads, vocabulary, positions] =
            ["hidden", "heads", "vocabulary", "positions"].map(|name| count(&case[name]));
        let linear = |to| Linear::new(hidden, to);
        let bert = BertModel {
            embeddings: BertEmbeddings {
                word_embeddings: Embedding::new(vocabulary, hidden),
                position_embeddings: Embedding::new(positions, hidden),
                token_type_embeddings: Embedding::new(2, hidden),
                norm: LayerNorm::new([hidden]).eps(1e-12),
            },
            layer: BertLayer {
                query: linear(hidden),
                key: linear(hidden),
                value: linear(hidden),
                attention: BertOutput::new(hidden, hidden),
                intermediate: linear(4 * hidden),
                output: BertOutput::new(4 * hidden, hidden),
                heads,
            },
            pooler: linear(hidden),
        };
        Bert { bert, classifier: linear(3) }
    }
    fn forward(&self, ids: &Tensor, kinds: &Tensor, seen: &Tensor) -> Tensor {
        let (e, layer) = (&self.bert.embeddings, &self.bert.layer);
        let positions = Tensor::arange(DType::I32, ids.size(1));
        let x = e.word_embeddings.forward(ids) + e.position_embeddings.forward(&positions);
        let x = e.norm.forward(&(x + e.token_type_embeddings.forward(kinds)));
        let [q, k, v] = [&layer.query, &layer.key, &layer.value].map(|p| split_heads(&p.forward(&x), layer.heads));
        let mask = seen.ne(0.0).reshape([seen.size(0), 1, 1, seen.size(1)]);
        let attended = join_heads(&Attention::new().mask(&mask).forward(&q, &k, &v));
        let x = layer.attention.forward(&attended, &x);
        let x = layer.output.forward(&activation::gelu(&layer.intermediate.forward(&x)), &x);
        let first = x.slice(&[0, 0, 0], &[x.size(0), 1, x.size(2)], &[1, 1, 1]).flatten(1, -1);
        self.classifier.forward(&self.bert.pooler.forward(&first).tanh())
    }
}

/// Hugging Face's `GPT2LMHeadModel` with one block: `transformer.*`, and the head is the embedding.
#[derive(Module)]
struct Gpt2 {
    wte: Embedding,
    wpe: Embedding,
    h: Vec<Gpt2Block>,
    ln_f: LayerNorm,
}

#[derive(Module)]
struct Gpt2Block {
    ln_1: LayerNorm,
    attn: Gpt2Attention,
    ln_2: LayerNorm,
    mlp: Gpt2Mlp,
}

#[derive(Module)]
struct Gpt2Attention {
    c_attn: Linear,
    c_proj: Linear,
    heads: usize,
}

#[derive(Module)]
struct Gpt2Mlp {
    c_fc: Linear,
    c_proj: Linear,
}

impl Gpt2 {
    fn new(case: &Value) -> Gpt2 {
        let [width, heads, vocabulary, positions] =
            ["width", "heads", "vocabulary", "positions"].map(|name| count(&case[name]));
        let block = Gpt2Block {
            ln_1: LayerNorm::new([width]),
            attn: Gpt2Attention { c_attn: Linear::new(width, 3 * width), c_proj: Linear::new(width, width), heads },
            ln_2: LayerNorm::new([width]),
            mlp: Gpt2Mlp { c_fc: Linear::new(width, 4 * width), c_proj: Linear::new(4 * width, width) },
        };
        Gpt2 {
            wte: Embedding::new(vocabulary, width),
            wpe: Embedding::new(positions, width),
            h: vec![block],
            ln_f: LayerNorm::new([width]),
        }
    }
    fn forward(&self, ids: &Tensor) -> Tensor {
        let mut x = self.wte.forward(ids) + self.wpe.forward(&Tensor::arange(DType::I32, ids.size(1)));
        for block in &self.h {
            let qkv = block.attn.c_attn.forward(&block.ln_1.forward(&x));
            let width = x.size(2);
            let part = |i: usize| {
                let (start, end) = ([0, 0, i * width], [x.size(0), x.size(1), (i + 1) * width]);
                split_heads(&qkv.slice(&start, &end, &[1, 1, 1]), block.attn.heads)
            };
            let attended = Attention::new().causal(true).forward(&part(0), &part(1), &part(2));
            x = x + block.attn.c_proj.forward(&join_heads(&attended));
            let hidden = activation::gelu_tanh(&block.mlp.c_fc.forward(&block.ln_2.forward(&x)));
            x = x + block.mlp.c_proj.forward(&hidden);
        }
        self.ln_f.forward(&x).matmul(&self.wte.weight.get().t())
    }
}

fn complete(report: &LoadReport, model: &dyn Module) {
    assert!(report.is_complete(), "{report}");
    assert_eq!(report.loaded.len(), model.state().len());
}

/// Loads the two models from a folder and compares their logits with those of Python.
fn check(folder: &Path, tolerance: f64) {
    let text = std::fs::read_to_string(folder.join("cases.json")).unwrap();
    let cases: Value = serde_json::from_str(&text).unwrap();
    let mut expected = Expected::within(tolerance, tolerance);

    let case = &cases["cases"]["bert"];
    let model = Bert::new(case);
    let renamed = |name: &str| {
        let name = name.replace("encoder.layer.0.", "layer.").replace("pooler.dense.", "pooler.");
        Some(
            name.replace("attention.self.", "")
                .replace("attention.output.", "attention.")
                .replace("intermediate.dense.", "intermediate."),
        )
    };
    let weights = StateDict::read(folder.join("pytorch_model.bin")).unwrap().rename_with(renamed).unwrap();
    complete(&weights.load_into(&model, Strictness::Strict).unwrap(), &model);
    let [ids, kinds, seen] = [0, 1, 2].map(|i| tensor(&case["inputs"][i]));
    expected.tensor("BERT", &model.forward(&ids, &kinds, &seen), &case["outputs"][0]);

    let case = &cases["cases"]["gpt2"];
    let model = Gpt2::new(case);
    let weights = StateDict::read(folder.join("gpt2")).unwrap().part("transformer").unwrap();
    let weights = weights.transpose(|name| name.contains(".c_") && name.ends_with(".weight")).unwrap();
    complete(&weights.load_into(&model, Strictness::Strict).unwrap(), &model);
    let mut logits = model.forward(&tensor(&case["inputs"][0]));
    if logits.size(-1) > 1000 {
        let [batch, length, vocabulary] = [0, 1, 2].map(|axis| logits.size(axis));
        logits = logits.slice(&[0, 0, 0], &[batch, length, vocabulary], &[1, 1, 997]);
    }
    expected.tensor("GPT-2", &logits, &case["outputs"][0]);
    expected.check();
}

#[test]
fn models_of_pythons_world_give_their_logits() {
    check(&path("pretrained"), 2e-5);
}

#[test]
#[ignore = "needs 250 MB of files that reference/pretrained.py writes; it says how"]
fn models_of_full_size_give_their_logits() {
    let folder = std::env::var_os("FULMEN_PRETRAINED").expect("FULMEN_PRETRAINED names the folder that was written");
    check(&PathBuf::from(folder), 1e-4);
}
