//! [`page`]: the report as a page to attach to an issue.

use fulmen_durable::messages::duration;
use fulmen_report::html::{self, Html, details, element, paragraph, section, table};

use crate::{Failure, PartReport, Report, parts};

/// A self-contained page without scripts.
pub fn page(report: &Report) -> String {
    let options = &report.options;
    let length = if options.full { "full" } else { "quick" };
    let about = format!(
        "Fulmen {}, {}, accelerator {}, {length}",
        report.fulmen, report.system, options.accelerator
    );
    let rows = report.parts.iter().map(|part| {
        vec![
            Html::from(part.name.as_str()),
            if part.passed { "passed" } else { "FAILED" }.into(),
            part.comparisons.to_string().into(),
            duration(part.seconds).into(),
            parts::about(&part.name).into(),
        ]
    });
    let overview = table(&["part", "outcome", "comparisons", "time", "what it tests"], rows);
    let sections: Html = report.parts.iter().map(of_part).collect();
    html::page(
        "fulmen selftest",
        [paragraph(about), paragraph(report.closing_line()), overview, sections],
    )
}

fn of_part(part: &PartReport) -> Html {
    let mut content = Vec::new();
    if let Some(end) = part.end() {
        content.push(paragraph(end));
        content.push(element("pre", &[], part.last_output.join("\n")));
    }
    if !part.failures.is_empty() {
        let rows = part.failures.iter().map(of_failure);
        let header = ["what", "setting", "inputs", "wrong", "units of the last place", "program"];
        content.push(table(&header, rows));
    }
    if !part.measurements.is_empty() {
        let rows = part.measurements.iter().map(|measured| {
            let share = measured.share.map_or_else(String::new, |s| format!("{:.0} %", s * 100.0));
            vec![
                Html::from(measured.name.as_str()),
                measured.text().into(),
                share.into(),
                measured.note.as_deref().unwrap_or_default().into(),
            ]
        });
        content.push(table(&["measured", "", "of the data sheet", "note"], rows));
    }
    if !part.facts.is_empty() {
        let row = |(name, value): (&String, &String)| {
            vec![Html::from(name.as_str()), Html::from(value.as_str())]
        };
        content.push(table(&["fact", ""], part.facts.iter().map(row)));
    }
    let skipped = part.skipped.iter().map(|what| paragraph(format!("Not tested: {what}")));
    content.extend(skipped);
    let content: Html = content.into_iter().collect();
    section(parts::id(&part.name), &part.name, content)
}

fn of_failure(failure: &Failure) -> Vec<Html> {
    let program = match &failure.program {
        Some(program) => details("StableHLO", element("pre", &[], program.as_str())),
        None => Html::default(),
    };
    let ulps = failure.ulps.map_or_else(String::new, |ulps| format!("{ulps:.0}"));
    vec![
        Html::from(failure.name.as_str()),
        failure.setting.as_str().into(),
        failure.inputs.join(", ").into(),
        failure.message.as_str().into(),
        ulps.into(),
        program,
    ]
}
