//! What the peers in Rust share: the workloads that they have, data, and the conversation with the harness, which is that of
//! `jax_peer.py`.

use std::error::Error;
use std::io::BufRead as _;
use std::time::Instant;

/// A workload's sizes.
#[derive(Clone, Copy)]
pub struct Workload {
    pub name: &'static str,
    /// Of one sample.
    pub shape: &'static [usize],
    pub batch: usize,
    /// In an epoch.
    pub steps: usize,
    warm_up: usize,
}

const WORKLOADS: [Workload; 2] = [
    Workload { name: "W1", shape: &[784], batch: 128, steps: 100, warm_up: 30 },
    Workload { name: "W2", shape: &[1, 28, 28], batch: 64, steps: 100, warm_up: 30 },
];

/// The workload that the command line names.
pub fn workload() -> Result<Workload, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |flag: &str| arguments.iter().position(|other| other == flag).and_then(|i| arguments.get(i + 1));
    if value("--devices").is_some_and(|devices| devices != "1") {
        return Err("it runs on one device of the CPU here".into());
    }
    let name = value("--workload").ok_or("--workload is missing")?;
    let found = WORKLOADS.into_iter().find(|workload| workload.name == name);
    found.ok_or_else(|| format!("it has no {name} here").into())
}

/// A library's version in a lock file.
pub fn version<'a>(lock: &'a str, name: &str) -> &'a str {
    let of_name = |package: &&str| package.lines().any(|line| line == format!("name = \"{name}\""));
    let package = lock.split("[[package]]").find(of_name).unwrap_or_default();
    let version = package.lines().find_map(|line| line.strip_prefix("version = "));
    version.unwrap_or_default().trim_matches('"')
}

/// Answers the harness until it has enough. `step` trains on a batch of samples and their classes, and gives the loss.
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
    let cold = seconds_since_process_start().ok_or("the kernel does not tell when this process began")?;
    run(workload.warm_up)?;
    let steps = workload.steps;
    println!(
        "{{\"version\": \"{version}\", \"n_params\": {parameters}, \"steps_per_epoch\": {steps}, \"cold_s\": {cold}}}"
    );
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let Some(steps) = line.strip_prefix("block ").and_then(|steps| steps.parse().ok()) else { break };
        let begin = Instant::now();
        let loss = run(steps)?;
        let (seconds, peak) = (begin.elapsed().as_secs_f64(), peak_bytes().ok_or("the kernel does not tell VmHWM")?);
        println!("{{\"seconds\": {seconds}, \"loss\": {loss}, \"peak_bytes\": {peak}}}");
    }
    Ok(())
}

/// A prototype a class, half its size, plus noise; in a new order in each epoch.
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
        let (samples, size) = (workload.batch * workload.steps, workload.shape.iter().product::<usize>());
        let mut random = Random(1);
        let prototypes: Vec<f32> = (0..10 * size).map(|_| 0.5 * random.normal()).collect();
        let y: Vec<i32> = (0..samples).map(|_| random.below(10) as i32).collect();
        let mut x = Vec::with_capacity(samples * size);
        for &class in &y {
            x.extend(prototypes[class as usize * size..][..size].iter().map(|value| value + random.normal()));
        }
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

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// About normal: the sum of four uniform numbers, with the variance of one.
    fn normal(&mut self) -> f32 {
        let bits = self.next();
        let sum: u64 = (0..4).map(|i| (bits >> (16 * i)) & 0xffff).sum();
        (sum as f32 / 65535.0 - 2.0) * 3_f32.sqrt()
    }
}

fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? << 10)
}

fn seconds_since_process_start() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // Field 22; counting starts after the command's name, which may itself hold spaces. Linux counts 100 ticks a second.
    let ticks: f64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let uptime: f64 = std::fs::read_to_string("/proc/uptime").ok()?.split_whitespace().next()?.parse().ok()?;
    Some(uptime - ticks / 100.0)
}
