//! Generates the book's drawings: `UPDATE_EXPECT=1 cargo test -p fulmen --test it drawings` updates
//! them.
//!
//! Out of scope: screenshots of pages, see `ci/pages`; screenshots of terminals, which the tests
//! of those crates draw.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::book::{read, repository};

const COLORS: [&str; 3] = ["#dbe9fb", "#d5f0e3", "#fbe3cf"];

/// A drawing of boxes and texts.
struct Drawing {
    width: f64,
    height: f64,
    shapes: String,
}

impl Drawing {
    fn new(width: f64, height: f64) -> Drawing {
        let background =
            format!("<rect width=\"{width}\" height=\"{height}\" rx=\"6\" fill=\"#ffffff\"/>\n");
        Drawing { width, height, shapes: background }
    }

    /// A text at `x`; the SVG `anchor` aligns it.
    fn text(&mut self, x: f64, y: f64, anchor: &str, text: &str) {
        self.shapes +=
            &format!("<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{text}</text>\n");
    }

    fn labeled_box(&mut self, x: f64, y: f64, width: f64, height: f64, color: &str, label: &str) {
        self.shapes += &format!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"4\" fill=\"{color}\" stroke=\"#8a94a0\"/>\n"
        );
        self.text(x + width / 2.0, y + height / 2.0 + 4.5, "middle", label);
    }

    fn svg(&self) -> String {
        let Drawing { width, height, shapes } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
             font-size=\"13\" fill=\"#1f2328\">\n{shapes}</svg>\n"
        )
    }
}

/// Checks that the drawing in the book is up to date.
fn check(name: &str, drawing: &Drawing) {
    let path = repository().join("docs/src").join(name);
    let expected = drawing.svg();
    if fs::read_to_string(&path).is_ok_and(|actual| actual == expected) {
        return;
    }
    assert_eq!(
        std::env::var("UPDATE_EXPECT").as_deref(),
        Ok("1"),
        "{name} is out of date; UPDATE_EXPECT=1 updates it"
    );
    fs::write(&path, expected).unwrap();
}

/// The repository's crates with their dependencies, without the prefix `fulmen-`.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let mut crates = BTreeMap::new();
    for folder in fs::read_dir(repository().join("crates")).unwrap() {
        let manifest = read(folder.unwrap().path().join("Cargo.toml"));
        let name = manifest.split("name = \"").nth(1).unwrap().split('"').next().unwrap();
        let sections =
            manifest.split("\n[").filter_map(|section| section.strip_prefix("dependencies]\n"));
        let lines = sections.flat_map(str::lines).filter_map(|line| line.strip_prefix("fulmen-"));
        let needed =
            lines.filter_map(|line| line.split(['.', ' ']).next()).map(str::to_owned).collect();
        crates.insert(name.trim_start_matches("fulmen-").to_owned(), needed);
    }
    crates
}

/// The level of a crate: one above the highest crate that it depends on.
fn floor(name: &str, crates: &BTreeMap<String, BTreeSet<String>>) -> usize {
    crates[name].iter().map(|dependency| 1 + floor(dependency, crates)).max().unwrap_or(0)
}

#[test]
fn the_drawing_of_the_crates_matches_the_manifests() {
    const ROW: f64 = 40.0;
    let crates = dependencies();
    let mut floors: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
    for name in crates.keys() {
        floors.entry(floor(name, &crates)).or_default().push(name);
    }
    assert!(
        floors.len() > 4 && floors.values().map(Vec::len).sum::<usize>() == crates.len(),
        "{floors:?}"
    );

    let width = |name: &str| 8.0 * name.len() as f64 + 20.0;
    let mut drawing = Drawing::new(900.0, ROW * floors.len() as f64 + 10.0);
    for (level, names) in floors.values().rev().enumerate() {
        let total: f64 = names.iter().map(|name| width(name) + 8.0).sum::<f64>() - 8.0;
        let mut x = (drawing.width - total) / 2.0;
        for name in names {
            let color = COLORS[level % COLORS.len()];
            let y = ROW * level as f64 + 10.0;
            drawing.labeled_box(x, y, width(name), ROW - 10.0, color, name);
            x += width(name) + 8.0;
        }
    }
    check("floors.svg", &drawing);
}

#[test]
fn a_step_overlaps_with_the_next_batches() {
    const STEP: f64 = 230.0;
    // The spans of each row, in units of a step's time. The device never waits.
    type Row<'a> = (&'a str, &'a [(f64, f64, &'a str)]);
    let rows: [Row<'_>; 4] = [
        (
            "worker threads",
            &[
                (0.0, 0.8, "read batch 2"),
                (0.8, 1.6, "read batch 3"),
                (1.6, 2.4, "read batch 4"),
                (2.4, 3.2, "read batch 5"),
            ],
        ),
        ("transfer", &[(0.0, 0.3, "1"), (0.8, 1.1, "2"), (1.6, 1.9, "3"), (2.4, 2.7, "4")]),
        ("loop", &[(0.3, 0.45, ""), (1.1, 1.25, ""), (1.9, 2.05, ""), (2.7, 2.85, "")]),
        (
            "device",
            &[(0.0, 1.0, "step 0"), (1.0, 2.0, "step 1"), (2.0, 3.0, "step 2"), (3.0, 3.2, "")],
        ),
    ];
    let mut drawing = Drawing::new(900.0, 200.0);
    for (row, (name, spans)) in rows.iter().enumerate() {
        let y = 40.0 * row as f64 + 10.0;
        drawing.text(12.0, y + 19.5, "start", name);
        for (start, end, label) in *spans {
            let x = 130.0 + STEP * start;
            let width = STEP * (end - start) - 2.0;
            drawing.labeled_box(x, y, width, 30.0, COLORS[row % COLORS.len()], label);
        }
    }
    let caption = "The loop hands a step to the device as soon as its batch arrives, and goes on. Time runs to the right.";
    drawing.text(12.0, 188.0, "start", caption);
    check("steps.svg", &drawing);
}
