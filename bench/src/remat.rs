//! `remat`: what a deep GPT's training step needs of a TPU's memory with and without checkpointed layers, as preflight
//! reports it. No TPU is needed.

use std::error::Error;

use fulmen::tensor::DType;
use fulmen::trainer::Strategy;
use fulmen::trainer::preflight::Slice;
use serde_json::json;

use crate::models::Gpt;
use crate::preflight::{Cost, judge, words};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many layers.
    #[arg(long, default_value_t = 24)]
    layers: usize,
    /// How many sequences.
    #[arg(long, default_value_t = 64)]
    batch: usize,
    /// The slice to compile for.
    #[arg(long, default_value = "v5e:1x1")]
    topology: Slice,
    /// End with one line of JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let cost = |checkpointed| -> Result<Cost, Box<dyn Error>> {
        let gpt = Gpt::deep(args.layers, DType::Bf16, checkpointed);
        let cost = judge(&gpt, &words(args.batch, Gpt::LENGTH)?, Strategy::Ddp, &args.topology)?;
        cost.ok_or_else(|| "the step does not fit".into())
    };
    let (kept, again) = (cost(false)?, cost(true)?);
    let saved = 1.0 - again.hbm_bytes / kept.hbm_bytes;
    let mib = |bytes: f64| bytes / f64::from(1 << 20);
    println!(
        "{} layers, batch {}, {}: {:.1} MiB HBM, {:.1} MiB with checkpoints: {:.1} % less, for {:.2} times the FLOPs",
        args.layers,
        args.batch,
        args.topology,
        mib(kept.hbm_bytes),
        mib(again.hbm_bytes),
        100.0 * saved,
        again.flops / kept.flops
    );
    if args.json {
        let line = json!({ "layers": args.layers, "batch": args.batch, "topology": args.topology.name(),
            "hbm_bytes": kept.hbm_bytes, "checkpointed_hbm_bytes": again.hbm_bytes, "saved": saved,
            "flops": kept.flops, "checkpointed_flops": again.flops });
        println!("{}", json!({ "remat": line }));
    }
    Ok(())
}
