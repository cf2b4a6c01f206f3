//! Generation with a cache of keys and values: token by token, it gives the same results as the
//! whole sequence at once, with a single program that is compiled once.

use crate::common::{assert_close, fault, set_simple_values, values};
use fulmen_nn::attention::{Attention, KeyValueCache, RotaryEmbedding};
use fulmen_nn::{
    Embedding, LayerNorm, Linear, Module, MultiheadAttention, RmsNorm, TransformerEncoder,
    TransformerEncoderLayer, activation,
};
use fulmen_tensor::{
    Accelerator, Argument, DType, Devices, Function, Literal, Runtime, Tensor, TensorType,
    fori_loop, random,
};

const HEADS: usize = 4;
const KEY_HEADS: usize = 2;
const WIDTH: usize = 6;
const MAX_LEN: usize = 12;
const BATCH: usize = 2;

/// A block as in Llama.
#[derive(Module)]
struct Block {
    input_layernorm: RmsNorm,
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    post_attention_layernorm: RmsNorm,
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
}

impl Block {
    fn new(features: usize) -> Block {
        let linear = |from, to| Linear::new(from, to).bias(false);
        Block {
            input_layernorm: RmsNorm::new([features]),
            q_proj: linear(features, HEADS * WIDTH),
            k_proj: linear(features, KEY_HEADS * WIDTH),
            v_proj: linear(features, KEY_HEADS * WIDTH),
            o_proj: linear(HEADS * WIDTH, features),
            post_attention_layernorm: RmsNorm::new([features]),
            gate_proj: linear(features, 32),
            up_proj: linear(features, 32),
            down_proj: linear(32, features),
        }
    }

    /// The next tokens with a cache, all tokens without one.
    fn forward(
        &self,
        x: &Tensor,
        cache: Option<&KeyValueCache>,
    ) -> (Tensor, Option<KeyValueCache>) {
        let rope = RotaryEmbedding::new(WIDTH);
        let h = self.input_layernorm.forward(x);
        let split =
            |y: Tensor, heads| y.reshape([x.size(0), x.size(1), heads, WIDTH]).transpose(1, 2);
        let q = split(self.q_proj.forward(&h), HEADS);
        let k = split(self.k_proj.forward(&h), KEY_HEADS);
        let v = split(self.v_proj.forward(&h), KEY_HEADS);
        let grouped = Attention::new().enable_gqa(true);
        let (heads, cache) = match cache {
            None => (grouped.causal(true).forward(&rope.forward(&q), &rope.forward(&k), &v), None),
            Some(cache) => {
                let positions = cache.next_positions(x.size(1));
                let cache = cache.append(&rope.forward_at(&k, &positions), &v);
                let q = rope.forward_at(&q, &positions);
                (
                    grouped.mask(&cache.mask(x.size(1))).forward(&q, cache.keys(), cache.values()),
                    Some(cache),
                )
            }
        };
        let joined = heads.transpose(1, 2).reshape([x.size(0), x.size(1), HEADS * WIDTH]);
        let x = x + self.o_proj.forward(&joined);
        let h = self.post_attention_layernorm.forward(&x);
        let h = activation::swiglu(&self.gate_proj.forward(&h), &self.up_proj.forward(&h));
        (&x + self.down_proj.forward(&h), cache)
    }
}

#[derive(Module)]
struct Model {
    embed_tokens: Embedding,
    layers: Vec<Block>,
    lm_head: Linear,
}

impl Model {
    fn new() -> Model {
        let model = Model {
            embed_tokens: Embedding::new(17, 16),
            layers: (0..2).map(|_| Block::new(16)).collect(),
            lm_head: Linear::new(16, 17).bias(false),
        };
        set_simple_values(&model);
        model
    }

    fn forward(
        &self,
        tokens: &Tensor,
        caches: Option<&[KeyValueCache]>,
    ) -> (Tensor, Vec<KeyValueCache>) {
        let mut x = self.embed_tokens.forward(tokens);
        let mut next = Vec::new();
        for (i, layer) in self.layers.iter().enumerate() {
            let cache;
            (x, cache) = layer.forward(&x, caches.map(|caches| &caches[i]));
            next.extend(cache);
        }
        (self.lm_head.forward(&x), next)
    }

    fn caches(&self) -> Vec<KeyValueCache> {
        self.layers
            .iter()
            .map(|_| KeyValueCache::new(DType::F32, BATCH, KEY_HEADS, MAX_LEN, WIDTH))
            .collect()
    }

    /// A program for `count` tokens: takes the tokens and the caches, and returns logits and
    /// caches.
    fn step(&self, count: usize) -> Function {
        let tokens = TensorType::new(DType::I32, [BATCH, count]);
        let function = Function::trace("generate", (tokens, self.caches()), |(tokens, caches)| {
            self.forward(&tokens, Some(&caches))
        });
        (1..function.parameters().len())
            .fold(function, |function, i| function.donate(i, i).unwrap_or_else(|e| panic!("{e}")))
    }
}

/// The columns `from..to` of `[BATCH, MAX_LEN]`.
fn columns(all: &[i32], from: usize, to: usize) -> Vec<i32> {
    all.chunks(MAX_LEN).flat_map(|row| row[from..to].to_vec()).collect()
}

#[test]
fn token_by_token_is_the_whole_sequence_by_one_program() {
    let model = Model::new();
    let tokens: Vec<i32> = (0..(BATCH * MAX_LEN) as i32).map(|i| (i * 7 + i * i) % 17).collect();
    // A separate runtime, so that other tests do not change its count of compilations.
    let runtime = Runtime::open(Accelerator::Cpu, &Devices::from(1)).unwrap();
    let whole = model.forward(&Tensor::from_slice(&tokens, [BATCH, MAX_LEN]), None).0;
    let whole = values(&whole);
    let prompt = runtime.compile(&model.step(5)).unwrap();
    let token = runtime.compile(&model.step(1)).unwrap();
    let empty: Vec<Tensor> = model.caches().iter().flat_map(|cache| cache.tensors()).collect();
    let mut state = runtime.compute(&empty).unwrap();
    let compiled = runtime.metrics().value("UncachedCompile");
    let mut from = 0;
    while from < MAX_LEN {
        let (program, count) = if from == 0 { (&prompt, 5) } else { (&token, 1) };
        let next =
            Literal::from_slice(&columns(&tokens, from, from + count), [BATCH, count]).unwrap();
        let next = runtime.to_device(&next).unwrap();
        let arguments = [Argument::Borrow(&next)]
            .into_iter()
            .chain(state.into_iter().map(Argument::Donate))
            .collect();
        let mut outputs = program.call(arguments).unwrap().arrays;
        state = outputs.split_off(1);
        let logits = runtime.read(&[&outputs[0]]).unwrap().wait().unwrap().remove(0).to_f64();
        let expected: Vec<f64> = whole
            .chunks(MAX_LEN * 17)
            .flat_map(|row| row[from * 17..(from + count) * 17].to_vec())
            .collect();
        assert_close(&logits, &expected, 1e-4, 1e-5, &format!("logits from {from}"));
        from += count;
    }
    // Everything was compiled before the first token.
    assert_eq!(runtime.metrics().value("UncachedCompile"), compiled);
    assert_eq!(compiled, 3, "prompt, token, empty caches");

    // One token more than the cache has room for.
    let next =
        runtime.to_device(&Literal::from_slice(&[0i32; BATCH], [BATCH, 1]).unwrap()).unwrap();
    let arguments = [Argument::Borrow(&next)]
        .into_iter()
        .chain(state.into_iter().map(Argument::Donate))
        .collect();
    let outputs = token.call(arguments).unwrap().arrays;
    let logits = runtime.read(&[&outputs[0]]).unwrap().wait().unwrap().remove(0).to_f64();
    assert!(logits.iter().all(|logit| logit.is_nan()));
}

#[test]
fn multihead_attention_with_a_cache_is_causal_attention() {
    let layer = MultiheadAttention::new(8, 2);
    set_simple_values(&layer);
    let x = random::normal(&random::key(0), DType::F32, [2, 6, 8]);
    let whole = values(&layer.forward(&x, &x, &x, &Attention::new().causal(true)));
    let mut cache = KeyValueCache::new(DType::F32, 2, 2, 10, 4);
    let mut parts = Vec::new();
    for (start, count) in [(0, 3), (3, 1), (4, 2)] {
        let y;
        (y, cache) = layer.forward_cached(&x.narrow(1, start, count), &cache);
        parts.push(y);
    }
    let parts: Vec<&Tensor> = parts.iter().collect();
    assert_close(&values(&Tensor::concatenate(&parts, 1)), &whole, 1e-5, 1e-6, "in parts");
    assert_eq!(values(cache.position()), [6.0]);
}

#[test]
fn a_transformer_with_caches_is_the_causal_one() {
    for norm_first in [false, true] {
        let layer = || {
            TransformerEncoderLayer::new(8, 2)
                .dim_feedforward(12)
                .dropout(0.0)
                .norm_first(norm_first)
        };
        let model = TransformerEncoder::new(2, layer).norm(LayerNorm::new([8]));
        set_simple_values(&model);
        let x = random::normal(&random::key(0), DType::F32, [1, 4, 8]);
        let whole = model.forward(&x, &Attention::new().causal(true));
        let caches = vec![KeyValueCache::new(DType::F32, 1, 2, 5, 4); 2];
        let (first, caches) = model.forward_cached(&x.narrow(1, 0, 3), &caches);
        let (last, _) = model.forward_cached(&x.narrow(1, 3, 1), &caches);
        let parts = Tensor::concatenate(&[&first, &last], 1);
        assert_close(&values(&(parts - whole)), &[0.0; 32], 0.0, 1e-5, "in parts");
        assert!(fault(&model.forward_cached(&x, &caches[..1]).0).contains("2 layers got 1 cache;"));
    }
}

/// The whole generation as one program: a loop carries the caches.
#[test]
fn a_loop_on_the_device_can_carry_the_cache() {
    let layer = MultiheadAttention::new(8, 2);
    set_simple_values(&layer);
    let first = random::normal(&random::key(0), DType::F32, [1, 1, 8]);
    // The next token is the layer's output for the last one.
    let mut all = first.clone();
    for _ in 0..4 {
        let y = layer.forward(&all, &all, &all, &Attention::new().causal(true));
        all = Tensor::concatenate(&[&all, &y.narrow(1, y.size(1) - 1, 1)], 1);
    }
    let cache = KeyValueCache::new(DType::F32, 1, 2, 6, 4);
    let (after, _) =
        fori_loop(0, 4, (&first, cache), |_, (y, cache)| layer.forward_cached(&y, &cache));
    assert_close(&values(&after), &values(&all.narrow(1, 4, 1)), 1e-5, 1e-6, "the fifth");
}

#[test]
fn a_cache_refuses_what_does_not_fit() {
    let cache = KeyValueCache::new(DType::F32, 2, 2, 4, 3);
    let zeros = |shape: &[usize]| Tensor::zeros(DType::F32, shape);
    for shape in [[2, 2, 5, 3], [2, 1, 1, 3], [1, 2, 1, 3], [2, 2, 1, 4]] {
        let text = fault(cache.append(&zeros(&shape), &zeros(&shape)).keys());
        assert!(text.contains("does not fit into a cache of f32[2, 2, 4, 3]"), "{text}");
    }
    assert!(fault(cache.append(&zeros(&[3]), &zeros(&[3])).values()).contains("does not fit"));
    let layer = MultiheadAttention::new(8, 2);
    layer.initialize(0);
    let (y, cache) = layer.forward_cached(&zeros(&[2, 1, 6]), &cache);
    assert!(fault(&y).contains("is not [batch, length, 8]"));
    assert!(fault(cache.keys()).contains("is not [batch, length, 8]"));
}
