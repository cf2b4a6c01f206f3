//! `scan`: the compiler's time for a training step with many transformer layers, unrolled and as
//! one `scan`, in turns on this machine. The step is written by hand, without the Trainer. Only
//! compilers run; libtpu needs no TPU.
//!
//! Each compilation is a separate process, because only that can be stopped when it takes too long.

use std::error::Error;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use fulmen::low_level::pjrt::locate::{Platform, locate};
use fulmen::low_level::pjrt::{Client, CompileOptions, NamedValue, Plugin, Topology};
use fulmen::tensor::{Function, autocast, scan};
use fulmen::{nn::activation, prelude::*};
use serde_json::json;

use crate::stats::median;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The number of layers.
    #[arg(long, default_value_t = 48)]
    layers: usize,
    /// How often each form is compiled.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// The platforms to compile for, of cpu and tpu, separated by commas.
    #[arg(long, default_value = "cpu,tpu", value_delimiter = ',')]
    platforms: Vec<String>,
    /// The slice to compile for.
    #[arg(long, default_value = "v5e:1x1")]
    topology: String,
    /// Give up the unrolled layers when they have taken this many times as long as the scan.
    #[arg(long, default_value_t = 20.0)]
    limit: f64,
    /// Print one line of JSON at the end.
    #[arg(long)]
    json: bool,
    /// Compile one form for one platform, and print the seconds.
    #[arg(long, hide = true)]
    compile: Option<Form>,
}

/// The form of the layers.
#[derive(Clone, Copy, clap::ValueEnum)]
enum Form {
    Unrolled,
    Scan,
}

const BATCH: usize = 8;
const TIME: usize = 128;
const WIDTH: usize = 256;
const HEADS: usize = 4;

/// The shapes of a layer's weights: two norms, attention, an MLP.
const WEIGHTS: [&[usize]; 12] = [
    &[WIDTH],
    &[WIDTH],
    &[WIDTH, 3 * WIDTH],
    &[3 * WIDTH],
    &[WIDTH, WIDTH],
    &[WIDTH],
    &[WIDTH],
    &[WIDTH],
    &[WIDTH, 4 * WIDTH],
    &[4 * WIDTH],
    &[4 * WIDTH, WIDTH],
    &[WIDTH],
];

fn norm(x: &Tensor, scale: &Tensor, shift: &Tensor) -> Tensor {
    (x - x.mean_keepdim(-1)) * (x.var_keepdim(-1) + 1e-5).rsqrt() * scale + shift
}

/// One layer of a decoder.
fn layer(x: &Tensor, w: &[Tensor]) -> Tensor {
    let heads = (norm(x, &w[0], &w[1]).matmul(&w[2]) + &w[3]).reshape([
        BATCH,
        TIME,
        3,
        HEADS,
        WIDTH / HEADS,
    ]);
    let [q, k, v] = [0, 1, 2].map(|i| heads.narrow(2, i, 1).squeeze(2).permute([0, 2, 1, 3]));
    let scores = q.matmul(&k.t()) * (HEADS as f64 / WIDTH as f64).sqrt();
    let past = Tensor::ones(DType::Bool, [TIME, TIME]).tril(0);
    let attention =
        past.select(&scores, &Tensor::full(scores.dtype(), [], f64::NEG_INFINITY)).softmax(-1);
    let mixed = attention.matmul(&v).permute([0, 2, 1, 3]).reshape([BATCH, TIME, WIDTH]);
    let x = x + mixed.matmul(&w[4]) + &w[5];
    let hidden = activation::gelu_tanh(&(norm(&x, &w[6], &w[7]).matmul(&w[8]) + &w[9]));
    &x + hidden.matmul(&w[10]) + &w[11]
}

/// A step of gradient descent, forward and backward. The weights of a scan are stacked, the others
/// are separate.
fn step(layers: usize, scanned: bool) -> Function {
    let mut types = vec![TensorType::new(DType::F32, [BATCH, TIME, WIDTH]); 2];
    for _ in 0..if scanned { 1 } else { layers } {
        let stacked =
            |shape: &[usize]| if scanned { [&[layers], shape].concat() } else { shape.to_vec() };
        types.extend(WEIGHTS.iter().map(|shape| TensorType::new(DType::F32, stacked(shape))));
    }
    Function::trace("step", &types, |p| {
        let x = &p[0];
        let target = &p[1];
        let weights = &p[2..];
        let last = autocast(Some(DType::Bf16), || {
            if scanned {
                scan(x, weights, |x, w| (layer(&x, &w), ())).0
            } else {
                weights.chunks(WEIGHTS.len()).fold(x.clone(), |x, w| layer(&x, w))
            }
        });
        let error = last - target;
        let loss = (&error * &error).mean_all();
        let gradients = grad(&loss, weights);
        let mut results: Vec<Tensor> =
            weights.iter().zip(gradients).map(|(w, g)| w - g * 0.1).collect();
        results.push(loss);
        results
    })
}

/// XLA for the CPU, or libtpu for a slice.
enum Compiler {
    Cpu(Client),
    Tpu(Plugin, Topology),
}

impl Compiler {
    fn open(platform: &str, topology: &str) -> Result<Compiler, Box<dyn Error>> {
        match platform {
            "cpu" => {
                let plugin = Plugin::load(locate(Platform::Cpu, None)?)?;
                Ok(Compiler::Cpu(
                    plugin.create_client(&[("cpu_device_count", NamedValue::Int(1))])?,
                ))
            }
            "tpu" => {
                let plugin = Plugin::load(locate(Platform::Tpu, None)?)?;
                let topology = plugin.topology(topology)?;
                Ok(Compiler::Tpu(plugin, topology))
            }
            _ => Err(format!("there is no platform {platform}; there are cpu and tpu").into()),
        }
    }

    /// Compiles a program and returns the time in seconds.
    fn compile(&self, text: &str) -> Result<f64, Box<dyn Error>> {
        let start = Instant::now();
        match self {
            Compiler::Cpu(client) => drop(client.compile(text, &CompileOptions::new())?),
            Compiler::Tpu(plugin, topology) => {
                drop(plugin.compile(topology, text, &CompileOptions::new())?)
            }
        }
        Ok(start.elapsed().as_secs_f64())
    }
}

/// Compiles one form in a separate process. `None` if it does not end in time.
fn compile(
    args: &Args,
    platform: &str,
    form: Form,
    limit: Option<Duration>,
) -> Result<Option<f64>, Box<dyn Error>> {
    let form = match form {
        Form::Unrolled => "unrolled",
        Form::Scan => "scan",
    };
    let mut child = Command::new(std::env::current_exe()?)
        .args(["scan", "--compile", form, "--platforms", platform, "--topology", &args.topology])
        .args(["--layers", &args.layers.to_string()])
        .stdout(Stdio::piped())
        .spawn()?;
    if let Some(limit) = limit
        && !ends_within(&mut child, limit)?
    {
        child.kill()?;
        child.wait()?;
        return Ok(None);
    }
    let output = child.wait_with_output()?;
    if !output.status.success() {
        return Err(format!("compiling the {form} form for {platform}: {}", output.status).into());
    }
    Ok(Some(String::from_utf8(output.stdout)?.trim().parse()?))
}

fn ends_within(child: &mut Child, limit: Duration) -> Result<bool, Box<dyn Error>> {
    let start = Instant::now();
    while start.elapsed() < limit {
        if child.try_wait()?.is_some() {
            return Ok(true);
        }
        sleep(Duration::from_millis(50));
    }
    Ok(false)
}

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    if let (Some(form), Some(platform)) = (args.compile, args.platforms.first()) {
        let text = step(args.layers, matches!(form, Form::Scan)).stablehlo()?;
        println!("{}", Compiler::open(platform, &args.topology)?.compile(&text)?);
        return Ok(());
    }
    let mut lines = Vec::new();
    for platform in &args.platforms {
        let mut unrolled = Vec::new();
        let mut scan = Vec::new();
        let mut ended = true;
        while ended && scan.len() < args.rounds.max(1) {
            let scan_s =
                compile(args, platform, Form::Scan, None)?.ok_or("the scan did not end")?;
            let limit = scan_s * args.limit;
            let unrolled_s =
                compile(args, platform, Form::Unrolled, Some(Duration::from_secs_f64(limit)))?;
            ended = unrolled_s.is_some();
            if !ended {
                // A compilation that was given up is compared with the scan of its own round.
                (unrolled, scan) = (Vec::new(), Vec::new());
            }
            unrolled.push(unrolled_s.unwrap_or(limit));
            scan.push(scan_s);
        }
        let unrolled_s = median(&unrolled);
        let scan_s = median(&scan);
        let than = if ended { "" } else { "more than " };
        println!(
            "{platform}, {} layers: {than}{unrolled_s:.2} s one after the other, {scan_s:.2} s as a scan: {than}{:.1} times \
             faster",
            args.layers,
            unrolled_s / scan_s
        );
        lines.push(json!({ "platform": platform, "layers": args.layers, "rounds": args.rounds,
            "unrolled_s": unrolled_s, "unrolled_ended": ended, "scan_s": scan_s, "ratio": unrolled_s / scan_s }));
    }
    if args.json {
        println!("{}", json!({ "scan": lines }));
    }
    Ok(())
}
