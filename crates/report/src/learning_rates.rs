//! [`LearningRates`]: the curve of a search for a learning rate, and its chart and page.

use serde::{Deserialize, Serialize};

use crate::chart::{Chart, Mark, NEUTRAL, Series, number};
use crate::html::{Html, page, paragraph, section};

/// The loss over a learning rate that rose from step to step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LearningRates {
    /// The name of the loss.
    pub loss: String,
    /// The rate of each step.
    pub rates: Vec<f64>,
    /// The smoothed loss of each step.
    pub losses: Vec<f64>,
    /// The suggested rate, if there were enough steps.
    pub suggestion: Option<f64>,
}

impl LearningRates {
    /// The step with this rate, as a point of the chart.
    fn point(&self, rate: f64) -> Option<(f64, f64)> {
        self.rates.iter().copied().zip(self.losses.iter().copied()).find(|point| point.0 == rate)
    }

    /// The step with the smallest loss: its rate and the loss.
    pub fn smallest(&self) -> Option<(f64, f64)> {
        let points = self.rates.iter().copied().zip(self.losses.iter().copied());
        points.min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// The chart, with the suggestion as a dot, and what it says.
    pub(crate) fn html(&self) -> Html {
        let points = self.rates.iter().copied().zip(self.losses.iter().copied()).collect();
        let mut series = vec![Series { name: "smoothed loss".into(), points, ..Series::default() }];
        if let Some(point) = self.suggestion.and_then(|rate| self.point(rate)) {
            series.push(Series {
                name: "suggestion".into(),
                color: NEUTRAL,
                points: vec![point],
                mark: Mark::Dots,
                labels: vec![number(point.0)],
                sizes: vec![1.0],
            });
        }
        let chart = Chart {
            title: self.loss.clone(),
            x: "learning rate".into(),
            y: "smoothed loss".into(),
            series,
            log_x: true,
            ..Chart::default()
        };
        [chart.html(), paragraph(self.text())].into()
    }

    /// What the curve says, in a line.
    pub fn text(&self) -> String {
        let suggestion = match self.suggestion {
            Some(rate) => {
                format!(
                    "The smoothed {} falls fastest at a learning rate of {}",
                    self.loss,
                    number(rate)
                )
            }
            None => "There are too few steps to suggest a learning rate".to_owned(),
        };
        match self.smallest() {
            Some((rate, loss)) => {
                format!("{suggestion}. It is smallest at {}, {}.", number(rate), number(loss))
            }
            None => format!("{suggestion}."),
        }
    }

    /// A page of its own.
    pub fn page(&self, title: &str) -> String {
        page(title, section("learning-rates", "Learning rates", self.html()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_the_curve_and_the_suggestion() {
        let found = LearningRates {
            loss: "train_loss".into(),
            rates: vec![1e-4, 1e-3, 1e-2, 1e-1],
            losses: vec![2.0, 1.5, 1.0, 4.0],
            suggestion: Some(1e-3),
        };
        let text = "The smoothed train_loss falls fastest at a learning rate of 0.001. It is smallest at 0.01, 1.";
        assert_eq!(found.text(), text);
        let page = found.page("mnist tune");
        assert!(
            page.contains("<svg") && page.contains("suggestion") && page.contains(text),
            "{page}"
        );
        let none = LearningRates { suggestion: None, ..found };
        assert!(!none.page("mnist tune").contains(">suggestion<"));
        assert!(none.text().starts_with("There are too few steps to suggest a learning rate. It"));
    }
}
