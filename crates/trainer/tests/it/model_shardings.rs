//! Models that a user splits over a mesh train as on one device: Megatron's columns and rows,
//! a split vocabulary, a split sequence, experts, scanned layers, and a GAN.

use fulmen_data::{DataLoader, TensorDataset};
use fulmen_nn::activation::gelu;
use fulmen_nn::attention::Attention;
use fulmen_nn::loss::{Reduction, cross_entropy};
use fulmen_nn::optim::{Optimizer, Sgd};
use fulmen_nn::{
    Conv2d, Embedding, Init, LayerNorm, Linear, Module, MultiheadAttention, Parameter, scan_layers,
};
use fulmen_tensor::{DType, Mesh, Sharding, Tensor};
use fulmen_trainer::{Batch, Optimizers, Plan, StepContext, Strategy, TrainingModule};

use crate::common::{Losses, short_fit, state_values};

const STEPS: usize = 4;
const BATCH: usize = 16;
const TOKENS: usize = 8;
const VOCABULARY: usize = 24;
const WIDTH: usize = 16;
const EXPERTS: usize = 4;

/// A layer of experts: each token goes through its own, weighed by its score.
#[derive(Module)]
struct Experts {
    scores: Linear,
    up: Parameter,
    down: Parameter,
}

impl Experts {
    fn new() -> Experts {
        let init = Init::Uniform { low: -0.3, high: 0.3 };
        Experts {
            scores: Linear::new(WIDTH, EXPERTS),
            up: Parameter::new([EXPERTS, WIDTH, 2 * WIDTH], init.clone()),
            down: Parameter::new([EXPERTS, 2 * WIDTH, WIDTH], init),
        }
    }

    fn forward(&self, x: &Tensor) -> Tensor {
        let scores = self.scores.forward(x).softmax(-1);
        let (best, expert) = scores.topk(1);
        let chosen = expert.squeeze(-1).one_hot(EXPERTS).to_dtype(DType::F32) * best;
        // A copy of each token for its expert, and zeros for the others.
        let tokens = Tensor::einsum("bse,bsd->ebsd", &[&chosen, x]);
        let tokens = tokens.with_sharding(&Sharding::new([Some("model"), Some("data")]));
        let hidden = gelu(&Tensor::einsum("ebsd,edh->ebsh", &[&tokens, &self.up.get()]));
        Tensor::einsum("ebsh,ehd->bsd", &[&hidden, &self.down.get()])
    }
}

#[derive(Module)]
struct Language {
    embed: Embedding,
    norm1: LayerNorm,
    attention: MultiheadAttention,
    norm2: LayerNorm,
    fc1: Linear,
    fc2: Linear,
    experts: Experts,
    head: Linear,
    /// The sharding of the activations between the layers.
    #[module(skip)]
    activations: Sharding,
}

impl Language {
    fn new() -> Language {
        Language {
            embed: Embedding::new(VOCABULARY, WIDTH),
            norm1: LayerNorm::new([WIDTH]),
            attention: MultiheadAttention::new(WIDTH, 4),
            norm2: LayerNorm::new([WIDTH]),
            fc1: Linear::new(WIDTH, 4 * WIDTH),
            fc2: Linear::new(4 * WIDTH, WIDTH),
            experts: Experts::new(),
            head: Linear::new(WIDTH, VOCABULARY),
            activations: Sharding::new([Some("data")]),
        }
    }
}

impl TrainingModule for Language {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        let place = |x: Tensor| x.with_sharding(&self.activations);
        let x = place(self.embed.forward(batch.get("x")));
        let h = self.norm1.forward(&x);
        let x = place(x + self.attention.forward(&h, &h, &h, &Attention::new().causal(true)));
        let h = gelu(&self.fc1.forward(&self.norm2.forward(&x)));
        let x = place(x + self.fc2.forward(&h));
        let x = place(&x + self.experts.forward(&x));
        let logits = self.head.forward(&x).flatten(0, 1);
        cross_entropy(&logits, &batch.get("y").flatten(0, 1), Reduction::Mean)
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        // The bias of the keys has no gradient but rounding, which Adam would turn into steps.
        Box::new(sgd())
    }
}

#[derive(Module)]
struct Layer {
    attention: MultiheadAttention,
    norm: LayerNorm,
    fc1: Linear,
    fc2: Linear,
    experts: Experts,
}

/// Equal layers as one loop.
#[derive(Module)]
struct Scanned {
    embed: Embedding,
    layers: Vec<Layer>,
    head: Linear,
    /// The sharding of the activations between the parts of each layer.
    #[module(skip)]
    activations: Option<Sharding>,
}

impl Scanned {
    fn new() -> Scanned {
        let layer = || Layer {
            attention: MultiheadAttention::new(WIDTH, 4),
            norm: LayerNorm::new([WIDTH]),
            fc1: Linear::new(WIDTH, 4 * WIDTH),
            fc2: Linear::new(4 * WIDTH, WIDTH),
            experts: Experts::new(),
        };
        Scanned {
            embed: Embedding::new(VOCABULARY, WIDTH),
            layers: vec![layer(), layer(), layer()],
            head: Linear::new(WIDTH, VOCABULARY),
            activations: None,
        }
    }

    /// With columns, rows, the vocabulary and the experts split over `model`.
    fn split() -> Scanned {
        let columns = Sharding::new([Some("model"), None]);
        let scanned = Scanned::new();
        scanned.embed.weight.with_sharding(columns.clone());
        scanned.head.weight.with_sharding(columns.clone());
        for layer in &scanned.layers {
            layer.fc1.weight.with_sharding(columns.clone());
            layer.fc2.weight.with_sharding(Sharding::new([None, Some("model")]));
            layer.experts.up.with_sharding(Sharding::new([Some("model")]));
            layer.experts.down.with_sharding(Sharding::new([Some("model")]));
        }
        scanned
    }
}

impl TrainingModule for Scanned {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        let place = |x: Tensor| match &self.activations {
            Some(sharding) => x.with_sharding(sharding),
            None => x,
        };
        let x = place(self.embed.forward(batch.get("x")));
        let x = scan_layers(&self.layers, &x, |layer, x| {
            let causal = Attention::new().causal(true);
            let x = place(x + layer.attention.forward(x, x, x, &causal));
            let hidden = gelu(&layer.fc1.forward(&layer.norm.forward(&x)));
            let x = place(&x + layer.fc2.forward(&hidden));
            place(&x + layer.experts.forward(&x))
        });
        let logits = self.head.forward(&x).flatten(0, 1);
        cross_entropy(&logits, &batch.get("y").flatten(0, 1), Reduction::Mean)
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(sgd())
    }
}

/// A GAN on images of 8 × 8, with convolutions.
#[derive(Module)]
struct Gan {
    up: Linear,
    out: Conv2d,
    judge: Conv2d,
    score: Linear,
}

impl Gan {
    fn new() -> Gan {
        Gan {
            up: Linear::new(TOKENS, 4 * 64),
            out: Conv2d::new(4, 1, 3).padding(1),
            judge: Conv2d::new(1, 8, 3).stride(2),
            score: Linear::new(8, 1),
        }
    }

    fn judged(&self, image: &Tensor) -> Tensor {
        self.score.forward(&self.judge.forward(image).tanh().mean([2, 3]))
    }
}

impl TrainingModule for Gan {
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
        let noise = batch.get("x").to_dtype(DType::F32) * 0.1 - 1.0;
        let real = Tensor::stack(&[&noise; TOKENS], 1).sin().unsqueeze(1);
        let fake =
            || self.out.forward(&self.up.forward(&noise).tanh().reshape([BATCH, 4, 8, 8])).tanh();
        let loss = cx.minimize("discriminator", |_| {
            let wrong = self.judged(&fake().detach()).sigmoid() - self.judged(&real).sigmoid();
            wrong.mean_all()
        });
        cx.minimize("generator", |_| (self.judged(&fake()) * -1.0).exp().mean_all());
        loss
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        let optimizers = Optimizers::new().add("discriminator", ["judge.*", "score.*"], sgd());
        Box::new(optimizers.add("generator", ["up.*", "out.*"], sgd()))
    }
}

fn sgd() -> Sgd {
    Sgd::new(0.05).momentum(0.9)
}

fn loader() -> DataLoader {
    let count = STEPS * BATCH;
    let token = |i: usize| (i * i % 31 * 7 % VOCABULARY) as i32;
    let tokens: Vec<i32> = (0..count * TOKENS).map(token).collect();
    let next: Vec<i32> = (0..count * TOKENS).map(|i| token(i + 1)).collect();
    let data = TensorDataset::builder()
        .array("x", [count, TOKENS], tokens)
        .array("y", [count, TOKENS], next)
        .build()
        .unwrap();
    DataLoader::builder(data).batch_size(BATCH).build().unwrap()
}

/// The losses of all steps, and the final values, on a mesh or on one device.
fn train<M: TrainingModule>(
    module: &M,
    mesh: Option<&Mesh>,
    strategy: Strategy,
) -> (Vec<f64>, Vec<Vec<f64>>) {
    let losses = Losses::default();
    let folder = tempfile::tempdir().unwrap();
    let devices = mesh.map_or(1, Mesh::num_devices);
    let builder = short_fit(devices, strategy, &losses, folder.path());
    let builder = match mesh {
        Some(mesh) => builder.mesh(mesh.clone()),
        None => builder,
    };
    let mut trainer = builder.build().unwrap();
    trainer.fit(module, &loader(), None).unwrap();
    (losses.take(), state_values(module, &trainer))
}

fn assert_alike(
    name: &str,
    (losses, values): &(Vec<f64>, Vec<Vec<f64>>),
    (other_losses, other_values): &(Vec<f64>, Vec<Vec<f64>>),
) {
    assert_eq!(losses.len(), other_losses.len());
    for (a, b) in losses.iter().zip(other_losses) {
        assert!((a - b).abs() <= 2e-5 * a.abs().max(1.0), "{name}: the loss is {b}, not {a}");
    }
    for (i, (a, b)) in values.iter().zip(other_values).enumerate() {
        let far = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(far <= 2e-4, "{name}: tensor {i} is off by {far}");
    }
}

fn grid() -> Mesh {
    Mesh::new([("data", 2), ("model", 4)]).unwrap()
}

#[test]
fn a_language_model_split_by_its_user_trains_as_on_one_device() {
    let columns = Sharding::new([Some("model"), None]);
    let rows = Sharding::new([None, Some("model")]);
    let experts = Sharding::new([Some("model")]);
    let sequence = Sharding::new([Some("data"), Some("model")]);
    let one = train(&Language::new(), None, Strategy::Ddp);
    assert_eq!(one.0.len(), STEPS);

    let megatron = Language::new();
    megatron.fc1.weight.with_sharding(columns.clone());
    megatron.fc2.weight.with_sharding(rows.clone());
    megatron.embed.weight.with_sharding(columns.clone());
    megatron.head.weight.with_sharding(columns.clone());
    assert_alike("Megatron", &one, &train(&megatron, Some(&grid()), Strategy::Ddp));

    let split_sequence = Language { activations: sequence, ..Language::new() };
    split_sequence.fc1.weight.with_sharding(columns);
    split_sequence.fc2.weight.with_sharding(rows.clone());
    assert_alike("sequence", &one, &train(&split_sequence, Some(&grid()), Strategy::Ddp));

    let with_experts = Language::new();
    with_experts.experts.up.with_sharding(experts.clone());
    with_experts.experts.down.with_sharding(experts);
    with_experts.embed.weight.with_sharding(rows);
    assert_alike("experts", &one, &train(&with_experts, Some(&grid()), Strategy::Fsdp));

    let cube = Mesh::new([("data", 2), ("fsdp", 2), ("model", 2)]).unwrap();
    assert_alike("fsdp", &one, &train(&Language::new(), Some(&cube), Strategy::Fsdp));
}

#[test]
fn scanned_layers_split_by_their_user_train_as_on_one_device() {
    let one = train(&Scanned::new(), None, Strategy::Ddp);
    assert_alike("ddp", &one, &train(&Scanned::split(), Some(&grid()), Strategy::Ddp));
    let cube = Mesh::new([("data", 2), ("fsdp", 2), ("model", 2)]).unwrap();
    assert_alike("fsdp", &one, &train(&Scanned::split(), Some(&cube), Strategy::Fsdp));
}

#[test]
fn scanned_layers_on_a_split_sequence_train_as_on_one_device() {
    let one = train(&Scanned::new(), None, Strategy::Ddp);
    let sequence = Some(Sharding::new([Some("data"), Some("model")]));
    let split = || Scanned { activations: sequence.clone(), ..Scanned::new() };
    assert_alike("ddp", &one, &train(&split(), Some(&grid()), Strategy::Ddp));
    assert_alike("fsdp", &one, &train(&split(), Some(&grid()), Strategy::Fsdp));
    // The weights are split over the same axis as the sequence, or the batch over two axes.
    let both = Scanned { activations: sequence.clone(), ..Scanned::split() };
    assert_alike("weights too", &one, &train(&both, Some(&grid()), Strategy::Ddp));
    let cube = Mesh::new([("data", 2), ("fsdp", 2), ("model", 2)]).unwrap();
    let batch_and_sequence = Sharding::over([vec!["data", "fsdp"], vec!["model"]]);
    let both = Scanned { activations: Some(batch_and_sequence), ..Scanned::split() };
    assert_alike("three axes", &one, &train(&both, Some(&cube), Strategy::Fsdp));
}

#[test]
fn a_gan_split_by_its_user_trains_as_on_one_device() {
    let one = train(&Gan::new(), None, Strategy::Ddp);
    let split = Gan::new();
    split.up.weight.with_sharding(Sharding::new([Some("model"), None]));
    split.judge.weight.with_sharding(Sharding::new([Some("model")]));
    assert_alike("split", &one, &train(&split, Some(&grid()), Strategy::Ddp));
    assert_alike("fsdp", &one, &train(&Gan::new(), Some(&grid()), Strategy::Fsdp));
}
