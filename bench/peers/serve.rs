//! The common part of the peers in Rust: their workloads, data, and the protocol of the harness,
//! which is that of `jax_peer.py`.

#[allow(dead_code, reason = "the harness uses the rest")]
#[path = "../src/process.rs"]
mod process;
#[allow(dead_code, reason = "the harness uses the rest")]
#[path = "../src/synthetic.rs"]
mod synthetic;

use std::error::Error;
use std::io::BufRead as _;
use std::time::Instant;

use process::{peak_bytes, seconds_since_start};
use synthetic::Random;

/// The sizes of a workload.
#[derive(Clone, Copy)]
pub struct Workload {
    pub name: &'static str,
    /// The shape of one sample.
    pub shape: &'static [usize],
    pub batch: usize,
    /// The steps in an epoch.
    pub steps: usize,
    warm_up: usize,
}

const WORKLOADS: [Workload; 2] = [
    Workload { name: "W1", shape: &[784], batch: 128, steps: 100, warm_up: 30 },
    Workload { name: "W2", shape: &[1, 28, 28], batch: 64, steps: 100, warm_up: 30 },
];

/// The workload from the command line.
pub fn workload() -> Result<Workload, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |flag: &str| {
        arguments.iter().position(|other| other == flag).and_then(|i| arguments.get(i + 1))
    };
    if value("--devices").is_some_and(|devices| devices != "1") {
        return Err("this peer runs on one CPU device only".into());
    }
    let name = value("--workload").ok_or("--workload is missing")?;
    let workload = WORKLOADS.into_iter().find(|workload| workload.name == name);
    workload.ok_or_else(|| format!("this peer has no workload {name}").into())
}

/// The version of a library in a lock file.
pub fn version<'a>(lock: &'a str, name: &str) -> &'a str {
    let of_name = |package: &&str| package.lines().any(|line| line == format!("name = \"{name}\""));
    let package = lock.split("[[package]]").find(of_name).unwrap_or_default();
    let version = package.lines().find_map(|line| line.strip_prefix("version = "));
    version.unwrap_or_default().trim_matches('"')
}

/// Serves the harness until it ends. `step` trains on a batch of samples and their classes, and
/// returns the loss.
pub fn serve(
    workload: Workload,
    version: &str,
    parameters: usize,
    mut step: impl FnMut(Vec<f32>, Vec<i32>) -> Result<f32, Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let mut data = Data::new(workload);
    let mut run = |steps: usize| -> Result<f32, Box<dyn Error>> {
        let mut loss = f32::NAN;
        for _ in 0..steps {
            let (x, y) = data.batch();
            loss = step(x, y)?;
        }
        Ok(loss)
    };
    run(1)?;
    let cold =
        seconds_since_start().ok_or("the kernel does not report the start time of this process")?;
    run(workload.warm_up)?;
    let steps = workload.steps;
    println!(
        "{{\"version\": \"{version}\", \"n_params\": {parameters}, \"steps_per_epoch\": {steps}, \"cold_s\": {cold}}}"
    );
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let Some(steps) = line.strip_prefix("block ").and_then(|steps| steps.parse().ok()) else {
            break;
        };
        let begin = Instant::now();
        let loss = run(steps)?;
        let seconds = begin.elapsed().as_secs_f64();
        let peak = peak_bytes().ok_or("the kernel does not report VmHWM")?;
        println!("{{\"seconds\": {seconds}, \"loss\": {loss}, \"peak_bytes\": {peak}}}");
    }
    Ok(())
}

/// Samples with their classes, shuffled again in each epoch.
struct Data {
    workload: Workload,
    size: usize,
    x: Vec<f32>,
    y: Vec<i32>,
    order: Vec<usize>,
    next: usize,
    random: Random,
}

impl Data {
    fn new(workload: Workload) -> Data {
        let samples = workload.batch * workload.steps;
        let size = workload.shape.iter().product::<usize>();
        let mut random = Random(1);
        let (x, y) = random.samples(samples, size);
        Data { workload, size, x, y, order: (0..samples).collect(), next: samples, random }
    }

    fn batch(&mut self) -> (Vec<f32>, Vec<i32>) {
        if self.next == self.order.len() {
            self.next = 0;
            for i in (1..self.order.len()).rev() {
                self.order.swap(i, self.random.below(i + 1));
            }
        }
        let chosen = &self.order[self.next..self.next + self.workload.batch];
        self.next += self.workload.batch;
        let mut x = Vec::with_capacity(self.workload.batch * self.size);
        for &sample in chosen {
            x.extend_from_slice(&self.x[sample * self.size..][..self.size]);
        }
        (x, chosen.iter().map(|&sample| self.y[sample]).collect())
    }
}
