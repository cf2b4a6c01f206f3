//! Compares Fulmen with its peers. They run on this machine in turns, block by block, and the
//! result is the ratio of the medians.

mod bigram;
mod cache;
mod checkpoint;
mod compile_time;
mod curves;
mod custom_loop;
mod data;
mod hardware;
mod learn;
mod memory;
mod models;
mod overhead;
mod packed;
mod peer;
mod plot;
mod preflight;
mod process;
mod report;
mod row;
mod scaling;
mod start;
mod startup;
mod stats;
mod steps;
mod synthetic;
mod trace;
mod workload;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::compile_time::{deep_decoder, scan};

#[derive(Parser)]
#[command(about = "Compares Fulmen with its peers in one interleaved run")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The time of a training step, against JAX, PyTorch, torch_xla, Lightning, burn and candle.
    Steps(steps::Args),
    /// The peer `custom-loop` of `steps`.
    #[command(hide = true)]
    CustomLoop(custom_loop::Args),
    /// The time from the start of a process to the end of its first step, against the peers of
    /// `steps`. A second start compiles nothing.
    Startup(startup::Args),
    /// The time to trace a training step and lower it to StableHLO, against JAX's. Nothing is
    /// compiled.
    Trace(trace::Args),
    /// The time that the host adds to a step: with all options against none, and in a million
    /// empty steps, with the growth of memory.
    Overhead(overhead::Args),
    /// Images per second from JPEG files to batches, and the loader's peak memory, against torch's,
    /// torchvision's, Grain's and TensorFlow's loaders.
    Data(data::Args),
    /// The time of a training step on 1, 2, 4 and 8 CPU devices, and the time to compile one for 8,
    /// 32 and 256 TPUs, against JAX's. Compiling requires libtpu, but no TPU.
    Scaling(scaling::Args),
    /// The peak memory of training on the CPU, against the peers of `steps`.
    Memory(memory::Args),
    /// The memory in which training starts from a folder of a large model, on eight CPU devices of one
    /// process and of a virtual pod, against the state itself.
    Start(start::Args),
    /// The pause of training for a checkpoint of a large state, the steps during its write, and the
    /// rate of the write, against `dd`.
    Checkpoint(checkpoint::Args),
    /// The memory, FLOPs and bytes that libtpu's compiler estimates for a training step, against
    /// JAX's program of the same step. Requires libtpu, but no TPU.
    Preflight(preflight::Args),
    /// Measures nothing: writes the results of other suites into `RESULTS.md`, and charts into the
    /// book.
    Report(report::Args),
    /// The difference between the losses of 200 training steps and PyTorch's, with the same weights
    /// and batches.
    Curves(curves::Args),
    /// The compiler's time for many layers as one scan, against the same layers unrolled, for the
    /// CPU and for a TPU. The TPU's requires libtpu, but no TPU.
    Scan(scan::Args),
    /// The time to trace and compile the Trainer's step of a deep decoder with `scan_layers`,
    /// against that of a few unrolled layers. Requires libtpu, but no TPU.
    Deep(deep_decoder::Args),
    /// The metric that each example reaches, against the target in its README.
    Learn(learn::Args),
    /// Images per second from a cached dataset, against decoding; its bytes per second, against
    /// copying memory; and the time that training waits for data.
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
        Command::Start(args) => start::run(&args),
        Command::Checkpoint(args) => checkpoint::run(&args),
        Command::Preflight(args) => preflight::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Curves(args) => curves::run(&args),
        Command::Scan(args) => scan::run(&args),
        Command::Deep(args) => deep_decoder::run(&args),
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
