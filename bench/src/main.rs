//! Compares Fulmen with its peers. They run on this machine in turns, block by block, and the
//! result is the ratio of the medians.

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
#[command(about = "Compares Fulmen with its peers in one interleaved run")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Step time of training, against JAX, PyTorch, torch_xla, Lightning, burn and candle.
    Steps(steps::Args),
    /// The peer `custom-loop` of `steps`.
    #[command(hide = true)]
    CustomLoop(custom_loop::Args),
    /// Time from the start of a process to the end of its first step, against the peers of `steps`.
    /// The second start compiles nothing.
    Startup(startup::Args),
    /// Time to record and lower a training step, against JAX's trace and lower.
    Trace(trace::Args),
    /// The host's overhead: all options on against none, and a million empty steps.
    Overhead(overhead::Args),
    /// From JPEG files to batches for training, against torch's, torchvision's, Grain's and
    /// TensorFlow's loaders.
    Data(data::Args),
    /// Steps on 1, 2, 4 and 8 CPU devices, and the time to compile for 8, 32 and 256 TPUs, which
    /// requires libtpu but no TPU.
    Scaling(scaling::Args),
    /// Peak memory of training on the CPU, against the peers of `steps`.
    Memory(memory::Args),
    /// The cost of a checkpoint of a large state, and the rate of its write, against `dd`.
    Checkpoint(checkpoint::Args),
    /// The estimates of libtpu's compiler for training steps, against JAX's. Requires libtpu, but
    /// no TPU.
    Preflight(preflight::Args),
    /// Write results into the book, with charts.
    Report(report::Args),
    /// The losses of 200 training steps, against PyTorch's with the same weights and batches.
    Curves(curves::Args),
    /// Time to compile many layers as a scan, against unrolled layers. libtpu needs no TPU.
    Scan(scan::Args),
    /// Time to compile a deep decoder's step with `scan_layers`, against a few layers. Requires
    /// libtpu, but no TPU.
    Deep(deep::Args),
    /// The results of the examples, against the targets in their READMEs.
    Learn(learn::Args),
    /// Cached datasets, against decoding and copying memory, and in an input-bound training.
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
