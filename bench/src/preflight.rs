//! `preflight`: the compiler's estimates for our training steps, in comparison with hand-written
//! JAX programs of the same steps. The same libtpu compiles both for the same slice of TPUs. No TPU
//! is needed, and only the compile time is measured.

use std::error::Error;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fulmen::data::TensorDataset;
use fulmen::low_level::pjrt::hlo::Module;
use fulmen::models::{Lora, Pretrained, bert, biggan, decoder, gpt2, marian, resnet, roberta};
use fulmen::nn::attention::AttentionMethod;
use fulmen::nn::loss::LossMethod;
use fulmen::prelude::*;
use fulmen::trainer::preflight::{Feasibility, Slice};
use fulmen::trainer::{Precision, Strategy};
use serde::Deserialize;

use crate::models::{
    BigGan, Gpt, LanguageModel, MaskedLanguageModel, Mlp, ResNetClassifier, Translator,
    gpt2_without_dropout,
};
use crate::peer::{PEERS, python};
use crate::report::write_part;
use crate::row::{Row, print_row};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The workloads, separated by commas [default: all].
    #[arg(long, value_delimiter = ',')]
    workloads: Vec<String>,
    /// The slice to compile for, instead of each workload's own.
    #[arg(long)]
    topology: Option<Slice>,
    /// The strategy, instead of each workload's own.
    #[arg(long, requires = "no_peer")]
    strategy: Option<Strategy>,
    /// The lengths to compile the decoders for, separated by commas, instead of their own. The
    /// decoders are the Llamas and Mixtral.
    #[arg(long, value_delimiter = ',')]
    length: Vec<usize>,
    #[command(flatten)]
    decoder: DecoderOptions,
    /// Skip the peer.
    #[arg(long)]
    no_peer: bool,
    /// Write the rows into this chapter of the book, between its lines `<!-- bench preflight -->`.
    #[arg(long, conflicts_with_all = ["no_peer", "length", "attention"])]
    book: Option<PathBuf>,
    /// Print a line of JSON for each result.
    #[arg(long)]
    json: bool,
}

/// How the decoders are computed.
#[derive(clap::Args, Clone, Copy, PartialEq)]
struct DecoderOptions {
    /// How the decoders compute attention. The peer's is splash attention with `kernel`, and plain with
    /// `auto` and `plain`; it has no `blocks`.
    #[arg(long, default_value_t = DecoderOptions::PLAIN.attention)]
    attention: AttentionMethod,
    /// How the decoders compute the loss.
    #[arg(long, default_value_t = DecoderOptions::PLAIN.loss, requires = "no_peer")]
    loss: LossMethod,
    /// Whether the decoders' residual stream is bf16.
    #[arg(long, requires = "no_peer")]
    bf16_residual: bool,
    /// The number of the decoders' layers that keep one input for the backward pass.
    #[arg(long, default_value_t = DecoderOptions::PLAIN.layers_per_checkpoint, requires = "no_peer")]
    layers_per_checkpoint: usize,
    /// Whether AdamW's running means are bf16.
    #[arg(long, requires = "no_peer")]
    bf16_state: bool,
}

impl DecoderOptions {
    /// As the peer does it.
    const PLAIN: DecoderOptions = DecoderOptions {
        attention: AttentionMethod::Auto,
        loss: LossMethod::Plain,
        bf16_residual: false,
        layers_per_checkpoint: 1,
        bf16_state: false,
    };

    fn apply(self, model: &mut decoder::Decoder) {
        model.attention = self.attention;
        model.loss_method = self.loss;
        model.residual_dtype = self.bf16_residual.then_some(DType::Bf16);
        model.layers_per_checkpoint = self.layers_per_checkpoint;
    }
}

impl fmt::Display for DecoderOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DecoderOptions { attention, loss, bf16_residual, layers_per_checkpoint, bf16_state } =
            self;
        write!(f, "attention {attention}, loss {loss}")?;
        if *bf16_residual {
            f.write_str(", bf16 residual stream")?;
        }
        if *bf16_state {
            f.write_str(", bf16 optimizer state")?;
        }
        match layers_per_checkpoint {
            1 => Ok(()),
            layers => write!(f, ", {layers} layers a checkpoint"),
        }
    }
}

/// A training step for a slice.
#[derive(Clone, Copy)]
pub(crate) struct Workload {
    name: &'static str,
    /// The title in the book.
    title: &'static str,
    batch: usize,
    topology: &'static str,
    strategy: Strategy,
    /// The number of tokens of a sequence of the decoders.
    length: usize,
    decoder: DecoderOptions,
}

const fn ddp(
    name: &'static str,
    title: &'static str,
    batch: usize,
    topology: &'static str,
) -> Workload {
    let strategy = Strategy::Ddp;
    let decoder = DecoderOptions::PLAIN;
    Workload { name, title, batch, topology, strategy, length: 8192, decoder }
}

const fn fsdp(
    name: &'static str,
    title: &'static str,
    batch: usize,
    topology: &'static str,
) -> Workload {
    Workload { strategy: Strategy::Fsdp, ..ddp(name, title, batch, topology) }
}

const WORKLOADS: [Workload; 12] = [
    ddp("mlp", "MLP 784-512-256-10, SGD", 1024, "v3:2x2"),
    ddp("gpt", "GPT of 4 layers, 128 tokens, AdamW", 64, "v3:2x2"),
    ddp("resnet50", "ResNet-50, SGD", 1024, "v3:2x2"),
    ddp("transformer-big", "Transformer-big, 128 tokens to 128, Adam", 256, "v5e:2x4"),
    ddp("roberta-base", "RoBERTa-base, 512 tokens, AdamW", 256, "v5e:4x4"),
    ddp("biggan-128", "BigGAN-128, two Adams", 256, "v5e:4x4"),
    fsdp("gpt-1.3b", "GPT-1.3B, 1024 tokens, AdamW, remat", 64, "v5e:2x4"),
    Workload {
        length: 4096,
        ..fsdp("llama-3-8b", "Llama-3-8B, 4096 tokens, AdamW, scan, remat", 256, "v5e:16x16")
    },
    fsdp("llama-3-8b-v5p", "Llama-3-8B, 8192 tokens, AdamW, scan, remat", 64, "v5p:4x4x4"),
    Workload {
        length: 4096,
        ..fsdp(LLAMA_70B, "Llama-3-70B, 4096 tokens, AdamW, scan, remat", 256, "v5e:16x16")
    },
    Workload {
        length: 4096,
        ..fsdp(MIXTRAL, "Mixtral-8x7B, 4096 tokens, AdamW, scan, remat", 256, "v5e:16x16")
    },
    Workload {
        length: 4096,
        ..ddp(INT8_LORA, "Llama-3-8B in int8, 4096 tokens, LoRA, AdamW, scan, remat", 1, "v5e:1x1")
    },
];

const LLAMA_70B: &str = "llama-3-70b";
const MIXTRAL: &str = "mixtral-8x7b";

/// LoRA of rank 16 for all projections of a Llama 3 whose frozen weights are int8.
const INT8_LORA: &str = "llama-3-8b-int8-lora";

/// The workloads that run only if they are named.
const NAMED: [&str; 3] = [LLAMA_70B, MIXTRAL, INT8_LORA];

/// The workloads that the peer does not have.
const WITHOUT_PEER: [&str; 2] = [MIXTRAL, INT8_LORA];

impl Workload {
    pub(crate) fn find(name: &str) -> Option<Workload> {
        WORKLOADS.into_iter().find(|workload| workload.name == name)
    }

    /// Whether the workload has the options of the decoders.
    fn is_decoder(&self) -> bool {
        self.name.starts_with("llama") || self.name == MIXTRAL
    }

    /// Refuses what the peer cannot compute.
    fn check_peer(&self) -> Result<(), String> {
        let Workload { name, length, decoder, .. } = self;
        let why = if WITHOUT_PEER.contains(name) {
            format!("the peer has no {name}")
        } else if decoder.attention == AttentionMethod::Blocks {
            "the peer has no attention in blocks".to_owned()
        } else if decoder.attention == AttentionMethod::Kernel && !has_splash(*length) {
            format!(
                "the peer's splash attention takes multiples of 128 tokens up to 512, and multiples of 512 above, not \
                 {length}"
            )
        } else {
            return Ok(());
        };
        Err(format!("{why}; add `--no-peer` to compile only ours"))
    }
}

/// Whether the blocks of the peer's splash attention divide a sequence. They have 512 tokens, or the
/// whole sequence if it is shorter, in multiples of 128.
fn has_splash(length: usize) -> bool {
    length > 0 && length.is_multiple_of(length.clamp(128, 512)) && length.is_multiple_of(128)
}

/// The compiler's estimates for one device. FLOPs and bytes include every iteration of a loop. The
/// compiler counts one, also for its optimal time.
#[derive(Debug, Deserialize)]
pub(crate) struct Cost {
    /// The version of the library.
    pub(crate) version: String,
    pub(crate) flops: f64,
    bytes_accessed: f64,
    pub(crate) hbm_bytes: f64,
    optimal_seconds: Option<f64>,
    parameters: u64,
    pub(crate) compile_s: f64,
}

/// The peer's answer: the cost, or the compiler's message about a step that does not fit.
#[derive(Deserialize)]
#[serde(untagged)]
enum Answer {
    Fits(Cost),
    Misfit { misfit: String },
}

/// The workloads to compile, with the options of the command.
fn chosen(args: &Args) -> Result<Vec<Workload>, String> {
    let names = WORKLOADS.map(|workload| workload.name);
    if let Some(unknown) = args.workloads.iter().find(|name| !names.contains(&name.as_str())) {
        return Err(format!("there is no workload {unknown}; there are {}", names.join(", ")));
    }
    let is_chosen = |workload: &Workload| {
        args.workloads.iter().any(|name| *name == workload.name)
            || args.workloads.is_empty() && !NAMED.contains(&workload.name)
    };
    let lengths: Vec<Option<usize>> = match &args.length[..] {
        [] => vec![None],
        lengths => lengths.iter().copied().map(Some).collect(),
    };
    let mut chosen = Vec::new();
    for workload in WORKLOADS.into_iter().filter(is_chosen) {
        if !workload.is_decoder()
            && (!args.length.is_empty() || args.decoder != DecoderOptions::PLAIN)
        {
            return Err(format!(
                "{} has no `--length`, `--attention`, `--loss`, `--bf16-residual`, `--bf16-state` and \
                 `--layers-per-checkpoint`; the Llamas and Mixtral do",
                workload.name
            ));
        }
        for length in &lengths {
            let workload = Workload {
                length: length.unwrap_or(workload.length),
                decoder: args.decoder,
                strategy: args.strategy.unwrap_or(workload.strategy),
                ..workload
            };
            if !args.no_peer {
                workload.check_peer()?;
            }
            chosen.push(workload);
        }
    }
    Ok(chosen)
}

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    for workload in &chosen(args)? {
        let slice = args.topology.clone().map_or_else(|| workload.topology.parse(), Ok)?;
        let ours = ours(workload, &slice)?;
        let (peer, missing) = if args.no_peer {
            (None, None)
        } else {
            match peer(workload, &slice) {
                Ok(peer) => (peer, None),
                // The book needs complete tables.
                Err(why) if args.book.is_some() => return Err(why),
                Err(why) => (None, Some(why.to_string())),
            }
        };
        if let Some((ours, peer)) = ours.as_ref().zip(peer.as_ref())
            && ours.parameters != peer.parameters
        {
            let a = ours.parameters;
            let b = peer.parameters;
            return Err(
                format!("the models differ: ours has {a} parameters, the peer's {b}").into()
            );
        }
        let has_options = !args.length.is_empty() || args.decoder != DecoderOptions::PLAIN;
        for (i, (quantity, unit)) in QUANTITIES.into_iter().enumerate() {
            let value = |cost: &Option<Cost>| cost.as_ref().and_then(|cost| cost.values()[i]);
            let Some(value_of_ours) = value(&ours) else { continue };
            let Workload { name, batch, strategy, length, decoder, .. } = workload;
            let step = if has_options {
                format!("{name}, {length} tokens, {decoder}")
            } else {
                (*name).to_owned()
            };
            let title = format!("{step}, batch {batch}, {slice}, {strategy}");
            let mut row = Row::new("preflight", title, quantity, unit).ours(&[value_of_ours]);
            row = match (value(&peer), &missing) {
                (Some(value), _) => {
                    row.peer("jax", peer.as_ref().map_or("", |peer| &*peer.version), &[value])
                }
                (None, Some(why)) => row.missing("jax", why),
                (None, None) => row,
            };
            print_row(&row, args.json)?;
        }
        if let Some(book) = &args.book {
            write_row(book, &row(workload, &slice, &ours, &peer))?;
        }
    }
    Ok(())
}

/// The quantities of a [`Cost`], with their units.
const QUANTITIES: [(&str, &str); 5] = [
    ("FLOPs", ""),
    ("bytes accessed", ""),
    ("HBM", "bytes"),
    ("optimal time", "s"),
    ("compile time", "s"),
];

impl Cost {
    /// In the order of [`QUANTITIES`].
    fn values(&self) -> [Option<f64>; 5] {
        let Cost { flops, bytes_accessed, hbm_bytes, optimal_seconds, compile_s, .. } = *self;
        [Some(flops), Some(bytes_accessed), Some(hbm_bytes), optimal_seconds, Some(compile_s)]
    }
}

pub(crate) fn ours(workload: &Workload, slice: &Slice) -> Result<Option<Cost>, Box<dyn Error>> {
    let &Workload { name, batch, strategy, length, decoder: options, .. } = workload;
    let vision = |shape: &[usize]| images(batch, shape);
    match name {
        "mlp" => judge(&Mlp::new(), &vision(&[784])?, strategy, slice),
        "gpt" => judge(&Gpt::new(DType::Bf16), &words(batch, Gpt::LENGTH)?, strategy, slice),
        "resnet50" => judge(
            &ResNetClassifier::new(resnet::Config::resnet50(), 0.1),
            &vision(&[3, 224, 224])?,
            strategy,
            slice,
        ),
        "transformer-big" => {
            let model = marian::Marian::new(marian::Config::big(32768))?;
            judge(&Translator { model, lr: 1e-3 }, &words(batch, 128)?, strategy, slice)
        }
        "roberta-base" => {
            let model = roberta::RobertaForMaskedLm::new(bert::Config::roberta())?;
            judge(&MaskedLanguageModel { model, lr: 6e-4 }, &words(batch, 512)?, strategy, slice)
        }
        "biggan-128" => judge(
            &BigGan::new(&biggan::Config::default())?,
            &vision(&[3, 128, 128])?,
            strategy,
            slice,
        ),
        "gpt-1.3b" => {
            judge(&LanguageModel::gpt2(gpt_1_3b()), &words(batch, 1024)?, strategy, slice)
        }
        _ => {
            let config = match name {
                LLAMA_70B => llama_3_70b(),
                MIXTRAL => mixtral_8x7b(),
                _ => llama_3_8b(),
            };
            let mut model = decoder::Decoder::new(config)?;
            model.scan_layers = true;
            model.gradient_checkpointing = true;
            options.apply(&mut model);
            let mut model = if name == INT8_LORA {
                let lora = Lora::new(model, &["*_proj.weight"], 16, 32.0)?;
                LanguageModel::lora(lora.quantize_int8()?)
            } else {
                LanguageModel::decoder(model)
            };
            if options.bf16_state {
                model.state_dtype = DType::Bf16;
            }
            judge(&model, &words(batch, length)?, strategy, slice)
        }
    }
}

/// The size of GPT-3 XL, with GPT-2's 1024 positions and no dropout.
fn gpt_1_3b() -> gpt2::Gpt2 {
    let config = gpt2::Config { n_embd: 2048, n_layer: 24, n_head: 16, ..gpt2::Config::default() };
    let mut model = gpt2_without_dropout(config);
    model.gradient_checkpointing = true;
    model
}

fn llama_3_8b() -> decoder::Config {
    decoder::Config {
        vocab_size: 128_256,
        intermediate_size: 14336,
        num_key_value_heads: Some(8),
        max_position_embeddings: 8192,
        rms_norm_eps: 1e-5,
        rope_theta: Some(500_000.0),
        ..decoder::Config::default()
    }
}

fn llama_3_70b() -> decoder::Config {
    decoder::Config {
        hidden_size: 8192,
        intermediate_size: 28672,
        num_hidden_layers: 80,
        num_attention_heads: 64,
        ..llama_3_8b()
    }
}

fn mixtral_8x7b() -> decoder::Config {
    let max_position_embeddings = 32768;
    decoder::Config { max_position_embeddings, ..decoder::Config::new(decoder::ModelType::Mixtral) }
}

// Only shapes matter, so one batch is enough.

/// Images of this shape, each with a class.
pub(crate) fn images(batch: usize, shape: &[usize]) -> Result<DataLoader, Box<dyn Error>> {
    let dims = [&[batch], shape].concat();
    let zeros = vec![0_f32; dims.iter().product()];
    loader(
        TensorDataset::builder()
            .array("x", dims, zeros)
            .array("y", [batch], vec![0_i32; batch])
            .build()?,
        batch,
    )
}

/// Words, with the same number of target words.
pub(crate) fn words(batch: usize, length: usize) -> Result<DataLoader, Box<dyn Error>> {
    let zeros = vec![0_i32; batch * length];
    let data = TensorDataset::builder().array("x", [batch, length], zeros.clone()).array(
        "y",
        [batch, length],
        zeros,
    );
    loader(data.build()?, batch)
}

fn loader(data: TensorDataset, batch: usize) -> Result<DataLoader, Box<dyn Error>> {
    Ok(DataLoader::builder(data).batch_size(batch).drop_last(true).build()?)
}

/// Compiles and judges the step on the batches of a loader. `None` if it does not fit; the reason
/// is printed.
pub(crate) fn judge<M: TrainingModule>(
    module: &M,
    loader: &DataLoader,
    strategy: Strategy,
    slice: &Slice,
) -> Result<Option<Cost>, Box<dyn Error>> {
    let builder = Trainer::builder().precision(Precision::Bf16Mixed).strategy(strategy);
    let report = builder.preflight(module, loader, std::slice::from_ref(slice), None)?;
    let feasibility: &Feasibility = report.slices.first().ok_or("the report has no slices")?;
    let Some(step) = &feasibility.step else {
        println!("{feasibility}");
        return Ok(None);
    };
    Ok(Some(Cost {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        flops: step.flops,
        bytes_accessed: step.bytes_accessed,
        hbm_bytes: feasibility.hbm_needed_bytes.unwrap_or_default() as f64,
        optimal_seconds: step.optimal_seconds,
        parameters: module.num_parameters() as u64,
        compile_s: feasibility.compile_s,
    }))
}

pub(crate) fn peer(workload: &Workload, slice: &Slice) -> Result<Option<Cost>, Box<dyn Error>> {
    let Workload { name, batch, strategy, length, decoder, .. } = workload;
    let script = PathBuf::from(PEERS).join("jax_cost.py");
    let folder = tempfile::tempdir()?;
    let hlo = folder.path().join("step.hlo");
    let mut command = Command::new(python()?);
    command.arg(script).args([
        "--workload",
        name,
        "--batch",
        &batch.to_string(),
        "--topology",
        slice.name(),
    ]);
    command.args(["--strategy", &strategy.to_string()]).arg("--hlo").arg(&hlo);
    if workload.is_decoder() {
        command.args(["--length", &length.to_string()]);
    }
    if decoder.attention == AttentionMethod::Kernel {
        command.arg("--splash");
    }
    if let Ok(libtpu) = fulmen::low_level::pjrt::locate::locate(
        fulmen::low_level::pjrt::locate::Platform::Tpu,
        None,
    ) {
        command.env("TPU_LIBRARY_PATH", libtpu);
    }
    let output = command.stderr(Stdio::inherit()).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().last().unwrap_or_default();
    match serde_json::from_str(line)
        .map_err(|e| format!("the peer's output `{line}` is not valid: {e}"))?
    {
        Answer::Fits(mut cost) => {
            let module = Module::from_proto(&std::fs::read(&hlo)?, slice.num_devices())?;
            let further = module.cost_of_further_runs();
            cost.flops += further.flops;
            cost.bytes_accessed += further.bytes;
            Ok(Some(cost))
        }
        Answer::Misfit { misfit } => {
            println!("  JAX's does not fit: {misfit}");
            Ok(None)
        }
    }
}

/// A row of the book's table.
fn row(workload: &Workload, slice: &Slice, ours: &Option<Cost>, peer: &Option<Cost>) -> String {
    let Workload { title, batch, strategy, .. } = workload;
    let hbm = |cost: &Option<Cost>| match cost {
        Some(cost) => format!("{:.2}", cost.hbm_bytes / f64::from(1 << 30)),
        None => "does not fit".into(),
    };
    let ratios = ours.as_ref().zip(peer.as_ref()).map(|(ours, peer)| {
        ours.values().into_iter().zip(peer.values()).take(3).map(|(a, b)| match a.zip(b) {
            Some((a, b)) => format!("{:.3}", a / b),
            None => "unknown".into(),
        })
    });
    let cells =
        [format!("{title}, batch {batch}"), format!("{slice}, {strategy}"), hbm(ours), hbm(peer)]
            .into_iter();
    let cells: Vec<String> = match ratios {
        Some(ratios) => cells.chain(ratios).collect(),
        None => cells.chain(["–"; 3].map(String::from)).collect(),
    };
    format!("| {} |", cells.join(" | "))
}

/// Adds a row to the table, or replaces the row of the same step and slice.
fn write_row(book: &Path, row: &str) -> Result<(), Box<dyn Error>> {
    write_part(book, "preflight", |table| {
        let key = |row: &str| row.split(" | ").take(2).collect::<Vec<_>>().concat();
        let mut rows: Vec<&str> = table.lines().filter(|line| !line.is_empty()).collect();
        match rows.iter().position(|other| key(other) == key(row)) {
            Some(i) => rows[i] = row,
            None => rows.push(row),
        }
        rows.join("\n")
    })
}
