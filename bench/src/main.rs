//! Races Fulmen against its peers: both run on this machine in turns, block by block, and what is reported is the
//! ratio of the medians.

mod bigram;
mod cache;
mod checkpoint;
mod curves;
mod custom_loop;
mod data;
mod deep;
mod learn;
mod memory;
mod models;
mod overhead;
mod peer;
mod plot;
mod preflight;
mod process;
mod report;
mod row;
mod scaling;
mod scan;
mod startup;
mod stats;
mod steps;
mod synthetic;
mod trace;
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
    /// Steady step time of training, against JAX, PyTorch, torch_xla, Lightning, burn and candle.
    Steps(steps::Args),
    /// The peer `custom-loop` of `steps`.
    #[command(hide = true)]
    CustomLoop(custom_loop::Args),
    /// Time from the start of a process to the end of its first step, against the peers of `steps`; the second start compiles nothing.
    Startup(startup::Args),
    /// Time to record and lower a training step, against JAX's trace and lower.
    Trace(trace::Args),
    /// What the host does: everything on against nothing on, and a million empty steps.
    Overhead(overhead::Args),
    /// JPEG files to batches for training, against torch's, torchvision's, Grain's and TensorFlow's loaders.
    Data(data::Args),
    /// Steps on 1, 2, 4 and 8 devices of the CPU; time to compile for 8, 32 and 256 TPUs, which needs libtpu, and no TPU.
    Scaling(scaling::Args),
    /// The most memory that training takes on the CPU, against the peers of `steps`.
    Memory(memory::Args),
    /// What a checkpoint of a large state costs training, and how fast it is written, against `dd`.
    Checkpoint(checkpoint::Args),
    /// What libtpu's compiler says of training steps, against JAX's; needs libtpu, and no TPU.
    Preflight(preflight::Args),
    /// Write results into the book, with pictures.
    Report(report::Args),
    /// The losses of 200 steps of training, against PyTorch's from the same weights and batches.
    Curves(curves::Args),
    /// Time to compile many layers, as a scan against one after the other; libtpu needs no TPU.
    Scan(scan::Args),
    /// Time to compile a deep decoder's step with `scan_layers`, against a few layers; needs libtpu, and no TPU.
    Deep(deep::Args),
    /// What the examples learn, against the targets of their READMEs.
    Learn(learn::Args),
    /// Cached datasets: against decoding, against copying memory, and in a training that is input-bound.
    Cache(cache::Args),
}

fn main() -> ExitCode {
    let result = match Args::parse().command {
        Command::Steps(args) => steps::run(&args),
        Command::CustomLoop(args) => custom_loop::run(&args),
        Command::Startup(args) => startup::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Overhead(args) => overhead::run(&args),
        Command::Data(args) => data::run(&args),
        Command::Scaling(args) => scaling::run(&args),
        Command::Memory(args) => memory::run(&args),
        Command::Checkpoint(args) => checkpoint::run(&args),
        Command::Preflight(args) => preflight::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Curves(args) => curves::run(&args),
        Command::Scan(args) => scan::run(&args),
        Command::Deep(args) => deep::run(&args),
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
