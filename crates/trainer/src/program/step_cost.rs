//! [`StepCost`]: the cost of a compiled step on each device, in total and by line of the user's
//! code.

use std::fmt;

use fulmen_durable::messages::amount;
use fulmen_pjrt::hlo::Cost;
use fulmen_preflight::cost_by_line;

use crate::program::{CompiledStep, is_internal};

/// The number of lines that the table shows.
const MAX_LINES: usize = 10;

/// The cost of a step on each device. It prints as a table with the most expensive lines first.
pub(crate) struct StepCost {
    /// Floating-point operations. The body of a loop counts once for each iteration. `None` if
    /// batches have several shapes.
    pub(crate) flops: Option<f64>,
    /// The cost of each line, for the largest shape. The entry without a line has the Trainer's
    /// operations, such as the optimizer, and those that the compiler added.
    pub(crate) lines: Vec<(Option<String>, Cost)>,
    /// The reason why there are no lines, or a remark about them.
    note: Option<String>,
}

impl StepCost {
    pub(crate) fn of(step: &CompiledStep) -> StepCost {
        let unknown = |reason: String| StepCost {
            flops: None,
            lines: Vec::new(),
            note: Some(format!("FLOPs and bytes by line are not known: {reason}")),
        };
        let Some(program) = step.programs().last() else {
            return unknown("the step has no program".into());
        };
        let module = match program.executable().hlo() {
            Ok(module) => module,
            Err(error) => return unknown(error.to_string()),
        };
        let count_flops = || match program.executable().cost_analysis() {
            Ok(cost) => Some(cost.flops()? + module.cost_of_further_runs().flops),
            // Compilers for CPUs don't count operations: count matrix products and convolutions
            // here.
            Err(_) => {
                Some(module.products().iter().map(|p| p.product.flops * p.times as f64).sum())
            }
        };
        let flops = if step.programs().len() == 1 { count_flops() } else { None };
        let mut lines: Vec<_> = cost_by_line(&module, is_internal).into_iter().collect();
        lines.retain(|(_, cost)| cost.flops > 0.0 || cost.bytes > 0.0);
        let total = sum(&lines);
        // A line's share of the operations or of the bytes, whichever is larger.
        let share = |cost: &Cost| {
            (cost.flops / total.flops.max(1.0)).max(cost.bytes / total.bytes.max(1.0))
        };
        lines.sort_by(|a, b| share(&b.1).total_cmp(&share(&a.1)));
        let note = match (lines.iter().any(|line| line.0.is_some()), program.was_cached()) {
            (false, _) => Some("the program has no line numbers".to_owned()),
            (_, true) => Some(
                "the program was compiled earlier, so its line numbers are those of that time"
                    .to_owned(),
            ),
            _ => None,
        };
        StepCost { flops, lines, note }
    }

    /// The most expensive lines for a report: each line with its operations and bytes.
    pub(crate) fn most_expensive(&self) -> Vec<(String, f64, f64)> {
        let line =
            |(line, cost): &(Option<String>, Cost)| (name(line).to_owned(), cost.flops, cost.bytes);
        self.lines.iter().take(MAX_LINES).map(line).collect()
    }
}

fn name(line: &Option<String>) -> &str {
    line.as_deref().unwrap_or("(not your code: the optimizer, logging, the compiler)")
}

fn sum(lines: &[(Option<String>, Cost)]) -> Cost {
    let add = |total: Cost, (_, cost): &(Option<String>, Cost)| Cost {
        flops: total.flops + cost.flops,
        bytes: total.bytes + cost.bytes,
    };
    lines.iter().fold(Cost::default(), add)
}

impl fmt::Display for StepCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StepCost { lines, note, .. } = self;
        if !lines.is_empty() {
            let row = |cost: &Cost, line: &str| {
                format!(
                    "{:>12} | {:>10} | {line}\n",
                    amount(cost.flops, "FLOP"),
                    amount(cost.bytes, "B")
                )
            };
            let (shown, rest) = lines.split_at(lines.len().min(MAX_LINES));
            write!(f, "{:>12} | {:>10} | Line\n{}\n", "FLOPs", "Bytes", "-".repeat(60))?;
            for (line, cost) in shown {
                f.write_str(&row(cost, name(line)))?;
            }
            if !rest.is_empty() {
                f.write_str(&row(&sum(rest), &format!("({} more)", rest.len())))?;
            }
            let total = sum(lines);
            let flops = amount(total.flops, "FLOP");
            let bytes = amount(total.bytes, "B");
            write!(
                f,
                "{}\n{flops} and {bytes} of memory traffic per step on each device, as compiled",
                "-".repeat(60)
            )?;
        }
        match note {
            Some(note) if lines.is_empty() => write!(f, "note: {note}"),
            Some(note) => write!(f, "\nnote: {note}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_shows_the_first_lines_and_adds_up_the_rest() {
        let line = |i: usize| (Some(format!("m.rs:{i}")), Cost { flops: 1e9, bytes: 2e6 });
        let mut lines: Vec<_> = (0..12).map(line).collect();
        lines[1].0 = None;
        let cost = StepCost { flops: None, lines, note: Some("old".into()) };
        let text = cost.to_string();
        let rows: Vec<&str> = text.lines().collect();
        assert_eq!(rows[0], "       FLOPs |      Bytes | Line");
        assert_eq!(rows[2], "  1.00 GFLOP |    2.00 MB | m.rs:0");
        assert!(rows[3].contains("(not your code: "), "{text}");
        assert_eq!(rows[12], "  2.00 GFLOP |    4.00 MB | (2 more)");
        assert_eq!(
            rows[14],
            "12.00 GFLOP and 24.00 MB of memory traffic per step on each device, as compiled"
        );
        assert_eq!(rows[15], "note: old");
        let none = StepCost { flops: None, lines: Vec::new(), note: Some("why".into()) };
        assert_eq!(none.to_string(), "note: why");
    }
}
