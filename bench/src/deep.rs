//! `deep`: the time to record and compile the training step of a deep decoder with `scan_layers`,
//! in comparison with a few unrolled layers. No TPU is needed.

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
    Ok(LanguageModel(decoder))
}

/// Seconds to record and compile the step, seconds of the compiler alone, and bytes of HBM.
fn cost(layers: usize, scan: bool, args: &Args) -> Result<[f64; 3], Box<dyn Error>> {
    let (start, batch) = (Instant::now(), 8 * args.topology.num_devices());
    let cost = judge(&model(layers, scan)?, &words(batch, LENGTH)?, Strategy::Ddp, &args.topology)?;
    let cost = cost.ok_or("the step does not fit")?;
    Ok([start.elapsed().as_secs_f64(), cost.compile_s, cost.hbm_bytes])
}

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let (mut few, mut deep) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds.max(1) {
        few.push(cost(args.few, false, args)?);
        deep.push(cost(args.layers, true, args)?);
    }
    let middle = |costs: &[[f64; 3]], i: usize| {
        median(&costs.iter().map(|cost| cost[i]).collect::<Vec<_>>())
    };
    let ratio = middle(&deep, 0) / middle(&few, 0);
    println!(
        "{}: {} layers in {:.2} s (compiler {:.2} s), {} as a scan in {:.2} s (compiler {:.2} s): {ratio:.2} times as long",
        args.topology,
        args.few,
        middle(&few, 0),
        middle(&few, 1),
        args.layers,
        middle(&deep, 0),
        middle(&deep, 1),
    );
    if args.json {
        println!(
            "{}",
            json!({ "deep": { "topology": args.topology.name(), "few": args.few, "layers": args.layers, "rounds": args.rounds,
                "few_s": middle(&few, 0), "few_compile_s": middle(&few, 1), "few_hbm_bytes": middle(&few, 2),
                "scan_s": middle(&deep, 0), "scan_compile_s": middle(&deep, 1), "scan_hbm_bytes": middle(&deep, 2),
                "ratio": ratio } })
        );
    }
    Ok(())
}
