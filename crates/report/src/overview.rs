//! The summary at the top of a page, which describes a run in a few sentences.

use fulmen_durable::messages::{amount, duration, quantity};

use crate::html::{Html, element, paragraph};
use crate::report::{buckets, by_interest};
use crate::summary::State;
use crate::{Run, chart};

/// Memory use above this fraction is reported.
const NEARLY_FULL: f64 = 0.9;

/// The sentences of the summary, the most important first.
pub(crate) fn overview(run: &Run) -> Html {
    let mut sentences = Vec::new();
    let state = run.summary.as_ref().map(|summary| summary.state);
    let bad = state == Some(State::Failed);
    let status = element("b", &[], status(run));
    sentences.push(if bad { element("span", &[("class", &"bad")], status) } else { status });
    sentences.extend(values(run).into_iter().map(Html::from));
    for (name, curve) in run.curves() {
        if let (true, Some((step, count))) = (name.contains("loss"), curve.non_finite()) {
            let text = format!(
                "{name} was NaN or infinite at {count} of the log points, first at step {step}"
            );
            sentences.push(element("span", &[("class", &"bad")], text));
        }
    }
    sentences.extend(speed(run).into_iter().map(Html::from));
    let advice = run.summary.iter().flat_map(|summary| &summary.advice);
    sentences.extend(advice.map(|advice| Html::from(&**advice)));
    element(
        "ul",
        &[],
        sentences.into_iter().map(|sentence| element("li", &[], sentence)).collect::<Html>(),
    )
}

fn status(run: &Run) -> String {
    let Some(summary) = &run.summary else {
        let log_points = quantity(run.log_points, "log point");
        return format!("{log_points}; the folder has no summary of the fit");
    };
    let reason = summary.reason.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
    let state = match summary.state {
        State::Running => "Not finished when this page was written".to_owned(),
        State::Finished if summary.reason.is_some() => format!("Stopped{reason}"),
        State::Finished => "Finished".to_owned(),
        State::Interrupted => format!("Interrupted{reason}"),
        State::Failed => format!("Failed{reason}"),
    };
    let epochs = quantity(summary.epochs, "epoch");
    format!("{state}; {epochs}, {}", quantity(summary.global_step, "step"))
}

/// The validation loss or, if there is none, the training loss.
fn values(run: &Run) -> Option<String> {
    let is_loss = |name: &&str| name.contains("loss") && run.curves()[*name].min().is_some();
    let losses: Vec<&str> = by_interest(run).into_iter().filter(is_loss).collect();
    let rank = |name: &&&str| (**name != "val_loss", !name.starts_with("val"));
    let name = *losses.iter().min_by_key(rank)?;
    let curve = &run.curves()[name];
    let (step, last) = curve.last()?;
    let (best_step, least) = curve.min()?;
    let best = if best_step == step {
        ", its minimum".into()
    } else {
        format!("; its minimum was {} at step {best_step}", chart::number(least))
    };
    Some(format!("{name} is {} at step {step}{best}", chart::number(last)))
}

fn speed(run: &Run) -> Vec<String> {
    let mut sentences = Vec::new();
    let Some(summary) = &run.summary else { return sentences };
    sentences.extend(summary.loader.clone());
    let flops = summary.flops_per_second.filter(|flops| *flops > 0.0);
    let flops_text = flops
        .zip(summary.peak_flops)
        .map(|(flops, peak)| format!("{:.0} % of the chip's peak", 100.0 * flops / peak))
        .or_else(|| Some(format!("{} on each device", amount(flops?, "FLOP/s"))));
    if summary.samples_per_second > 0.0 {
        let rest = flops_text.map(|text| format!("; {text}")).unwrap_or_default();
        sentences
            .push(format!("{} samples a second{rest}", chart::number(summary.samples_per_second)));
    }
    let compiled: f64 = summary.compilations.iter().filter_map(|program| program.1).sum();
    match summary.compilations.len() {
        0 => {}
        n => sentences.push(format!("{}, {}", quantity(n, "compile"), duration(compiled))),
    }
    let spent = buckets(run);
    let total: f64 = spent.iter().map(|bucket| bucket.2).sum();
    if let (Some(steps), true) = (spent.iter().find(|bucket| bucket.0 == "steps"), total > 0.0) {
        sentences.push(format!(
            "{:.0} % of {} was spent on steps",
            100.0 * steps.2 / total,
            duration(total)
        ));
    }
    for memory in &summary.memory {
        if let (Some(peak), Some(limit)) = (memory.peak, memory.limit)
            && peak as f64 > NEARLY_FULL * limit as f64
        {
            sentences.push(format!(
                "{}: {:.0} % of its memory was in use",
                memory.device,
                100.0 * peak as f64 / limit as f64
            ));
        }
    }
    sentences
}

/// A note for a section without content.
pub(crate) fn missing(note: &str) -> Html {
    element("div", &[("class", &"faint")], paragraph(note))
}
