//! [`Sums`]: the vector of logged values on the host, and the values that are computed from it.

use fulmen_nn::metrics::Value;
use fulmen_tensor::Literal;

use crate::logs::index_faults::{self, IndexFault};
use crate::logs::layout::{LogLayout, NONE, Rule, Sum, SumKind};
use crate::logs::{LEARNING_RATE, optimizer_value_name};
use crate::position::StepPosition;
use crate::stage::Stage;
use crate::{Error, LogPoint, LoggedArray, Media, ReduceFx, Result, error};

/// The range of steps whose values are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogRange<'a> {
    /// The steps since the last log point.
    Steps,
    /// A training epoch, or the finished part of it.
    Epoch,
    /// A pass over a loader that does not train, with the suffix for the names.
    Pass(&'a str),
}

/// The host's copy of the vector.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sums {
    /// The first step, counted from 1, whose loss was not finite.
    pub(crate) bad_step: Option<u64>,
    /// The first index that is out of range.
    pub(crate) index_fault: Option<IndexFault>,
    /// The operation that made the loss non-finite, if traced.
    pub(crate) anomaly: Option<String>,
    /// For each optimizer, the learning rate of its latest step and the number that epochs have too,
    /// if any.
    pub(crate) optimizers: Vec<[Option<f64>; 2]>,
    /// The latest values that callbacks monitor, if any.
    pub(crate) monitored: Vec<Option<f64>>,
    /// The elements of the sums of each key.
    pub(crate) sums: Vec<(String, Vec<Vec<f64>>)>,
}

impl Sums {
    /// The learning rate of the latest step. With several optimizers, the learning rate of the
    /// first one.
    pub(crate) fn learning_rate(&self) -> f64 {
        self.optimizers.first().and_then(|[rate, _]| *rate).unwrap_or_default()
    }
}

impl LogLayout {
    /// Checks that sums from a file match the values logged here. Other sums are kept unread.
    pub(crate) fn check(&self, sums: &Sums) -> Result<(), String> {
        for (key, sums) in &sums.sums {
            let Some(entry) = self.entries.iter().find(|entry| entry.key == *key) else { continue };
            if !sums.iter().map(Vec::len).eq(entry.sums.iter().map(|sum| sum.len)) {
                let actual: Vec<usize> = sums.iter().map(Vec::len).collect();
                let expected: Vec<usize> = entry.sums.iter().map(|sum| sum.len).collect();
                return Err(format!(
                    "its metadata `epoch_sums` has sums of {actual:?} numbers for `{}`, expected {expected:?}",
                    entry.name
                ));
            }
        }
        Ok(())
    }

    /// Reads the vector on the host.
    pub(crate) fn read(&self, literal: &Literal) -> Result<Sums> {
        let words = literal.to_vec::<i32>()?;
        if words.len() != self.len() {
            return Err(Error::usage(format!(
                "the logged values are {}, expected {}",
                literal.ty(),
                self.ty()
            )));
        }
        let float = |i: usize| f64::from(f32::from_bits(words[i] as u32));
        let mut float_index = self.header_len();
        let mut counter_index = self.header_len() + 2 * self.floats;
        let mut latest_index = self.latest_start();
        // None for a float without a value yet.
        let mut take = |sum: &Sum| -> Option<Vec<f64>> {
            let next = match sum.kind {
                SumKind::Float => &mut float_index,
                SumKind::Counter => &mut counter_index,
                SumKind::Latest => &mut latest_index,
            };
            let start = *next;
            *next += sum.len;
            let number = |i: usize| match sum.kind {
                SumKind::Float => Some(float(i) + float(i + self.floats)),
                SumKind::Counter => Some(
                    f64::from(words[i + self.counters] as u32) * 2f64.powi(32)
                        + f64::from(words[i] as u32),
                ),
                SumKind::Latest => (words[i] != NONE).then(|| float(i)),
            };
            (start..start + sum.len).map(number).collect()
        };
        let mut sums = Vec::new();
        for entry in &self.entries {
            let elements: Vec<Option<Vec<f64>>> = entry.sums.iter().map(&mut take).collect();
            sums.extend(
                elements
                    .into_iter()
                    .collect::<Option<_>>()
                    .map(|elements| (entry.key.clone(), elements)),
            );
        }
        let bad_step = u64::try_from(words[0]).ok().filter(|&step| step > 0);
        let latest = |i: usize| (words[i] != NONE).then(|| float(i));
        let optimizers: Vec<_> =
            (0..self.optimizers.len()).map(|i| [latest(1 + 2 * i), latest(2 + 2 * i)]).collect();
        let monitored = self
            .monitored
            .iter()
            .zip(1 + 2 * optimizers.len()..)
            .map(|((_, is_counter), i)| {
                if *is_counter {
                    (words[i] != NONE).then(|| f64::from(words[i]))
                } else {
                    latest(i)
                }
            })
            .collect();
        let levels = &words[words.len() - self.levels()..];
        let anomaly = self
            .anomalies
            .as_ref()
            .and_then(|anomalies| anomalies.origin(levels))
            .filter(|_| bad_step.is_some());
        let index_fault =
            self.read_index_words(&words[self.index_words_start()..][..index_faults::WORDS]);
        Ok(Sums { bad_step, index_fault, anomaly, optimizers, monitored, sums })
    }

    /// The names and values that the Trainer logs for each optimizer.
    pub(crate) fn optimizer_values(&self, sums: &Sums) -> Vec<(String, f64)> {
        let mut values = Vec::new();
        let names = self.optimizers.iter().zip(&self.in_epochs);
        for ((optimizer, in_epochs), [rate, number]) in names.zip(&sums.optimizers) {
            values.extend(rate.map(|rate| (optimizer_value_name(LEARNING_RATE, optimizer), rate)));
            values.extend(in_epochs.clone().zip(*number));
        }
        let monitored = self.monitored.iter().zip(&sums.monitored);
        values.extend(monitored.filter_map(|((name, _), value)| Some((name.clone(), (*value)?))));
        values
    }

    /// Adds the sums of later steps.
    pub(crate) fn add(&self, sums: &mut Sums, later: &Sums) {
        sums.bad_step = sums.bad_step.or(later.bad_step);
        sums.index_fault = sums.index_fault.take().or_else(|| later.index_fault.clone());
        sums.optimizers.resize(later.optimizers.len().max(sums.optimizers.len()), [None; 2]);
        for (total, later) in
            sums.optimizers.iter_mut().flatten().zip(later.optimizers.iter().flatten())
        {
            *total = later.or(*total);
        }
        for (key, later) in &later.sums {
            let Some(entry) = self.entries.iter().find(|entry| entry.key == *key) else { continue };
            match sums.sums.iter_mut().find(|sum| sum.0 == *key) {
                Some((_, totals)) => totals
                    .iter_mut()
                    .flatten()
                    .zip(later.iter().flatten())
                    .for_each(|(total, &later)| *total = entry.rule.join(*total, later)),
                None => sums.sums.push((key.clone(), later.clone())),
            }
        }
    }

    /// Computes the values from the sums, at this position. A name without samples gets no
    /// value.
    pub(crate) fn point(
        &self,
        sums: &Sums,
        range: LogRange<'_>,
        position: StepPosition,
    ) -> LogPoint {
        let StepPosition { epoch, global_step } = position;
        let mut point = LogPoint { epoch, global_step, ..LogPoint::default() };
        for entry in &self.entries {
            let (logged, suffix) = match range {
                LogRange::Steps => (entry.on_step, ""),
                LogRange::Epoch => (entry.on_epoch, "_epoch"),
                LogRange::Pass(suffix) => (true, suffix),
            };
            let Some((_, sums)) = sums.sums.iter().find(|(key, _)| logged && *key == entry.key)
            else {
                continue;
            };
            let name = format!("{}{suffix}", entry.name);
            let value = match (&entry.rule, &sums[..]) {
                (Rule::Metric(metric), sums) => metric.compute(sums),
                (Rule::Reduce(ReduceFx::Mean), [sum, count])
                    if count.first().is_some_and(|&count| count > 0.0) =>
                {
                    Value::Scalar(sum.iter().sum::<f64>() / count.iter().sum::<f64>())
                }
                (Rule::Reduce(ReduceFx::Mean), _) => continue,
                (Rule::Reduce(_), sums) => Value::Scalar(sums.iter().flatten().sum()),
            };
            point.hidden.extend(entry.hidden.iter().map(|&sink| (name.clone(), sink)));
            match value {
                Value::Scalar(value) => point.metrics.push((name, value)),
                Value::Vector(values) => point.arrays.push((name, LoggedArray::Vector(values))),
                Value::Matrix(rows) => point.arrays.push((name, LoggedArray::Matrix(rows))),
            }
        }
        point
    }

    /// The values of a pass over a loader, from its part of `read`: the vector, then the media of
    /// its first batch. `suffix` is appended to the names.
    pub(crate) fn pass(
        &self,
        read: &mut &[Literal],
        suffix: &str,
        position: StepPosition,
    ) -> Result<LogPoint> {
        let (pass, others) = read.split_at_checked(1 + self.media.len()).unwrap_or_default();
        *read = others;
        let (sums, media) = pass
            .split_first()
            .ok_or_else(|| error::data("the device returned no logged values"))?;
        let sums = self.read(sums)?;
        if let Some(fault) = &sums.index_fault {
            let stage = self.stage.map_or("", Stage::noun);
            return Err(error::data(fault.message(&format!("{stage}{suffix} batch"))));
        }
        let mut media = self.media(media)?;
        media.iter_mut().for_each(|(name, _)| name.push_str(suffix));
        Ok(LogPoint { media, ..self.point(&sums, LogRange::Pass(suffix), position) })
    }

    /// Converts the media that a step returned next to the vector.
    pub(crate) fn media(&self, read: &[Literal]) -> Result<Vec<(String, Media)>> {
        self.media
            .iter()
            .zip(read)
            .map(|((name, kind), literal)| Ok((name.clone(), kind.read(literal)?)))
            .collect()
    }
}
