//! Curves as SVG, which is read on white and on black.

use std::error::Error;
use std::path::Path;

use plotters::prelude::*;

/// A name, and points by their steps.
pub(crate) type Curve = (String, Vec<(f64, f64)>);

const SIZE: (u32, u32) = (640, 300);
const GREY: RGBColor = RGBColor(128, 128, 128);
const COLOURS: [RGBColor; 4] =
    [RGBColor(66, 133, 244), RGBColor(240, 128, 40), RGBColor(48, 160, 80), RGBColor(180, 90, 200)];

/// Columns of a run's `metrics.csv`; a row without a value is no point.
pub(crate) fn read(file: &Path, columns: &[&str]) -> Result<Vec<Curve>, Box<dyn Error>> {
    let mut reader = csv::Reader::from_path(file)?;
    let header = reader.headers()?.clone();
    let place = |name: &str| {
        let place = header.iter().position(|column| column == name);
        place.ok_or_else(|| format!("{}: there is no column `{name}`", file.display()))
    };
    let step = place("step")?;
    let places = columns.iter().map(|name| place(name)).collect::<Result<Vec<_>, _>>()?;
    let mut curves: Vec<Curve> = columns.iter().map(|name| ((*name).to_owned(), vec![])).collect();
    for row in reader.records() {
        let row = row?;
        for ((_, points), &place) in curves.iter_mut().zip(&places) {
            if !row[place].is_empty() {
                points.push((row[step].parse()?, row[place].parse()?));
            }
        }
    }
    Ok(curves)
}

/// The curves in one picture with a legend; `x` names the axis below.
pub(crate) fn svg(curves: &[Curve], x: &str) -> Result<String, Box<dyn Error>> {
    let points = || curves.iter().flat_map(|(_, points)| points);
    let range = |values: &mut dyn Iterator<Item = f64>| {
        let (low, high) = values.filter(|v| v.is_finite()).fold((f64::MAX, f64::MIN), |(a, b), v| (a.min(v), b.max(v)));
        if low < high { Ok(low..high) } else { Err("a curve needs two points that differ") }
    };
    let (xs, ys) = (range(&mut points().map(|p| p.0))?, range(&mut points().map(|p| p.1))?);
    let margin = (ys.end - ys.start) / 20.0;
    let mut picture = String::new();
    let root = SVGBackend::with_string(&mut picture, SIZE).into_drawing_area();
    let mut chart = ChartBuilder::on(&root)
        .margin(10)
        .x_label_area_size(36)
        .y_label_area_size(44)
        .build_cartesian_2d(xs, ys.start - margin..ys.end + margin)?;
    let text = ("sans-serif", 13).into_font().color(&GREY);
    chart
        .configure_mesh()
        .x_desc(x)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .axis_style(GREY)
        .bold_line_style(GREY.mix(0.3))
        .light_line_style(TRANSPARENT)
        .label_style(text.clone())
        .draw()?;
    for ((name, points), colour) in curves.iter().zip(COLOURS.into_iter().cycle()) {
        let style = colour.stroke_width(2);
        let line = chart.draw_series(LineSeries::new(points.iter().copied(), style))?;
        line.label(name).legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .label_font(text)
        .border_style(GREY.mix(0.3))
        .draw()?;
    root.present()?;
    drop(chart);
    drop(root);
    Ok(picture)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_metrics_becomes_a_picture() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("metrics.csv");
        std::fs::write(&file, "epoch,step,train_loss,val_loss\n0,5,2.5,\n0,7,,2.25\n1,10,1.5,\n").unwrap();
        let curves = read(&file, &["train_loss", "val_loss"]).unwrap();
        assert_eq!(curves[0].1, [(5.0, 2.5), (10.0, 1.5)]);
        assert_eq!(curves[1].1, [(7.0, 2.25)]);
        let picture = svg(&curves, "step").unwrap();
        assert!(picture.starts_with("<svg") && picture.contains("val_loss") && picture.trim_end().ends_with("</svg>"));
        assert!(svg(&curves[1..], "step").unwrap_err().to_string().contains("two points"));
        assert!(read(&file, &["accuracy"]).unwrap_err().to_string().contains("no column `accuracy`"));
    }
}
