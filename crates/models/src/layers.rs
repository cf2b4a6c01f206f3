//! Runs the layers of a deep model: in sequence, as scans, or recomputed in the backward pass.

use std::ops::Range;

use fulmen_nn::attention::KeyValueCache;
use fulmen_nn::{Module, scan_layers_with_outputs};
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
pub(crate) fn run_layers<L: Module, K: PartialEq>(
    x: Tensor,
    layers: &[L],
    cache: Option<&StaticCache>,
    options: LayerOptions,
    kind: impl Fn(&L) -> K,
    layer: impl Fn(usize, &Tensor, Option<&KeyValueCache>) -> (Tensor, Option<KeyValueCache>),
) -> (Tensor, Option<StaticCache>) {
    let Outputs { x, cache, .. } =
        run_layers_with_others(x, layers, cache, options, kind, |i, x, cache| {
            let (x, cache) = layer(i, x, cache);
            (x, cache, None)
        });
    (x, cache)
}

/// What a row of layers gives.
pub(crate) struct Outputs {
    pub(crate) x: Tensor,
    pub(crate) cache: Option<StaticCache>,
    /// The other outputs, with the numbers of the layers that have them; none with a cache.
    pub(crate) others: Vec<(usize, Tensor)>,
}

/// [`run_layers`], in which a layer can also have another output.
pub(crate) fn run_layers_with_others<L: Module, K: PartialEq>(
    x: Tensor,
    layers: &[L],
    cache: Option<&StaticCache>,
    options: LayerOptions,
    kind: impl Fn(&L) -> K,
    layer: impl Fn(
        usize,
        &Tensor,
        Option<&KeyValueCache>,
    ) -> (Tensor, Option<KeyValueCache>, Option<Tensor>),
) -> Outputs {
    if let Some(cache) = cache {
        let mut x = x;
        let mut next = Vec::new();
        for (i, before) in cache.layers().iter().enumerate() {
            let after;
            (x, after, _) = layer(i, &x, Some(before));
            next.extend(after);
        }
        return Outputs { x, cache: Some(cache.with_layers(next)), others: Vec::new() };
    }
    let residual = |x: Tensor| match options.residual_dtype {
        Some(dtype) => x.to_dtype(dtype),
        None => x,
    };
    let in_one = options.layers_per_checkpoint.max(1);
    let row = Row {
        layer: &|i, x| {
            let (x, _, other) = layer(i, x, None);
            (residual(x), other)
        },
        recomputes: options.gradient_checkpointing,
        in_one,
    };
    let mut x = residual(x);
    let mut others = Vec::new();
    let mut first = 0;
    let kinds: Vec<K> = layers.iter().map(kind).collect();
    while first < layers.len() {
        let (period, times) =
            if options.scan_layers { repetition(&kinds[first..]) } else { (1, 1) };
        // A step of a scan has whole repetitions.
        let length = match times {
            1 => in_one.min(layers.len() - first),
            _ => period * in_one.div_ceil(period).min(times),
        };
        let steps = (period * times / length).max(1);
        let end = first + length * steps;
        if steps == 1 {
            let (next, found) = row.run(&x, first..end);
            x = next;
            others.extend(found);
        } else {
            let mut numbers = Vec::new();
            let (next, stacked) =
                scan_layers_with_outputs(layers[first..end].chunks(length), &x, |_, x| {
                    let (x, found) = row.run(x, first..first + length);
                    let (layers, others): (_, Vec<Tensor>) = found.into_iter().unzip();
                    numbers = layers;
                    (x, others)
                });
            x = next;
            for (number, stacked) in numbers.into_iter().zip(stacked.into_iter().flatten()) {
                let step = |step: usize| (number + step * length, stacked.index(0, step as isize));
                others.extend((0..steps).map(step));
            }
        }
        first = end;
    }
    others.sort_by_key(|(number, _)| *number);
    Outputs { x, cache: None, others }
}

/// Layers without a cache, one after the other.
struct Row<'a> {
    #[allow(clippy::type_complexity, reason = "a type alias would be used only once")]
    layer: &'a dyn Fn(usize, &Tensor) -> (Tensor, Option<Tensor>),
    recomputes: bool,
    in_one: usize,
}

/// The other outputs of layers, with their numbers.
type Others = Vec<(usize, Tensor)>;

impl Row<'_> {
    fn run(&self, x: &Tensor, layers: Range<usize>) -> (Tensor, Others) {
        let mut x = x.clone();
        let mut others = Vec::new();
        for start in layers.clone().step_by(self.in_one) {
            let some = start..layers.end.min(start + self.in_one);
            let is_group = some.len() > 1;
            let each = |x: &Tensor| {
                let mut x = x.clone();
                let mut others = Vec::new();
                for i in some {
                    let (next, found) = self.checkpoint(&x, |x| {
                        let (x, other) = (self.layer)(i, x);
                        (x, other.into_iter().map(|other| (i, other)).collect())
                    });
                    x = next;
                    others.extend(found);
                }
                (x, others)
            };
            let (next, found) = if is_group { self.checkpoint(&x, each) } else { each(&x) };
            x = next;
            others.extend(found);
        }
        (x, others)
    }

    /// Calls `f`, in a checkpoint if layers are computed again.
    fn checkpoint(
        &self,
        x: &Tensor,
        f: impl FnOnce(&Tensor) -> (Tensor, Others),
    ) -> (Tensor, Others) {
        if !self.recomputes {
            return f(x);
        }
        let mut numbers = Vec::new();
        let (x, others) = checkpoint(
            |x| {
                let (x, others) = f(&x);
                let (layers, others): (Vec<usize>, Vec<Tensor>) = others.into_iter().unzip();
                numbers = layers;
                (x, others)
            },
            x,
        );
        (x, numbers.into_iter().zip(others).collect())
    }
}

/// The length of the repeated pattern at the start of `kinds`, and the number of its repetitions.
/// Of all patterns, it is the one that covers the most layers with one loop. If nothing repeats, it
/// is a single layer.
fn repetition(kinds: &[impl PartialEq]) -> (usize, usize) {
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
            let program = Function::trace("forward", (), |()| forward(model)).stablehlo().unwrap();
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
    fn a_decoder_of_latent_attention_is_the_same_as_a_scan() {
        use crate::decoder::{Config, Decoder, ModelType};
        let sizes = Config {
            vocab_size: 20,
            hidden_size: 8,
            intermediate_size: 12,
            num_hidden_layers: 2,
            num_attention_heads: 2,
            num_key_value_heads: Some(2),
            attention_dropout: 0.2,
            ..Config::new(ModelType::DeepseekV3)
        };
        let config = Config {
            q_lora_rank: Some(6),
            kv_lora_rank: Some(8),
            qk_nope_head_dim: Some(6),
            qk_rope_head_dim: Some(4),
            v_head_dim: Some(5),
            ..sizes
        };
        let scan = |model: &mut Decoder| {
            model.scan_layers = true;
            model.gradient_checkpointing = true;
        };
        check(Decoder::new(config).unwrap(), scan, |model| model.forward(ids()));
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
