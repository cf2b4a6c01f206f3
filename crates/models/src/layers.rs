//! Runs the layers of a deep model: in sequence, as scans, or recomputed in the backward pass.

use std::ops::Range;

use fulmen_nn::attention::KeyValueCache;
use fulmen_nn::{Module, scan_layers};
use fulmen_tensor::{DType, Tensor, checkpoint};

use crate::StaticCache;

/// The options of a row of layers, with the names of the models' fields.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LayerOptions {
    /// Whether the backward pass keeps only the inputs of layers.
    pub(crate) gradient_checkpointing: bool,
    /// Equal layers are one loop.
    pub(crate) scan_layers: bool,
    /// How many layers keep one input; 0 is 1.
    pub(crate) layers_per_checkpoint: usize,
    /// The dtype of the inputs and outputs of layers, if it is not that of the first input.
    pub(crate) residual_dtype: Option<DType>,
}

/// Runs the layers one after the other and collects their updated caches. `layer` gets a layer's
/// number, its input and its cache, if there is one. The options apply only without a cache. Layers
/// of the same `kind` differ only in their values; a scan calls `layer` only for the layers of its
/// first step.
pub(crate) fn run_layers<L: Module>(
    x: Tensor,
    layers: &[L],
    cache: Option<&StaticCache>,
    options: LayerOptions,
    kind: impl Fn(&L) -> bool,
    layer: impl Fn(usize, &Tensor, Option<&KeyValueCache>) -> (Tensor, Option<KeyValueCache>),
) -> (Tensor, Option<StaticCache>) {
    if let Some(cache) = cache {
        let mut x = x;
        let mut next = Vec::new();
        for (i, before) in cache.layers().iter().enumerate() {
            let after;
            (x, after) = layer(i, &x, Some(before));
            next.extend(after);
        }
        return (x, Some(cache.with_layers(next)));
    }
    let residual = |x: Tensor| match options.residual_dtype {
        Some(dtype) => x.to_dtype(dtype),
        None => x,
    };
    let forward = |x: Tensor, i: usize| {
        if options.gradient_checkpointing {
            checkpoint(|x| vec![residual(layer(i, &x[0], None).0)], &[&x]).swap_remove(0)
        } else {
            residual(layer(i, &x, None).0)
        }
    };
    let in_one = options.layers_per_checkpoint.max(1);
    let row = |x: &Tensor, layers: Range<usize>| {
        layers.clone().step_by(in_one).fold(x.clone(), |x, start| {
            let some = start..layers.end.min(start + in_one);
            if options.gradient_checkpointing && some.len() > 1 {
                checkpoint(|x| vec![some.fold(x[0].clone(), forward)], &[&x]).swap_remove(0)
            } else {
                some.fold(x, forward)
            }
        })
    };
    let mut x = residual(x);
    let mut first = 0;
    let kinds: Vec<bool> = layers.iter().map(kind).collect();
    while first < layers.len() {
        let (period, times) =
            if options.scan_layers { repetition(&kinds[first..]) } else { (1, 1) };
        // A step of a scan has whole repetitions.
        let length = match times {
            1 => in_one.min(layers.len() - first),
            _ => period * in_one.div_ceil(period).min(times),
        };
        let steps = (period * times / length).max(1);
        let from = first;
        let end = first + length * steps;
        x = match steps {
            1 => row(&x, from..end),
            _ => scan_layers(layers[from..end].chunks(length), &x, |_, x| {
                row(x, from..from + length)
            }),
        };
        first = end;
    }
    (x, None)
}

/// The length of the repeated pattern at the start of `kinds`, and the number of its repetitions.
/// Of all patterns, it is the one that covers the most layers with one loop. If nothing repeats, it
/// is a single layer.
fn repetition(kinds: &[bool]) -> (usize, usize) {
    let times = |period: usize| {
        let repeated = kinds.iter().zip(&kinds[period..]).take_while(|(a, b)| a == b).count();
        1 + repeated / period
    };
    (1..=kinds.len() / 2)
        .rev()
        .map(|period| (period, times(period)))
        .filter(|&(_, times)| times > 1)
        .max_by_key(|(period, times)| period * times)
        .unwrap_or((1, 1))
}

#[cfg(test)]
mod tests {
    use fulmen_tensor::{DType, Function, Runtime, autocast, grad, random};

    use super::*;
    use crate::Pretrained;

    /// The logits, and the gradients of a loss of them, with the random numbers of one key.
    fn logits_and_gradients(model: &impl Module, forward: impl Fn() -> Tensor) -> Vec<Tensor> {
        model.set_random_key(&random::key(3));
        let logits = forward();
        let weights: Vec<Tensor> =
            model.parameters().iter().map(|(_, parameter)| parameter.get()).collect();
        let gradients = grad(&(&logits * &logits).mean_all(), &weights);
        [vec![logits], gradients].concat()
    }

    /// Checks that a model gives the same logits and gradients with scans and without, with the
    /// same dropout.
    #[track_caller]
    fn check<M: Module>(mut model: M, scan: impl Fn(&mut M), forward: impl Fn(&M) -> Tensor) {
        model.initialize(1);
        let loops = |model: &M| {
            let program =
                Function::trace("forward", &[], |_| vec![forward(model)]).stablehlo().unwrap();
            program.matches("stablehlo.while").count()
        };
        let mut all = logits_and_gradients(&model, || forward(&model));
        let count = all.len();
        assert_eq!(loops(&model), 0);
        scan(&mut model);
        model.set_random_key(&random::key(3));
        assert_eq!(loops(&model), 1);
        all.extend(logits_and_gradients(&model, || forward(&model)));
        assert!(all[count].fault().is_none(), "{:?}", all[count].fault());
        // A loop's values keep their types in mixed precision too.
        let mixed = autocast(Some(DType::Bf16), || forward(&model));
        assert!(mixed.fault().is_none(), "{:?}", mixed.fault());
        let values: Vec<Vec<f64>> = Runtime::global()
            .unwrap()
            .eval_many(&all)
            .unwrap()
            .iter()
            .map(|value| value.to_f64())
            .collect();
        let (expected, actual) = values.split_at(count);
        for (i, (expected, actual)) in expected.iter().zip(actual).enumerate() {
            let largest = expected.iter().fold(0.0f64, |largest, x| largest.max(x.abs()));
            let error =
                expected.iter().zip(actual).fold(0.0f64, |error, (x, y)| error.max((x - y).abs()));
            assert!(
                error <= 1e-5 * largest + 1e-9,
                "value {i} is {error:e} off; its largest number is {largest:e}"
            );
        }
    }

    fn ids() -> Tensor {
        Tensor::arange(DType::I32, 12).reshape([2, 6])
    }

    #[cfg(feature = "decoder")]
    #[test]
    fn a_decoder_of_two_kinds_of_layers_is_the_same_as_scans() {
        use crate::decoder::{Config, Decoder, ModelType};
        let config = Config {
            model_type: ModelType::Gemma2,
            vocab_size: 20,
            hidden_size: 8,
            intermediate_size: 12,
            num_hidden_layers: 4,
            num_attention_heads: 2,
            head_dim: Some(4),
            sliding_window: Some(2),
            query_pre_attn_scalar: Some(4),
            attention_dropout: 0.2,
            ..Config::default()
        };
        check(
            Decoder::new(config).unwrap(),
            |model| model.scan_layers = true,
            |model| model.forward(ids()),
        );
    }

    #[cfg(feature = "decoder")]
    #[test]
    fn layers_that_keep_one_input_together_are_the_same() {
        use crate::decoder::{Config, Decoder};
        let config = Config {
            vocab_size: 20,
            hidden_size: 8,
            intermediate_size: 12,
            num_hidden_layers: 5,
            num_attention_heads: 2,
            attention_dropout: 0.2,
            ..Config::default()
        };
        let scan = |model: &mut Decoder| {
            model.scan_layers = true;
            model.gradient_checkpointing = true;
            model.layers_per_checkpoint = 2;
        };
        check(Decoder::new(config).unwrap(), scan, |model| model.forward(ids()));
    }

    #[cfg(feature = "gpt2")]
    #[test]
    fn gpt2_is_the_same_as_a_scan_of_checkpoints() {
        use crate::gpt2::{Config, Gpt2};
        let config = Config {
            vocab_size: 20,
            n_positions: 6,
            n_embd: 8,
            n_layer: 2,
            n_head: 2,
            ..Config::default()
        };
        let scan = |model: &mut Gpt2| {
            model.scan_layers = true;
            model.gradient_checkpointing = true;
        };
        check(Gpt2::new(config).unwrap(), scan, |model| model.forward(ids()));
    }

    #[cfg(feature = "bert")]
    #[test]
    fn bert_is_the_same_as_a_scan() {
        use crate::bert::{BertForMaskedLm, Config};
        let sizes =
            Config { vocab_size: 20, hidden_size: 8, num_hidden_layers: 2, ..Config::default() };
        let config = Config {
            num_attention_heads: 2,
            intermediate_size: 12,
            max_position_embeddings: 8,
            ..sizes
        };
        let scan = |model: &mut BertForMaskedLm| model.bert.encoder.scan_layers = true;
        check(BertForMaskedLm::new(config).unwrap(), scan, |model| {
            model.forward(ids(), None, None)
        });
    }

    #[cfg(feature = "vit")]
    #[test]
    fn vit_is_the_same_as_a_scan() {
        use crate::vit::{Config, ViT};
        let sizes = Config {
            hidden_size: 8,
            num_hidden_layers: 2,
            num_attention_heads: 2,
            ..Config::default()
        };
        let config = Config {
            intermediate_size: 12,
            image_size: 8,
            patch_size: 4,
            hidden_dropout_prob: 0.2,
            ..sizes
        };
        let pixels = random::normal(&random::key(5), DType::F32, [2, 3, 8, 8]);
        check(
            ViT::new(config).unwrap(),
            |model| model.scan_layers = true,
            |model| model.forward(&pixels),
        );
    }

    #[cfg(feature = "t5")]
    #[test]
    fn t5_is_the_same_as_a_scan_behind_the_first_block() {
        use crate::t5::{Config, T5};
        let sizes = Config {
            vocab_size: 20,
            d_model: 8,
            d_kv: 4,
            d_ff: 12,
            num_layers: 1,
            ..Config::default()
        };
        let config = Config { num_decoder_layers: Some(3), num_heads: 2, ..sizes };
        let scan = |model: &mut T5| model.scan_layers = true;
        check(T5::new(config).unwrap(), scan, |model| {
            model.forward(ids(), None, ids().narrow(1, 0, 4))
        });
    }

    #[test]
    fn rows_of_kinds_become_the_longest_loops() {
        let gemma3: Vec<bool> = (0..26).map(|i| (i + 1) % 6 == 0).collect();
        assert_eq!(repetition(&gemma3), (6, 4));
        assert_eq!(repetition(&gemma3[24..]), (1, 2));
        assert_eq!(repetition(&[true; 5]), (1, 5));
        // T5: the first block differs.
        assert_eq!(repetition(&[true, false, false, false]), (1, 1));
        assert_eq!(repetition(&[false, false, true, true]), (1, 2));
        assert_eq!(repetition(&[true]), (1, 1));
    }
}
