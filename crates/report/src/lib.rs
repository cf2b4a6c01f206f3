#![doc = include_str!("../README.md")]

pub mod chart;
mod curve;
mod differences;
pub mod html;
mod learning_rates;
mod overview;
mod report;
mod run;
mod summary;

pub use curve::Curve;
pub use learning_rates::LearningRates;
pub use report::report;
pub use run::Run;
pub use summary::{DeviceMemory, HostSummary, SUMMARY, State, StepTimes, Summary};

#[cfg(test)]
mod tests;
