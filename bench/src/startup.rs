//! `startup`: the time from the start of a process until the loss of its first step is on the host,
//! against the peers. The first start compiles; the second loads its programs from disk. Of the
//! peers, only JAX caches programs here.
//!
//! Each start is a separate process. All take turns, so they see the same noise of the machine. The
//! time counts from the kernel's start of the process, in ticks of 10 ms. It includes the
//! interpreter, imports, data, initial weights and programs.

use std::env;
use std::error::Error;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use fulmen::prelude::*;
use fulmen::trainer::{Actions, Callback, LogPoint};
use serde::{Deserialize, Serialize};

use crate::hardware::Hardware;
use crate::peer::{self, Peer};
use crate::process::seconds_since_start;
use crate::row::{Row, print_row};
use crate::workload::{ModelVisitor, Workload};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The workloads, from W1 to W5, separated by commas.
    #[arg(long, default_value = "W1,W3", value_delimiter = ',')]
    workloads: Vec<String>,
    /// First and second starts of each side.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// The peers, as in `steps`, separated by commas.
    #[arg(long, default_value = "jax", value_delimiter = ',')]
    peers: Vec<String>,
    /// Print a line of JSON for each result.
    #[arg(long)]
    json: bool,
    /// Run as our side: train for one step and print when its loss arrived.
    #[arg(long, hide = true)]
    serve: bool,
}

/// The result of our side.
#[derive(Serialize, Deserialize)]
struct StartResult {
    seconds: f64,
    compilations: u64,
}

/// The times of one kind of start.
struct Times {
    ours: Vec<f64>,
    peers: Vec<PeerTimes>,
    compilations: u64,
}

/// The times of a peer.
#[derive(Default)]
struct PeerTimes {
    seconds: Vec<f64>,
    version: String,
    /// The reason why it did not run.
    missing: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    peer::check(&args.peers)?;
    for name in &args.workloads {
        let workload = Workload::find(name)?;
        if args.serve {
            workload.with_model(FirstStep { workload })?;
            continue;
        }
        for (quantity, times) in
            ["first start", "second start"].into_iter().zip(time_starts(name, args)?)
        {
            let mut row = Row::new("startup", name, quantity, "s").ours(&times.ours);
            row = row.detail("compilations", times.compilations);
            for (name, peer) in args.peers.iter().zip(times.peers) {
                row = match peer.missing {
                    Some(why) => row.missing(name, &why),
                    None => row.peer(name, &peer.version, &peer.seconds),
                };
            }
            print_row(&row, args.json)?;
        }
    }
    Ok(())
}

/// Times the first and the second starts of all sides, in turns.
fn time_starts(workload: &str, args: &Args) -> Result<[Times; 2], Box<dyn Error>> {
    let peers = || args.peers.iter().map(|_| PeerTimes::default()).collect();
    let mut starts = [(); 2].map(|()| Times { ours: Vec::new(), peers: peers(), compilations: 0 });
    for _ in 0..args.rounds {
        // Empty before the first of the two starts.
        let ours_cache = tempfile::tempdir()?;
        let jax_cache = tempfile::tempdir()?;
        for times in &mut starts {
            let result = ours(workload, ours_cache.path())?;
            times.ours.push(result.seconds);
            times.compilations = times.compilations.max(result.compilations);
            for (name, times) in
                args.peers.iter().zip(&mut times.peers).filter(|(_, times)| times.missing.is_none())
            {
                let peer = match name.as_str() {
                    "jax" => Peer::start_cached(workload, jax_cache.path()),
                    name => Peer::start(name, workload, Hardware::cpu(1)),
                };
                match peer.map(|peer| (peer.ready.cold_s, peer.ready.version.clone())) {
                    Ok((Some(seconds), version)) => {
                        times.seconds.push(seconds);
                        times.version = version;
                    }
                    Ok((None, _)) => {
                        times.missing =
                            Some("it does not report the end of its first step".to_owned())
                    }
                    Err(why) => times.missing = Some(why.to_string()),
                }
            }
        }
    }
    Ok(starts)
}

/// Our side, in a separate process.
fn ours(workload: &str, cache: &Path) -> Result<StartResult, Box<dyn Error>> {
    let output = Command::new(env::current_exe()?)
        .args(["startup", "--serve", "--workloads", workload])
        .env("FULMEN_COMPILE_CACHE", cache)
        .stderr(Stdio::inherit())
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text)
        .map_err(|e| format!("our side's output `{text}` is not valid: {e}").into())
}

struct FirstStep {
    workload: Workload,
}

impl ModelVisitor for FirstStep {
    type Output = Result<(), Box<dyn Error>>;

    fn visit<M: TrainingModule>(self, model: &M) -> Self::Output {
        let folder = tempfile::tempdir()?;
        let first = FirstLoss::default();
        let mut trainer = Trainer::builder()
            .accelerator(Accelerator::Cpu)
            .devices(1)
            .max_steps(1)
            .log_every_n_steps(1)
            .callback(first.clone())
            .default_root_dir(folder.path())
            .enable_checkpointing(false)
            .enable_progress_bar(false)
            .enable_model_summary(false)
            .build()?;
        trainer.fit(model, &self.workload.loader(1)?, None)?;
        let seconds =
            first.0.lock().unwrap_or_else(PoisonError::into_inner).ok_or("no loss arrived")?;
        let compilations = trainer.runtime().metrics().value("UncachedCompile");
        println!("{}", serde_json::to_string(&StartResult { seconds, compilations })?);
        Ok(())
    }
}

/// The time at which the first loss was on the host.
#[derive(Clone, Default)]
struct FirstLoss(Arc<Mutex<Option<f64>>>);

impl Callback for FirstLoss {
    fn name(&self) -> &'static str {
        "FirstLoss"
    }

    fn on_log(&mut self, _: &LogPoint, _: &mut Actions) {
        let mut first = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *first = first.or_else(seconds_since_start);
    }
}
