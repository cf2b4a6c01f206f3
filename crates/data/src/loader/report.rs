//! The report of a loader: where the time goes, who waits for whom, and what would help.
//!
//! Out of scope: the measurements (`stats`).

use std::fmt;
use std::time::Duration;

use fulmen_durable::messages::{self, quantity};

use crate::Stage;

/// A smaller fraction of waiting time is not reported as a problem.
const MIN_WAITING_SHARE: f64 = 0.03;

/// Where a loader's time went. Made by [`DataLoader::report`](crate::DataLoader::report).
///
/// The times of all workers are added up. They are wall-clock times, so work seems to take longer
/// on a machine with fewer free cores than workers.
#[derive(Clone, Debug, Default)]
pub struct LoaderReport {
    /// The number of threads that fill batches; with 0 the consumer fills them itself.
    pub num_workers: usize,
    /// The number of cores that this process may use.
    pub cores: usize,
    /// The number of batches that were filled.
    pub batches: u64,
    /// The number of samples in these batches, without padding.
    pub samples: u64,
    /// The time spent on filling, per [`Stage`], in the order of [`Stage::ALL`].
    pub stages: Vec<(Stage, Duration)>,
    /// The filling time outside all stages: untimed work of the dataset, and copying into the
    /// batch.
    pub writing: Duration,
    /// The filling time in which records of a stream were read, by one thread at a time.
    pub in_order: Duration,
    /// The time that workers waited for the consumer to take a batch. A long time is good: the
    /// workers are fast enough.
    pub waited_for_space: Duration,
    /// The time that workers waited while another worker read records of a stream.
    pub waited_for_reading: Duration,
    /// The number of batches that the consumer took, except the first of each epoch, before which
    /// the consumer does other work, such as validation.
    pub steps: u64,
    /// How long the consumer waited for batches.
    pub waiting: Duration,
    /// How long the consumer was busy between batches.
    pub busy: Duration,
    /// The time from the start of the latest iterator to its first batch.
    pub first_batch: Option<Duration>,
    /// How many batches were ready in host memory.
    pub host_queue: QueueDepth,
    /// The transfer to the devices, if there was one.
    pub transfer: Option<TransferReport>,
    /// Whether records of a stream are read in order.
    pub(crate) sequential: bool,
}

/// How many batches were ready in a queue when the consumer asked for one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QueueDepth {
    /// The mean.
    pub mean: f64,
    /// The maximum.
    pub peak: usize,
    /// The capacity of the queue.
    pub capacity: usize,
    /// How many times the consumer asked.
    samples: u64,
}

/// The time of the thread that transfers batches to the devices.
#[derive(Clone, Copy, Debug, Default)]
pub struct TransferReport {
    /// How many batches the thread transferred.
    pub batches: u64,
    /// How long the transfers took.
    pub busy: Duration,
    /// How long the thread waited for batches.
    pub waited_for_batches: Duration,
    /// How long the thread waited for the consumer to take a batch.
    pub waited_for_space: Duration,
    /// How many batches were ready on the devices.
    pub queue: QueueDepth,
}

impl QueueDepth {
    /// Counts a request of the consumer when `ready` batches were ready.
    pub(crate) fn record(&mut self, ready: usize) {
        self.samples += 1;
        self.mean += (ready as f64 - self.mean) / self.samples as f64;
        self.peak = self.peak.max(ready);
    }
}

impl LoaderReport {
    /// An empty report.
    pub(crate) fn new() -> LoaderReport {
        LoaderReport {
            stages: Stage::ALL.map(|stage| (stage, Duration::ZERO)).into(),
            ..LoaderReport::default()
        }
    }

    /// The fraction of the step time in which the consumer waited for data, from 0 to 1; 0 before
    /// the second batch.
    pub fn waiting_share(&self) -> f64 {
        share(self.waiting, self.waiting + self.busy)
    }

    /// The time that the threads spent on filling batches, over all stages.
    pub fn work(&self) -> Duration {
        self.stages.iter().map(|stage| stage.1).sum::<Duration>() + self.writing
    }

    /// The time of each stage and of writing, by name.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (String, Duration)> {
        let stages =
            self.stages.iter().map(|&(stage, spent)| (format!("{stage:?}").to_lowercase(), spent));
        stages.chain([("write".to_owned(), self.writing)])
    }

    /// The stage that takes most of the threads' time, and its fraction; `None` before the first
    /// batch. In the pair, `None` is the time outside all stages (writing).
    pub fn slow_stage(&self) -> Option<(Option<Stage>, f64)> {
        let stages = self
            .stages
            .iter()
            .map(|&(stage, time)| (Some(stage), time))
            .chain([(None, self.writing)]);
        let (stage, time) = stages.max_by_key(|&(_, time)| time)?;
        (self.batches > 0).then(|| (stage, share(time, self.work())))
    }

    /// How many threads would fill batches as fast as the consumer takes them, if each keeps its
    /// current speed. `None` if that cannot be estimated, for example because the consumer does
    /// nothing but take batches.
    pub fn threads_needed(&self) -> Option<usize> {
        let step = self.busy.as_secs_f64() / self.steps as f64;
        let threads = (self.work().as_secs_f64() / self.batches as f64 / step).ceil();
        (threads.is_finite() && threads < 1e4).then_some(threads as usize)
    }

    /// One sentence: whether the data is too slow, which part of it, and what to do.
    pub fn bottleneck(&self) -> String {
        let waiting = self.waiting_share();
        let percent = 100.0 * waiting;
        if self.steps == 0 {
            return "too few batches to find the bottleneck".to_owned();
        }
        if waiting < MIN_WAITING_SHARE {
            return format!(
                "not input-bound: {percent:.1} % of the step time is spent waiting for data"
            );
        }
        format!(
            "input-bound: {percent:.0} % of the step time is spent waiting for data; {}",
            self.advice()
        )
    }

    fn advice(&self) -> String {
        if let Some(transfer) = &self.transfer {
            let all = transfer.busy + transfer.waited_for_batches + transfer.waited_for_space;
            if share(transfer.busy, all) > 0.5 {
                return "the transfer to the device is the slow stage; send fewer bytes: u8 in place of f32, smaller rows"
                    .to_owned();
            }
        }
        let Some((slow, _)) = self.slow_stage() else {
            return "no batch was filled yet".to_owned();
        };
        let reading = self.in_order.as_secs_f64() / self.batches as f64;
        if self.sequential && reading > self.busy.as_secs_f64() / self.steps as f64 {
            return "reading the stream is the slow stage, which one thread does at a time; leave decoding to Stream::map, \
                    mix several streams, read from faster storage, or cache it"
                .to_owned();
        }
        let (name, cures): (_, &[&str]) = match slow {
            Some(Stage::Read) => (
                "read",
                &[
                    "read from faster storage",
                    "put many samples into one file",
                    "cache what is read",
                ],
            ),
            Some(Stage::Decode) => ("decode", &["cache it"]),
            Some(Stage::Transform) => ("transform", &["cache it"]),
            None => ("write", &["make what Dataset::read does faster"]),
        };
        let cure = one_of(cures);
        let cores = quantity(self.cores, "core");
        let slow = format!("{name} is the slow stage");
        // Without workers, the consumer's thread is the only one that fills batches.
        let have = self.num_workers;
        match self.threads_needed() {
            None => format!(
                "{slow}; there is no other work between two batches, so no number of threads is enough"
            ),
            Some(needed) if needed <= have && have > self.cores => {
                format!("{slow}; {} are too many for {cores}; {cure}", threads(have))
            }
            Some(needed) if needed <= have => {
                let enough = if have == 1 {
                    "1 thread is".to_owned()
                } else {
                    format!("{have} threads are")
                };
                format!("{slow}; {enough} enough on average: raise prefetch, to read further ahead")
            }
            Some(needed) if needed <= self.cores => {
                let more = format!("add {}", threads(needed - have));
                format!("{slow}; {}", one_of(&[cures, &[&more]].concat()))
            }
            Some(needed) => {
                format!(
                    "{slow}; {cure}: otherwise it needs {}, and this machine has {cores}",
                    threads(needed)
                )
            }
        }
    }
}

fn threads(number: usize) -> String {
    quantity(number, "thread")
}

/// Alternatives joined by commas: `a`, `a or b`, `a, b, or c`.
fn one_of(names: &[&str]) -> String {
    match names {
        [head @ .., last] if head.len() > 1 => format!("{}, or {last}", head.join(", ")),
        _ => names.join(" or "),
    }
}

fn share(part: Duration, whole: Duration) -> f64 {
    if whole.is_zero() { 0.0 } else { part.as_secs_f64() / whole.as_secs_f64() }
}

/// A time in a readable unit.
pub(crate) fn time(duration: Duration) -> String {
    messages::duration(duration.as_secs_f64())
}

impl fmt::Display for QueueDepth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} of {} ready on average, {} at most", self.mean, self.capacity, self.peak)
    }
}

impl fmt::Display for LoaderReport {
    /// A line for each stage and queue; the last one is the [bottleneck](LoaderReport::bottleneck).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = match self.num_workers {
            0 => "the consumer's own thread".to_owned(),
            count => threads(count),
        };
        let batches = quantity(self.batches, "batch");
        let samples = quantity(self.samples, "sample");
        writeln!(f, "{batches}, {samples}, filled by {source}")?;
        for (name, spent) in self.parts() {
            let percent = 100.0 * share(spent, self.work());
            writeln!(f, "{name:<10} {:>9}  {percent:>3.0} %", time(spent))?;
        }
        if self.num_workers > 0 {
            write!(f, "workers waited {} for space", time(self.waited_for_space))?;
            if self.sequential {
                let waited = time(self.waited_for_reading);
                let all = time(self.in_order);
                write!(f, ", {waited} for another worker to read the stream (reading took {all})")?;
            }
            writeln!(f, "; batches: {}", self.host_queue)?;
        }
        if let Some(transfer) = &self.transfer {
            writeln!(
                f,
                "transfer of {} took {}, waited {} for batches and {} for space; on the device: {}",
                quantity(transfer.batches, "batch"),
                time(transfer.busy),
                time(transfer.waited_for_batches),
                time(transfer.waited_for_space),
                transfer.queue
            )?;
        }
        if let Some(first) = self.first_batch {
            writeln!(f, "first batch after {}", time(first))?;
        }
        writeln!(
            f,
            "{}: {} busy, {} waiting",
            quantity(self.steps, "step"),
            time(self.busy),
            time(self.waiting)
        )?;
        f.write_str(&self.bottleneck())
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    /// 100 batches of 64, decoded in 30 ms each by two threads, for steps of 10 ms that wait for 5
    /// ms.
    fn report() -> LoaderReport {
        let ms = Duration::from_millis;
        LoaderReport {
            num_workers: 2,
            cores: 8,
            batches: 101,
            samples: 6464,
            stages: vec![
                (Stage::Read, ms(101)),
                (Stage::Decode, ms(2500)),
                (Stage::Transform, ms(400)),
            ],
            writing: ms(29),
            in_order: Duration::ZERO,
            waited_for_space: ms(3),
            waited_for_reading: Duration::ZERO,
            steps: 100,
            waiting: ms(500),
            busy: ms(1000),
            first_batch: Some(ms(31)),
            host_queue: QueueDepth { mean: 0.25, peak: 2, capacity: 4, samples: 4 },
            transfer: None,
            sequential: false,
        }
    }

    #[track_caller]
    fn check(report: LoaderReport, expect: Expect) {
        expect.assert_eq(&report.bottleneck());
    }

    #[test]
    fn the_sentence_names_the_slow_stage_and_what_helps() {
        let ms = Duration::from_millis;
        check(
            report(),
            expect![
                "input-bound: 33 % of the step time is spent waiting for data; decode is the slow stage; cache it or \
                 add 1 thread"
            ],
        );
        check(
            LoaderReport { cores: 2, ..report() },
            expect![
                "input-bound: 33 % of the step time is spent waiting for data; decode is the slow stage; cache it: \
                 otherwise it needs 3 threads, and this machine has 2 cores"
            ],
        );
        let slow_reading = || LoaderReport {
            stages: vec![(Stage::Read, ms(2500)), (Stage::Decode, ms(400))],
            ..report()
        };
        check(
            slow_reading(),
            expect![
                "input-bound: 33 % of the step time is spent waiting for data; read is the slow stage; read from \
                 faster storage, put many samples into one file, cache what is read, or add 1 thread"
            ],
        );
        check(
            LoaderReport { num_workers: 4, cores: 1, ..slow_reading() },
            expect![
                "input-bound: 33 % of the step time is spent waiting for data; read is the slow stage; 4 threads are \
                 too many for 1 core; read from faster storage, put many samples into one file, or cache what is read"
            ],
        );
        check(
            LoaderReport { cores: 2, ..slow_reading() },
            expect![
                "input-bound: 33 % of the step time is spent waiting for data; read is the slow stage; read from \
                 faster storage, put many samples into one file, or cache what is read: otherwise it needs 3 threads, \
                 and this machine has 2 cores"
            ],
        );
        check(
            LoaderReport { stages: vec![(Stage::Transform, ms(2900))], ..report() },
            expect![
                "input-bound: 33 % of the step time is spent waiting for data; transform is the slow stage; cache it \
                 or add 1 thread"
            ],
        );
        check(
            LoaderReport { stages: Vec::new(), writing: ms(2900), ..report() },
            expect![
                "input-bound: 33 % of the step time is spent waiting for data; write is the slow stage; make what \
                 Dataset::read does faster or add 1 thread"
            ],
        );
        check(
            LoaderReport { waiting: ms(20), ..report() },
            expect!["not input-bound: 2.0 % of the step time is spent waiting for data"],
        );
        check(
            LoaderReport { num_workers: 3, ..report() },
            expect![
                "input-bound: 33 % of the step time is spent waiting for data; decode is the slow stage; 3 threads are \
                 enough on average: raise prefetch, to read further ahead"
            ],
        );
        check(
            LoaderReport { num_workers: 0, ..report() },
            expect![
                "input-bound: 33 % of the step time is spent waiting for data; decode is the slow stage; cache it or \
                 add 3 threads"
            ],
        );
        check(
            LoaderReport { num_workers: 4, cores: 2, ..report() },
            expect![
                "input-bound: 33 % of the step time is spent waiting for data; decode is the slow stage; 4 threads are \
                 too many for 2 cores; cache it"
            ],
        );
        check(
            LoaderReport { busy: Duration::from_nanos(9), ..report() },
            expect![
                "input-bound: 100 % of the step time is spent waiting for data; decode is the slow stage; there is no \
                 other work between two batches, so no number of threads is enough"
            ],
        );
        check(
            LoaderReport { sequential: true, in_order: ms(1400), ..report() },
            expect![
                "input-bound: 33 % of the step time is spent waiting for data; reading the stream is the slow stage, \
                 which one thread does at a time; leave decoding to Stream::map, mix several streams, read from faster \
                 storage, or cache it"
            ],
        );
        let queue = QueueDepth { capacity: 2, ..QueueDepth::default() };
        let slow = TransferReport {
            batches: 100,
            busy: ms(1300),
            waited_for_batches: ms(100),
            waited_for_space: ms(10),
            queue,
        };
        check(
            LoaderReport { transfer: Some(slow), ..report() },
            expect![
                "input-bound: 33 % of the step time is spent waiting for data; the transfer to the device is the slow \
                 stage; send fewer bytes: u8 in place of f32, smaller rows"
            ],
        );
        check(
            LoaderReport { steps: 0, ..report() },
            expect!["too few batches to find the bottleneck"],
        );
    }

    #[test]
    fn the_report_is_a_line_for_each_part() {
        expect![[r#"
            101 batches, 6464 samples, filled by 2 threads
            read          101 ms    3 %
            decode        2.50 s   83 %
            transform     400 ms   13 %
            write        29.0 ms    1 %
            workers waited 3.00 ms for space; batches: 0.2 of 4 ready on average, 2 at most
            first batch after 31.0 ms
            100 steps: 1.00 s busy, 500 ms waiting
            input-bound: 33 % of the step time is spent waiting for data; decode is the slow stage; cache it or add 1 thread"#]]
        .assert_eq(&report().to_string());
    }
}
