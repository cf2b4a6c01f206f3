//! Races Fulmen against its peers: both run on this machine in turns, block by block, and what is reported is the
//! ratio of the medians.

mod bigram;
mod cache;
mod callbacks;
mod checkpoint;
mod custom_loop;
mod deep;
mod learn;
mod loader;
mod memory;
mod models;
mod peer;
mod plot;
mod preflight;
mod remat;
mod scan;
mod start;
mod stats;
mod steps;
mod workload;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Races Fulmen against its peers in one interleaved run")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Steady step time of training, against JAX's jitted and donated step.
    Steps(steps::Args),
    /// The peer of `steps --custom-loop`.
    #[command(hide = true)]
    CustomLoop(custom_loop::Args),
    /// Time from the start of a process to the end of its first step, against JAX's; the second start compiles nothing.
    Start(start::Args),
    /// The most memory that training takes on the CPU, against JAX's.
    Memory(memory::Args),
    /// JPEG files to batches for training, against torch's, torchvision's, Grain's and TensorFlow's loaders.
    Loader(loader::Args),
    /// What libtpu's compiler says of training steps, against JAX's; needs libtpu, and no TPU.
    Preflight(preflight::Args),
    /// Time to compile many layers, as a scan against one after the other; libtpu needs no TPU.
    Scan(scan::Args),
    /// Time to compile a deep decoder's step with `scan_layers`, against a few layers; needs libtpu, and no TPU.
    Deep(deep::Args),
    /// Memory of a deep model's step with and without checkpoints, as preflight reports it; needs libtpu, and no TPU.
    Remat(remat::Args),
    /// What a checkpoint of a large state costs training, and how fast it is written, beside `dd`.
    Checkpoint(checkpoint::Args),
    /// What the examples learn, against the targets of their READMEs.
    Learn(learn::Args),
    /// Cached datasets: beside decoding, beside copying memory, and in a training that is input-bound.
    Cache(cache::Args),
}

fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Steps(args) if args.callbacks => callbacks::run(&args),
        Command::Steps(args) => steps::run(&args),
        Command::CustomLoop(args) => custom_loop::run(&args),
        Command::Start(args) => start::run(&args),
        Command::Memory(args) => memory::run(&args),
        Command::Loader(args) => loader::run(&args),
        Command::Preflight(args) => preflight::run(&args),
        Command::Scan(args) => scan::run(&args),
        Command::Deep(args) => deep::run(&args),
        Command::Remat(args) => remat::run(&args),
        Command::Checkpoint(args) => checkpoint::run(&args),
        Command::Learn(args) => learn::run(&args),
        Command::Cache(args) => cache::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
