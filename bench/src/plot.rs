//! Charts as SVG files: curves of a run, and bars of measurements.

use std::error::Error;
use std::path::Path;

use fulmen_report::chart::{Chart, Series, class, number, svg_file};
use fulmen_report::html::{Html, element};

/// A name, and values by step.
pub(crate) type Curve = (String, Vec<(f64, f64)>);

/// Reads columns of a run's `metrics.csv`. Rows without a value are skipped.
pub(crate) fn read(file: &Path, columns: &[&str]) -> Result<Vec<Curve>, Box<dyn Error>> {
    let mut reader = csv::Reader::from_path(file)?;
    let header = reader.headers()?.clone();
    let index_of = |name: &str| {
        let index = header.iter().position(|column| column == name);
        index.ok_or_else(|| format!("{}: there is no column `{name}`", file.display()))
    };
    let step = index_of("step")?;
    let indices = columns.iter().map(|name| index_of(name)).collect::<Result<Vec<_>, _>>()?;
    let mut curves: Vec<Curve> =
        columns.iter().map(|name| ((*name).to_owned(), Vec::new())).collect();
    for row in reader.records() {
        let row = row?;
        for ((_, points), &index) in curves.iter_mut().zip(&indices) {
            if !row[index].is_empty() {
                points.push((row[step].parse()?, row[index].parse()?));
            }
        }
    }
    Ok(curves)
}

/// The curves in one chart with a legend; `x` names the horizontal axis.
pub(crate) fn curves(title: &str, curves: &[Curve], x: &str) -> Result<String, Box<dyn Error>> {
    if curves.iter().all(|(_, points)| points.len() < 2) {
        return Err("a curve needs two points".into());
    }
    let series = |(color, (name, points)): (usize, &Curve)| {
        let name = name.clone();
        let points = points.clone();
        Series { name, color, points, ..Series::default() }
    };
    let series = curves.iter().enumerate().map(series).collect();
    // A falling loss is easier to read on an axis without powers.
    Ok(Chart { title: title.into(), x: x.into(), series, log_y: Some(false), ..Chart::default() }
        .svg())
}

/// Groups of bars: a name, and values for some contenders. A line marks the value 1.
pub(crate) type Group = (String, Vec<(usize, f64)>);

/// The maximum length of a bar.
const LENGTH: f64 = 280.0;
const BAR: f64 = 12.0;

/// The space for the number after a bar, and for one character of a name.
const NUMBER: f64 = 50.0;
const CHARACTER: f64 = 5.5;

/// Longer bars are cut off; their numbers are not.
const LONGEST: f64 = 5.0;

/// The groups from top to bottom, in the contenders' colors.
pub(crate) fn bars(title: &str, contenders: &[&str], groups: &[Group]) -> String {
    let values = || groups.iter().flat_map(|(_, bars)| bars.iter().map(|bar| bar.1));
    let longest = values().fold(1.0, f64::max).min(LONGEST);
    let origin = 12.0
        + CHARACTER * groups.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0) as f64;
    let x = |value: f64| origin + value.min(longest) / longest * LENGTH;
    let mut parts = Vec::new();
    let mut y = 4.0;
    for (name, bars) in groups {
        let middle = y + BAR * bars.len() as f64 / 2.0 + 4.0;
        parts.push(text(origin - 6.0, middle, "end", name));
        for &(contender, value) in bars {
            let shape = format!("M{origin} {y:.1}H{:.1}v{:.1}H{origin}Z", x(value), BAR - 1.0);
            parts.push(element(
                "path",
                &[("class", &format_args!("column {}", class(contender))), ("d", &shape)],
                "",
            ));
            y += BAR;
            parts.push(text(x(value) + 4.0, y - 2.0, "start", &number(value)));
        }
        y += 8.0;
    }
    let one = format!("M{:.1} 0V{y:.1}", x(1.0));
    parts.push(element("path", &[("class", &"grid"), ("d", &one)], ""));
    let names: Vec<(usize, &str)> = contenders.iter().copied().enumerate().collect();
    svg_file(title, &names, origin + LENGTH + NUMBER, y, parts.into_iter().collect())
}

fn text(x: f64, y: f64, anchor: &'static str, text: &str) -> Html {
    element(
        "text",
        &[("x", &format_args!("{x:.1}")), ("y", &format_args!("{y:.1}")), ("text-anchor", &anchor)],
        text,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_metrics_becomes_a_chart() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("metrics.csv");
        std::fs::write(&file, "epoch,step,train_loss,val_loss\n0,5,2.5,\n0,7,,2.25\n1,10,1.5,\n")
            .unwrap();
        let read_curves = read(&file, &["train_loss", "val_loss"]).unwrap();
        assert_eq!(read_curves[0].1, [(5.0, 2.5), (10.0, 1.5)]);
        assert_eq!(read_curves[1].1, [(7.0, 2.25)]);
        let chart = curves("digits", &read_curves, "step").unwrap();
        assert!(
            chart.starts_with("<svg")
                && chart.contains("val_loss")
                && chart.trim_end().ends_with("</svg>")
        );
        assert!(
            curves("digits", &read_curves[1..], "step")
                .unwrap_err()
                .to_string()
                .contains("two points")
        );
        assert!(
            read(&file, &["accuracy"]).unwrap_err().to_string().contains("no column `accuracy`")
        );
    }

    #[test]
    fn a_bar_is_as_long_as_its_value_and_no_longer_than_the_chart() {
        let groups =
            [("W1".to_owned(), vec![(0, 1.0), (1, 2.0)]), ("W2".to_owned(), vec![(1, 40.0)])];
        let chart = bars("steps", &["Fulmen", "jax"], &groups);
        // 280 units represent a value of 5, after a name of two characters.
        assert!(chart.contains("d=\"M23 4.0H79.0v11.0H23Z\""), "{chart}");
        assert!(chart.contains("H303.0v11.0") && chart.contains(">40</text>"), "{chart}");
    }
}
