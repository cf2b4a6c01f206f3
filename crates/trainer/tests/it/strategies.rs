//! Strategies with sizes, such as `fsdp=2,tp=4`: ready-made models and a model of the user's own,
//! whose axes have names, train as on one device, and no device repeats another's work.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use fulmen_data::{DataLoader, TensorDataset};
use fulmen_models::decoder::{self, Decoder};
use fulmen_models::gpt2::{self, Gpt2};
use fulmen_models::{Lora, Pretrained, bert};
use fulmen_nn::attention::Attention;
use fulmen_nn::axes::{AxisRules, constrain};
use fulmen_nn::loss::{CrossEntropyLoss, LossMethod, Reduction, cross_entropy};
use fulmen_nn::optim::{Optimizer, Sgd};
use fulmen_nn::{Embedding, LayerNorm, Linear, Module, activation};
use fulmen_tensor::{Accelerator, Mesh, Sharding, Tensor};
use fulmen_trainer::preflight::{Report, Slice};
use fulmen_trainer::{
    Batch, Callback, Plan, Result, StepContext, Strategy, TrainStart, Trainer, TrainerBuilder,
    TrainingModule,
};

use crate::common::{Losses, assert_close, state_values};

const STEPS: usize = 3;
const BATCH: usize = 16;
const LENGTH: usize = 8;
const VOCABULARY: usize = 64;
const WIDTH: usize = 32;
const HEADS: usize = 8;

/// A model with logits `[batch, length, vocabulary]` for ids `[batch, length]`.
trait Logits: Module {
    fn logits(&self, ids: Tensor) -> Tensor;

    fn loss(&self, ids: Tensor, targets: Tensor) -> Tensor {
        cross_entropy(self.logits(ids), targets, Reduction::Mean)
    }
}

impl Logits for Decoder {
    fn logits(&self, ids: Tensor) -> Tensor {
        self.forward(ids)
    }
}

/// A decoder whose loss is computed without all logits.
#[derive(Module)]
struct ByKernel {
    #[module(flatten)]
    model: Decoder,
}

impl Logits for ByKernel {
    fn logits(&self, ids: Tensor) -> Tensor {
        self.model.forward(ids)
    }
    fn loss(&self, ids: Tensor, targets: Tensor) -> Tensor {
        self.model.loss(ids, targets, &CrossEntropyLoss::new())
    }
}

impl Logits for Lora<Decoder> {
    fn logits(&self, ids: Tensor) -> Tensor {
        self.apply(|model| model.forward(ids))
    }
}

impl Logits for Gpt2 {
    fn logits(&self, ids: Tensor) -> Tensor {
        self.forward(ids)
    }
}

impl Logits for bert::BertForMaskedLm {
    fn logits(&self, ids: Tensor) -> Tensor {
        self.forward(ids, None, None)
    }
}

/// A model of the user's own: each axis that a rule may split has a name.
#[derive(Module)]
pub(crate) struct Own {
    embed: Embedding,
    norm: LayerNorm,
    projections: Vec<Linear>,
    out: Linear,
    up: Linear,
    down: Linear,
    head: Linear,
}

impl Own {
    pub(crate) fn new() -> Own {
        let embed = Embedding::new(VOCABULARY, WIDTH);
        embed.weight.with_axes(["vocab", "embed"]);
        Own {
            embed,
            norm: LayerNorm::new([WIDTH]),
            projections: (0..3)
                .map(|_| Linear::new(WIDTH, WIDTH).with_axes("heads", "embed"))
                .collect(),
            out: Linear::new(WIDTH, WIDTH).with_axes("embed", "heads"),
            up: Linear::new(WIDTH, 4 * WIDTH).with_axes("mlp", "embed"),
            down: Linear::new(4 * WIDTH, WIDTH).with_axes("embed", "mlp"),
            head: Linear::new(WIDTH, VOCABULARY).with_axes("vocab", "embed"),
        }
    }
}

impl Logits for Own {
    fn logits(&self, ids: Tensor) -> Tensor {
        let tokens = |x: Tensor, features: &str| constrain(x, ["batch", "length", features]);
        let x = tokens(self.embed.forward(ids), "embed");
        let normal = self.norm.forward(&x);
        let heads = |layer: &Linear| {
            let x = tokens(layer.forward(&normal), "heads");
            x.unflatten(-1, &[HEADS as isize, -1]).transpose(1, 2)
        };
        let gathered = |x: Tensor| constrain(x, [Some("batch"), Some("heads"), None, Some("kv")]);
        let q = heads(&self.projections[0]);
        let k = gathered(heads(&self.projections[1]));
        let v = gathered(heads(&self.projections[2]));
        let attended = Attention::new().causal(true).forward(q, k, v);
        let attended = tokens(attended.transpose(1, 2).flatten(-2, -1), "heads");
        let x = x + tokens(self.out.forward(attended), "embed");
        let hidden = activation::gelu(&tokens(self.up.forward(&x), "mlp"));
        let x = x + tokens(self.down.forward(hidden), "embed");
        tokens(self.head.forward(x), "vocab")
    }
}

#[derive(Module)]
pub(crate) struct Language<M> {
    pub(crate) model: M,
}

impl<M: Logits> TrainingModule for Language<M> {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        self.model.loss(batch.get("x"), batch.get("y"))
    }
    fn validation_step(&self, batch: &Batch, cx: &mut StepContext) {
        let logits = self.model.logits(batch.get("x"));
        cx.log("val_loss", cross_entropy(&logits, batch.get("y"), Reduction::None).mean(1));
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        // Adam turns the rounding of gradients that are 0 into steps.
        Box::new(Sgd::new(0.1).momentum(0.9))
    }
}

fn llama(key_heads: usize, scan_layers: bool) -> Language<Decoder> {
    let config = decoder::Config {
        vocab_size: VOCABULARY,
        hidden_size: WIDTH,
        intermediate_size: 2 * WIDTH,
        num_hidden_layers: 2,
        num_attention_heads: HEADS,
        num_key_value_heads: Some(key_heads),
        initializer_range: 0.1,
        tie_word_embeddings: Some(scan_layers),
        ..decoder::Config::default()
    };
    let mut model = Decoder::new(config).unwrap();
    (model.scan_layers, model.gradient_checkpointing) = (scan_layers, scan_layers);
    Language { model }
}

/// A Mixtral with eight experts.
pub(crate) fn mixtral(scan_layers: bool) -> Language<Decoder> {
    let config = decoder::Config {
        vocab_size: VOCABULARY,
        hidden_size: WIDTH,
        intermediate_size: WIDTH,
        num_hidden_layers: 2,
        num_attention_heads: HEADS,
        num_key_value_heads: Some(HEADS),
        initializer_range: 0.1,
        ..decoder::Config::new(decoder::ModelType::Mixtral)
    };
    let mut model = Decoder::new(config).unwrap();
    (model.scan_layers, model.gradient_checkpointing) = (scan_layers, scan_layers);
    Language { model }
}

/// A DeepSeek-V2 whose second layer has four experts.
fn deepseek() -> Language<Decoder> {
    let sizes = decoder::Config {
        vocab_size: VOCABULARY,
        hidden_size: WIDTH,
        intermediate_size: WIDTH,
        num_hidden_layers: 2,
        num_attention_heads: HEADS,
        num_key_value_heads: Some(HEADS),
        initializer_range: 0.1,
        ..decoder::Config::new(decoder::ModelType::DeepseekV2)
    };
    let config = decoder::Config {
        q_lora_rank: Some(12),
        kv_lora_rank: Some(8),
        qk_nope_head_dim: Some(6),
        qk_rope_head_dim: Some(4),
        v_head_dim: Some(8),
        n_routed_experts: Some(4),
        num_experts_per_tok: Some(2),
        moe_intermediate_size: Some(8),
        first_k_dense_replace: Some(1),
        ..sizes
    };
    Language { model: Decoder::new(config).unwrap() }
}

fn gpt2() -> Language<Gpt2> {
    let config = gpt2::Config {
        vocab_size: VOCABULARY,
        n_positions: LENGTH,
        n_embd: WIDTH,
        n_layer: 2,
        n_head: HEADS,
        initializer_range: 0.1,
        ..gpt2::Config::default()
    };
    Language { model: Gpt2::new(config).unwrap() }
}

fn bert() -> Language<bert::BertForMaskedLm> {
    let config = bert::Config {
        vocab_size: VOCABULARY,
        hidden_size: WIDTH,
        num_hidden_layers: 1,
        num_attention_heads: HEADS,
        intermediate_size: 2 * WIDTH,
        max_position_embeddings: LENGTH,
        ..bert::Config::default()
    };
    Language { model: bert::BertForMaskedLm::new(config).unwrap() }
}

pub(crate) fn loader(steps: usize, length: usize, vocabulary: usize) -> DataLoader {
    let count = steps * BATCH;
    let token = |i: usize| (i * i % 31 * 7 % vocabulary) as i32;
    let tokens: Vec<i32> = (0..count * length).map(token).collect();
    let next: Vec<i32> = (0..count * length).map(|i| token(i + 1)).collect();
    let data = TensorDataset::builder()
        .array("x", [count, length], tokens)
        .array("y", [count, length], next)
        .build()
        .unwrap();
    DataLoader::builder(data).batch_size(BATCH).build().unwrap()
}

fn builder(strategy: &str, folder: &Path) -> TrainerBuilder {
    let strategy: Strategy = strategy.parse().unwrap();
    Trainer::builder()
        .accelerator(Accelerator::Cpu)
        .strategy(strategy)
        .max_epochs(1)
        .log_every_n_steps(1)
        .enable_progress_bar(false)
        .default_root_dir(folder)
}

/// How a fit ended.
struct Ending {
    losses: Vec<f64>,
    values: Vec<Vec<f64>>,
    checkpoint: PathBuf,
}

/// A fit up to this epoch, from a checkpoint if there is one.
fn fit<M: Logits>(
    module: &Language<M>,
    strategy: &str,
    devices: usize,
    epochs: u64,
    from: &Path,
    folder: &Path,
) -> Ending {
    let losses = Losses::default();
    let builder = builder(strategy, folder).devices(devices).max_epochs(epochs).ckpt_path(from);
    let mut trainer = builder.callback(losses.clone()).build().unwrap();
    let data = loader(STEPS, LENGTH, VOCABULARY);
    let summary = trainer.fit(module, &data, Some(&data)).unwrap();
    let values = state_values(module, &trainer);
    Ending { losses: losses.take(), values, checkpoint: summary.last_checkpoint.unwrap() }
}

#[track_caller]
fn assert_alike(what: &str, actual: &Ending, expected: &Ending) {
    println!("{what}");
    assert_eq!(actual.losses.len(), STEPS);
    assert_close(&actual.losses, &expected.losses, 1e-5);
    assert_eq!(actual.values.len(), expected.values.len());
    for (actual, expected) in actual.values.iter().zip(&expected.values) {
        assert_close(actual, expected, 1e-5);
    }
}

/// Fits over one epoch with each strategy, then over the next with the strategy after it, from the
/// checkpoint of the first.
fn check<M: Logits>(make: impl Fn() -> Language<M>, strategies: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let nothing = Path::new("");
    let first = fit(&make(), "ddp", 1, 1, nothing, folder.path());
    let second = fit(&make(), "ddp", 1, 2, &first.checkpoint, folder.path());
    assert!(second.losses[STEPS - 1] < 0.99 * first.losses[0], "it learns: {:?}", second.losses);
    let devices =
        |text: &str| text.split(['=', ',']).filter_map(|n| n.parse::<usize>().ok()).product();
    let mut saved: Vec<PathBuf> = Vec::new();
    for strategy in strategies {
        let own = fit(&make(), strategy, devices(strategy), 1, nothing, folder.path());
        assert_alike(strategy, &own, &first);
        saved.push(own.checkpoint);
    }
    for (i, from) in saved.iter().enumerate() {
        let next = strategies[(i + 1) % strategies.len()];
        let own = fit(&make(), next, devices(next), 2, from, folder.path());
        assert_alike(&format!("{} to {next}", strategies[i]), &own, &second);
    }
}

#[test]
fn a_decoder_trains_as_on_one_device() {
    check(|| llama(HEADS, false), &["fsdp=4,tp=2", "ddp=2,context=2,tp=2"]);
}

#[test]
fn the_kernel_of_the_loss_trains_as_on_one_device() {
    let by_kernel = || {
        let mut model = llama(HEADS, true).model;
        model.loss_method = LossMethod::Kernel;
        Language { model: ByKernel { model } }
    };
    check(by_kernel, &["fsdp=8"]);
}

/// Updates of a Llama whose weights are int8.
fn int8_lora() -> Language<Lora<Decoder>> {
    let model = llama(4, true).model;
    model.initialize(3);
    let lora = Lora::new(model, &["*_proj.weight"], 4, 16.0).unwrap();
    Language { model: lora.quantize_int8().unwrap() }
}

#[test]
#[ignore = "slow: ci/slow"]
fn updates_of_int8_weights_train_as_on_one_device() {
    check(int8_lora, &["ddp=8", "fsdp=8"]);
}

#[test]
fn int8_weights_are_not_trained_or_mixed_up_with_others() {
    let folder = tempfile::tempdir().unwrap();
    let fit = |module: &Language<Lora<Decoder>>, from: &Path| {
        let mut trainer = builder("ddp", folder.path()).devices(1).ckpt_path(from).build().unwrap();
        trainer.fit(module, &loader(1, LENGTH, VOCABULARY), None)
    };
    let quantized = int8_lora();
    let checkpoint = fit(&quantized, Path::new("")).unwrap().last_checkpoint.unwrap();
    let plain = Lora::new(llama(4, true).model, &["*_proj.weight"], 4, 16.0).unwrap();
    let text = fit(&Language { model: plain }, &checkpoint).unwrap_err().to_string();
    assert!(text.contains("down_proj.weight` is i8[32, 64] there and f32[32, 64] here"), "{text}");
    let weight = &quantized.model.model().lm_head.weight;
    weight.set_requires_grad(true);
    let text = fit(&quantized, Path::new("")).unwrap_err().to_string();
    assert!(
        text.contains(
            "`model.model.embed_tokens.weight` is i8[64, 32], and integers have no gradient"
        ),
        "{text}"
    );
}

#[test]
#[ignore = "slow: ci/slow"]
fn experts_on_several_devices_train_as_on_one() {
    check(|| mixtral(true), &["fsdp=2,expert=4"]);
}

#[test]
#[ignore = "slow: ci/slow"]
fn latent_attention_on_several_devices_trains_as_on_one() {
    check(deepseek, &["fsdp=2,expert=2,tp=2"]);
}

/// The losses of 200 steps of a Mixtral.
fn long_curve(strategy: &str, devices: usize) -> Vec<f64> {
    let folder = tempfile::tempdir().unwrap();
    let losses = Losses::default();
    let builder = builder(strategy, folder.path()).devices(devices).enable_checkpointing(false);
    let mut trainer = builder.max_epochs(50).callback(losses.clone()).build().unwrap();
    trainer.fit(&mixtral(false), &loader(4, LENGTH, VOCABULARY), None).unwrap();
    losses.take()
}

#[test]
#[ignore = "trains for 400 steps: cargo test -p fulmen-trainer --test it -- --ignored a_mixtral"]
fn a_mixtral_with_split_experts_learns_for_200_steps_as_on_one_device() {
    let one = long_curve("ddp", 1);
    let four = long_curve("expert=4", 4);
    assert_eq!(one.len(), 200);
    let off = one.iter().zip(&four).fold(0.0f64, |off, (a, b)| off.max((a - b).abs() / a));
    println!("from {} to {}: {off:e} off", one[0], one[199]);
    assert!(one[199] < 0.5 * one[0] && off < 1e-3, "{off:e}: {one:?} and {four:?}");
}

#[test]
#[ignore = "trains 66 times, mostly on eight devices: cargo test -p fulmen-trainer --test it -- --ignored each_combination"]
fn models_train_as_on_one_device_with_each_combination() {
    let pairs = ["ddp=2,fsdp=4", "ddp=2,context=4", "ddp=2,tp=4", "fsdp=2,context=4"];
    let more = ["fsdp=4,tp=2", "context=2,tp=4", "ddp=2,fsdp=2,context=2", "ddp=2,fsdp=2,tp=2"];
    let triples = ["ddp=2,context=2,tp=2", "fsdp=2,context=2,tp=2"];
    let all = ["ddp=8", "fsdp=8", "context=8", "tp=8", "ddp=2,fsdp=2,context=2,tp=2"];
    check(|| llama(HEADS, false), &[&all[..], &pairs, &more, &triples].concat());
    check(gpt2, &["tp=8", "fsdp=4,tp=2", "fsdp=2,context=4", "ddp=2,context=2,tp=2"]);
    let own = || Language { model: Own::new() };
    check(own, &["tp=8", "ddp=2,tp=4", "fsdp=4,tp=2", "fsdp=2,context=4"]);
    check(|| llama(4, true), &["ddp=2,tp=4", "fsdp=4,tp=2", "fsdp=2,context=2,tp=2"]);
    check(bert, &["tp=8", "fsdp=2,context=2,tp=2"]);
    let experts = ["expert=4", "ddp=2,expert=4", "expert=4,tp=2", "expert=2,context=4"];
    check(|| mixtral(false), &experts);
}

/// The strategies of eight devices: each way to write 8 as a product over the five kinds of
/// parallelism.
fn combinations() -> Vec<String> {
    const KINDS: [&str; 5] = ["ddp", "fsdp", "expert", "context", "tp"];
    let mut all = vec![(1, String::new())];
    for kind in KINDS {
        let with = |(devices, text): &(usize, String)| {
            let sizes = [1, 2, 4, 8].into_iter().filter(|size| devices * size <= 8);
            let own = sizes.map(|size| match size {
                1 => (*devices, text.clone()),
                _ => (devices * size, format!("{text},{kind}={size}")),
            });
            own.collect::<Vec<_>>()
        };
        all = all.iter().flat_map(with).collect();
    }
    let eight = all.into_iter().filter(|(devices, _)| *devices == 8);
    eight.map(|(_, text)| text.trim_start_matches(',').to_owned()).collect()
}

#[test]
#[ignore = "trains 72 times on eight devices: cargo test -p fulmen-trainer --test it -- --ignored every_strategy"]
fn experts_train_as_on_one_device_with_every_strategy_of_eight_devices() {
    let all = combinations();
    assert_eq!(all.len(), 35);
    // The next strategy continues from the checkpoint. A step of 12 has no common part with 35.
    let far: Vec<&str> = (0..35).map(|i| all[i * 12 % 35].as_str()).collect();
    check(|| mixtral(false), &far);
}

#[test]
fn scanned_layers_with_grouped_heads_train_as_on_one_device() {
    check(|| llama(4, true), &["fsdp=2,context=2,tp=2"]);
}

#[test]
#[ignore = "slow: ci/slow"]
fn gpt2_trains_as_on_one_device() {
    // Attention drops weights; the random numbers do not depend on the devices.
    check(gpt2, &["fsdp=4,tp=2"]);
}

#[test]
fn a_model_of_the_users_own_trains_as_on_one_device() {
    let own = || Language { model: Own::new() };
    check(own, &["ddp=2,tp=4"]);
}

/// Counts the operations of the compiled step.
#[derive(Clone, Default)]
struct Flops(Arc<Mutex<Option<f64>>>);

impl Callback for Flops {
    fn name(&self) -> &'static str {
        "Flops"
    }
    fn on_train_start(&mut self, start: &TrainStart<'_>) {
        *self.0.lock().unwrap() = start.flops();
    }
}

/// The operations of a step on each device of eight CPUs, and the advice.
fn cpu_flops<M: Logits>(
    module: &Language<M>,
    set: impl FnOnce(TrainerBuilder) -> TrainerBuilder,
) -> (f64, String) {
    cpu_flops_of(module, LENGTH, set)
}

fn cpu_flops_of<M: Logits>(
    module: &Language<M>,
    length: usize,
    set: impl FnOnce(TrainerBuilder) -> TrainerBuilder,
) -> (f64, String) {
    let folder = tempfile::tempdir().unwrap();
    let flops = Flops::default();
    let builder = builder("ddp", folder.path()).devices(8).enable_checkpointing(false);
    let mut trainer = set(builder).callback(flops.clone()).build().unwrap();
    trainer.fit(module, &loader(1, length, VOCABULARY), None).unwrap();
    let flops = flops.0.lock().unwrap().unwrap();
    (flops, trainer.metrics_report())
}

fn strategy(text: &'static str) -> impl FnOnce(TrainerBuilder) -> TrainerBuilder {
    move |builder| builder.strategy(text)
}

#[track_caller]
fn check_flops<M: Logits>(module: &Language<M>) {
    let (ddp, _) = cpu_flops(module, strategy("ddp=8"));
    // A gradient of a weight is a product over samples and tokens. Programs for CPUs have one axis for
    // both, so there the devices along `context` repeat this product.
    for text in ["tp=8", "fsdp=2,tp=4"] {
        let (own, advice) = cpu_flops(module, strategy(text));
        println!("{text}: {own:.4e} FLOP, {:.3} × ddp", own / ddp);
        assert!(own <= 1.05 * ddp, "{text}: {own} for {ddp}");
        assert!(!advice.contains("repeat work"), "{advice}");
    }
}

#[test]
#[ignore = "slow: ci/slow"]
fn no_device_repeats_the_work_of_another() {
    check_flops(&llama(HEADS, false));
    check_flops(&llama(HEADS, true));
    check_flops(&gpt2());
    check_flops(&Language { model: Own::new() });
}

/// The operations that the program has, not those of a loop whose length depends on the router.
#[test]
fn no_device_repeats_the_work_of_another_with_experts() {
    // Enough tokens for many blocks in each expert.
    let module = mixtral(false);
    let of = |text| cpu_flops_of(&module, 128, strategy(text)).0;
    let ddp = of("ddp=8");
    for text in ["expert=8", "fsdp=2,expert=4"] {
        let own = of(text);
        println!("{text}: {own:.4e} FLOP, {:.3} × ddp", own / ddp);
        assert!(own <= 1.05 * ddp, "{text}: {own} for {ddp}");
    }
}

/// Models that are large enough for products to count most.
fn wide_llama() -> Language<Decoder> {
    let config = decoder::Config {
        vocab_size: 4096,
        hidden_size: 1024,
        intermediate_size: 2816,
        num_hidden_layers: 2,
        num_attention_heads: 16,
        num_key_value_heads: Some(8),
        ..decoder::Config::default()
    };
    Language { model: Decoder::new(config).unwrap() }
}

fn wide_gpt2() -> Language<Gpt2> {
    let config = gpt2::Config {
        vocab_size: 4096,
        n_positions: 256,
        n_embd: 1024,
        n_layer: 2,
        n_head: 16,
        resid_pdrop: 0.0,
        embd_pdrop: 0.0,
        attn_pdrop: 0.0,
        ..gpt2::Config::default()
    };
    Language { model: Gpt2::new(config).unwrap() }
}

fn report<M: Logits>(module: &Language<M>, builder: TrainerBuilder) -> Report {
    let slices = Slice::parse_list("v5e:2x4").unwrap();
    builder.preflight(module, &loader(1, 256, 4096), &slices, None).unwrap()
}

fn tpu_flops<M: Logits>(module: &Language<M>, text: &str) -> f64 {
    let report = report(module, builder(text, Path::new("unused")));
    report.slices[0].step.as_ref().unwrap().flops
}

#[track_caller]
fn check_tpu<M: Logits>(module: &Language<M>) {
    let ddp = tpu_flops(module, "ddp");
    for text in ["tp=8", "fsdp=2,tp=4", "fsdp=2,context=4", "context=4,tp=2"] {
        let own = tpu_flops(module, text);
        println!("v5e:2x4, {text}: {own:.4e} FLOP, {:.3} × ddp", own / ddp);
        assert!(own <= 1.05 * ddp, "{text}: {own} for {ddp}");
    }
}

#[test]
#[ignore = "slow: ci/slow"]
fn libtpu_counts_the_same_flops_for_tensor_parallelism_and_ddp() {
    if crate::libtpu::libtpu().is_none() {
        return;
    }
    check_tpu(&wide_llama());
}

#[test]
#[ignore = "libtpu compiles for minutes: cargo test -p fulmen-trainer --test it -- --ignored libtpu_counts"]
fn libtpu_counts_the_same_flops_for_gpt2() {
    if crate::libtpu::libtpu().is_none() {
        return;
    }
    check_tpu(&wide_gpt2());
}

/// A mesh for eight devices.
fn grid(data: usize, model: usize) -> Mesh {
    Mesh::new([("data", data), ("model", model)]).unwrap()
}

/// Its weights are split, but each device gathers them, and its activations are whole.
#[derive(Module)]
struct Gathering {
    embed: Embedding,
    up: Linear,
    head: Linear,
}

impl Gathering {
    fn new(width: usize, vocabulary: usize) -> Gathering {
        let up = Linear::new(width, 4 * width).bias(false);
        let head = Linear::new(4 * width, vocabulary).bias(false);
        for layer in [&up, &head] {
            layer.weight.with_sharding(Sharding::new([Some("model")]));
        }
        Gathering { embed: Embedding::new(vocabulary, width), up, head }
    }
}

impl Logits for Gathering {
    fn logits(&self, ids: Tensor) -> Tensor {
        let columns = Sharding::new([Some("model")]);
        let whole = |x: Tensor| x.with_sharding(&Sharding::replicated());
        let product = |x: Tensor, layer: &Linear| {
            whole(x.matmul(layer.weight.get().all_gather(&columns).t()))
        };
        let hidden = product(whole(self.embed.forward(ids)), &self.up).tanh();
        product(hidden, &self.head)
    }
}

const SPLIT_ALONE: &str = "× the FLOPs of one device's share. Weights such as `model.up.weight` are split, but the \
                           activations around them are not";

#[test]
fn weights_that_are_split_alone_are_noticed() {
    let wrong = Language { model: Gathering::new(WIDTH, VOCABULARY) };
    let (own, advice) = cpu_flops(&wrong, |builder| builder.mesh(grid(1, 8)));
    // Two products and two gradients of each.
    let weights = 4 * WIDTH * (WIDTH + VOCABULARY);
    let share = (3 * 2 * BATCH * LENGTH * weights) as f64 / 8.0;
    let times = own / share;
    println!("{times:.2} × the share");
    let expected =
        format!("devices along the mesh axis `model` repeat work: {times:.1} {SPLIT_ALONE}");
    assert!(times > 4.0 && advice.contains(&expected), "{times} {advice}");
}

#[test]
fn an_axis_over_which_nothing_is_split_is_noticed() {
    let (_, advice) = cpu_flops(&llama(HEADS, false), |builder| builder.mesh(grid(1, 8)));
    assert!(advice.contains("8.0 × the FLOPs of one device's share. Nothing is split"), "{advice}");
}

#[test]
#[ignore = "slow: ci/slow"]
fn preflight_notices_weights_that_are_split_alone() {
    if crate::libtpu::libtpu().is_none() {
        return;
    }
    let builder = |text| builder(text, Path::new("unused"));
    let wrong = Language { model: Gathering::new(1024, 4096) };
    let slices = report(&wrong, builder("ddp").mesh(grid(1, 8))).slices;
    assert!(slices[0].warnings.iter().any(|w| w.message.contains(SPLIT_ALONE)), "{slices:?}");
    let slices = report(&wide_llama(), builder("tp=8")).slices;
    assert!(!slices[0].warnings.iter().any(|w| w.message.contains("repeat work")), "{slices:?}");
}

/// The error of a fit on eight devices.
fn error<M: Logits>(
    module: &Language<M>,
    set: impl FnOnce(TrainerBuilder) -> TrainerBuilder,
) -> String {
    let folder = tempfile::tempdir().unwrap();
    let fit = || -> Result<()> {
        let mut trainer = set(builder("ddp", folder.path()).devices(8)).build()?;
        trainer.fit(module, &loader(1, LENGTH, VOCABULARY), None).map(drop)
    };
    fit().unwrap_err().to_string()
}

#[test]
fn what_cannot_be_split_is_named() {
    let message = error(&llama(2, false), strategy("ddp=2,tp=4"));
    let expected =
        "the axis `kv_heads` has size 2, which the mesh axis `model` (4 devices) does not divide";
    assert!(message.contains(expected), "{message}");
    let config = decoder::Config {
        vocab_size: 65,
        hidden_size: WIDTH,
        intermediate_size: WIDTH,
        num_hidden_layers: 1,
        num_attention_heads: HEADS,
        ..decoder::Config::default()
    };
    let odd = Language { model: Decoder::new(config).unwrap() };
    let message = error(&odd, strategy("tp=8"));
    let expected = "the parameter `model.model.embed_tokens.weight`: the axis `vocab` has size 65, which the mesh axis `model` (8 devices)";
    assert!(message.contains(expected), "{message}");
    // Without that rule, the others hold.
    let rules = AxisRules::default().without("vocab");
    let (own, _) = cpu_flops(&odd, |builder| builder.strategy("tp=8").axis_rules(rules));
    assert!(own > 0.0);
    let message = error(&llama(HEADS, false), strategy("fsdp=2,tp=3"));
    assert!(message.contains("needs 6 devices (2 × 3), but there are 8"), "{message}");
    let mesh = Mesh::new([("data", 8)]).unwrap();
    let message = error(&llama(HEADS, false), |builder| builder.strategy("tp=8").mesh(mesh));
    assert!(message.contains("leave out `mesh`"), "{message}");
    let message = error(&llama(HEADS, false), strategy("fsdp=2,pipeline=4"));
    assert!(message.contains("`pipeline` is not a kind of parallelism"), "{message}");
}

#[test]
fn blocks_are_refused_where_the_length_is_split() {
    use fulmen_nn::attention::AttentionMethod;
    let mut module = llama(HEADS, false);
    module.model.attention = AttentionMethod::Blocks;
    let message = error(&module, strategy("ddp=2,context=4"));
    assert!(message.contains("split `length`; use the method `plain`"), "{message}");
    assert!(cpu_flops(&module, strategy("ddp=2,tp=4")).0 > 0.0);
}
