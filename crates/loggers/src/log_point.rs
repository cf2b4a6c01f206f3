//! [`LogPoint`]: logged values on the host.

use std::borrow::Cow;
use std::fmt;

use crate::Media;

/// The maximum number of a metric's elements in its line of a table.
const MAX_SHOWN: usize = 8;

/// A place, other than callbacks, where logged values are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sink {
    /// The progress bar.
    ProgressBar,
    /// Loggers.
    Logger,
}

/// A logged value of several numbers.
#[derive(Clone, Debug, PartialEq)]
pub enum LoggedArray {
    /// One number for each class.
    Vector(Vec<f64>),
    /// Rows of numbers.
    Matrix(Vec<Vec<f64>>),
}

impl LoggedArray {
    /// All numbers in order, row by row.
    ///
    /// ```
    /// use fulmen_loggers::LoggedArray;
    /// assert_eq!(LoggedArray::Matrix(vec![vec![1.0, 2.0], vec![3.0, 4.0]]).elements(), [1.0, 2.0, 3.0, 4.0]);
    /// ```
    pub fn elements(&self) -> Vec<f64> {
        match self {
            LoggedArray::Vector(values) => values.clone(),
            LoggedArray::Matrix(rows) => rows.concat(),
        }
    }
}

/// Logged values on the host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogPoint {
    /// The epoch, counted from 0.
    pub epoch: u64,
    /// The optimizer step after which the values were computed.
    pub global_step: u64,
    /// Names and values of scalar metrics, in the order of the calls of `log` and `log_metric`.
    pub metrics: Vec<(String, f64)>,
    /// Names and values of metrics with several numbers: one per class, or a matrix.
    pub arrays: Vec<(String, LoggedArray)>,
    /// The names and values of images, texts and histograms, from the latest step or from the first
    /// batch of a validation or a test.
    pub media: Vec<(String, Media)>,
    /// The names logged with `prog_bar(false)` or `logger(false)`, each with the sink that does not
    /// show it.
    pub hidden: Vec<(String, Sink)>,
}

impl LogPoint {
    /// The value of a metric. `name` is the name of the metric or, for an element of a metric with
    /// several numbers, `NAME/I` or `NAME/I/J`.
    pub fn get(&self, name: &str) -> Option<f64> {
        if let Some(metric) = self.metrics.iter().find(|m| m.0 == name) {
            return Some(metric.1);
        }
        self.arrays.iter().find_map(|(array, value)| {
            let mut indices = name
                .strip_prefix(array.as_str())?
                .strip_prefix('/')?
                .split('/')
                .map(str::parse::<usize>);
            let first = indices.next()?.ok()?;
            let second = indices.next();
            let rest = indices.next();
            match (value, second, rest) {
                (LoggedArray::Vector(values), None, None) => values.get(first).copied(),
                (LoggedArray::Matrix(rows), Some(Ok(second)), None) => {
                    rows.get(first)?.get(second).copied()
                }
                _ => None,
            }
        })
    }

    /// The value of a metric with several numbers.
    pub fn array(&self, name: &str) -> Option<&LoggedArray> {
        self.arrays.iter().find(|array| array.0 == name).map(|array| &array.1)
    }

    /// The values that a sink shows.
    pub fn shown_by(&self, sink: Sink) -> Cow<'_, LogPoint> {
        if self.hidden.iter().all(|hidden| hidden.1 != sink) {
            return Cow::Borrowed(self);
        }
        let mut shown = self.clone();
        let is_shown = |name: &String| {
            !self.hidden.iter().any(|(hidden, from)| hidden == name && *from == sink)
        };
        shown.metrics.retain(|(name, _)| is_shown(name));
        shown.arrays.retain(|(name, _)| is_shown(name));
        Cow::Owned(shown)
    }

    /// Adds the values of another log point.
    pub fn extend(&mut self, other: &LogPoint) {
        self.metrics.extend_from_slice(&other.metrics);
        self.arrays.extend_from_slice(&other.arrays);
        self.media.extend_from_slice(&other.media);
        self.hidden.extend_from_slice(&other.hidden);
    }

    /// The columns of a table: the names and values of all numbers except those of matrices.
    /// [`LogPoint::get`] accepts these names.
    pub fn columns(&self) -> Vec<(String, f64)> {
        let mut columns = self.metrics.clone();
        for (name, value) in &self.arrays {
            if let LoggedArray::Vector(values) = value {
                columns.extend(
                    values.iter().enumerate().map(|(i, &value)| (format!("{name}/{i}"), value)),
                );
            }
        }
        columns
    }
}

/// Prints a small table: a line for each metric, with the elements of metrics that have several.
///
/// ```
/// use fulmen_loggers::LogPoint;
///
/// let metrics = vec![("train_loss".to_owned(), 0.25), ("lr".to_owned(), 3e-4)];
/// let point = LogPoint { epoch: 1, global_step: 50, metrics, ..LogPoint::default() };
/// assert_eq!(point.to_string(), "epoch 1, step 50\n  train_loss     0.2500\n  lr           3.000e-4");
/// ```
impl fmt::Display for LogPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {}, step {}", self.epoch, self.global_step)?;
        let mut rows: Vec<(String, Vec<f64>)> =
            self.metrics.iter().map(|(name, value)| (name.clone(), vec![*value])).collect();
        for (name, value) in &self.arrays {
            match value {
                LoggedArray::Vector(values) => rows.push((name.clone(), values.clone())),
                LoggedArray::Matrix(lines) => rows.extend(
                    lines.iter().enumerate().map(|(i, line)| (format!("{name}/{i}"), line.clone())),
                ),
            }
        }
        let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        for (name, values) in &rows {
            write!(f, "\n  {name:width$}")?;
            for &value in values.iter().take(MAX_SHOWN) {
                write!(f, " {:>10}", number(value))?;
            }
            if values.len() > MAX_SHOWN {
                write!(f, " … ({} values)", values.len())?;
            }
        }
        Ok(())
    }
}

/// Formats a number for display, with four decimals, or with an exponent if four decimals would
/// show too little.
pub fn number(value: f64) -> String {
    if value == 0.0 || (1e-3..1e5).contains(&value.abs()) {
        format!("{value:.4}")
    } else {
        format!("{value:.3e}")
    }
}
