//! `deep`: the time to trace and compile the Trainer's step of a deep decoder with `scan_layers`,
//! in comparison with that of a few unrolled layers. No TPU is needed.

use std::error::Error;
use std::time::Instant;

use fulmen::models::Pretrained;
use fulmen::models::decoder::{Config, Decoder};
use fulmen::trainer::Strategy;
use fulmen::trainer::preflight::Slice;
use serde_json::json;

use crate::models::LanguageModel;
use crate::preflight::{judge, words};
use crate::stats::median;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The number of layers in the scan.
    #[arg(long, default_value_t = 32)]
    layers: usize,
    /// The number of unrolled layers.
    #[arg(long, default_value_t = 4)]
    few: usize,
    /// How often each form is compiled, in turns.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// The slice to compile for.
    #[arg(long, default_value = "v5e:2x4")]
    topology: Slice,
    /// Print one line of JSON at the end.
    #[arg(long)]
    json: bool,
}

const LENGTH: usize = 256;
const VOCABULARY: usize = 4096;

fn model(layers: usize, scan: bool) -> Result<LanguageModel, Box<dyn Error>> {
    let config = Config {
        vocab_size: VOCABULARY,
        hidden_size: 512,
        intermediate_size: 1536,
        num_hidden_layers: layers,
        num_attention_heads: 8,
        num_key_value_heads: Some(4),
        ..Config::default()
    };
    let mut decoder = Decoder::new(config)?;
    decoder.scan_layers = scan;
    Ok(LanguageModel::decoder(decoder))
}

/// The cost of a step.
struct Cost {
    /// Seconds to trace and compile it.
    seconds: f64,
    /// Seconds of the compiler alone.
    compile_s: f64,
    hbm_bytes: f64,
}

fn cost(layers: usize, scan: bool, args: &Args) -> Result<Cost, Box<dyn Error>> {
    let start = Instant::now();
    let batch = 8 * args.topology.num_devices();
    let estimate =
        judge(&model(layers, scan)?, &words(batch, LENGTH)?, Strategy::Ddp, &args.topology)?
            .ok_or("the step does not fit")?;
    Ok(Cost {
        seconds: start.elapsed().as_secs_f64(),
        compile_s: estimate.compile_s,
        hbm_bytes: estimate.hbm_bytes,
    })
}

/// The median of each quantity.
fn medians(costs: &[Cost]) -> Cost {
    let middle = |value: fn(&Cost) -> f64| median(&costs.iter().map(value).collect::<Vec<_>>());
    Cost {
        seconds: middle(|cost| cost.seconds),
        compile_s: middle(|cost| cost.compile_s),
        hbm_bytes: middle(|cost| cost.hbm_bytes),
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let mut few = Vec::new();
    let mut deep = Vec::new();
    for _ in 0..args.rounds.max(1) {
        few.push(cost(args.few, false, args)?);
        deep.push(cost(args.layers, true, args)?);
    }
    let few = medians(&few);
    let deep = medians(&deep);
    let ratio = deep.seconds / few.seconds;
    println!(
        "{}: {} layers in {:.2} s (compiler {:.2} s), {} as a scan in {:.2} s (compiler {:.2} s): {ratio:.2} times as long",
        args.topology,
        args.few,
        few.seconds,
        few.compile_s,
        args.layers,
        deep.seconds,
        deep.compile_s,
    );
    if args.json {
        println!(
            "{}",
            json!({ "deep": { "topology": args.topology.name(), "few": args.few, "layers": args.layers, "rounds": args.rounds,
                "few_s": few.seconds, "few_compile_s": few.compile_s, "few_hbm_bytes": few.hbm_bytes,
                "scan_s": deep.seconds, "scan_compile_s": deep.compile_s, "scan_hbm_bytes": deep.hbm_bytes,
                "ratio": ratio } })
        );
    }
    Ok(())
}
