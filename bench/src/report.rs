//! `report`: converts the suites' lines of JSON to tables in `RESULTS.md`, and to charts in the book.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use fulmen_report::chart::number;

use crate::plot::{self, Group};
use crate::row::{OURS, Row};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Files with the output of suites that ran with `--json`. Of several results for the same
    /// quantity, the last one counts.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// The file to write the tables into, between the lines `<!-- bench SUITE -->` and
    /// `<!-- end of bench SUITE -->`.
    #[arg(long, default_value = "bench/RESULTS.md")]
    results: PathBuf,
    /// The folder for the charts, `performance-SUITE.svg`.
    #[arg(long, default_value = "docs/src")]
    charts: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let mut rows = Vec::new();
    for file in &args.files {
        let text = fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
        read(&text, &mut rows);
    }
    if rows.is_empty() {
        return Err(
            "there is no result in the files; run a suite with --json and keep its output".into()
        );
    }
    let mut suites: Vec<&str> = Vec::new();
    for row in &rows {
        if !suites.contains(&&*row.suite) {
            suites.push(&row.suite);
        }
    }
    let mut failed = Vec::new();
    for suite in suites {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.suite == suite).collect();
        let mut part = table(&rows);
        let chart = chart(suite, &rows);
        let path = args.charts.join(format!("performance-{suite}.svg"));
        if chart.is_some() {
            // As a file in another folder of the repository's root names it.
            let link = Path::new("..").join(&path);
            part += &format!("\n\n![Each peer's median divided by Fulmen's]({})", link.display());
        }
        if let Err(why) = write_part(&args.results, suite, |_| part) {
            failed.push(why.to_string());
            continue;
        }
        if let Some(chart) = chart {
            fs::write(&path, chart).map_err(|e| format!("{}: {e}", path.display()))?;
        }
        println!("{}: {suite}, {} results", args.results.display(), rows.len());
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n").into()) }
}

/// Adds the results in a text, which may contain other lines.
fn read(text: &str, rows: &mut Vec<Row>) {
    for row in text.lines().filter_map(|line| serde_json::from_str::<Row>(line).ok()) {
        let is_same = |other: &Row| {
            (&other.suite, &other.name, &other.quantity) == (&row.suite, &row.name, &row.quantity)
        };
        match rows.iter().position(is_same) {
            Some(i) => rows[i] = row,
            None => rows.push(row),
        }
    }
}

/// The contenders, Fulmen first.
fn contenders<'a>(rows: &[&'a Row]) -> Vec<&'a str> {
    let mut names = vec![OURS];
    for result in rows.iter().flat_map(|row| &row.results) {
        if !names.contains(&&*result.name) {
            names.push(&result.name);
        }
    }
    names
}

fn table(rows: &[&Row]) -> String {
    let names = contenders(rows);
    let version = |name: &str| {
        let result = rows.iter().flat_map(|row| &row.results).find(|result| result.name == name);
        result.map_or("", |result| &*result.version)
    };
    let heads = names.iter().map(|name| format!("{name} {}", version(name)).trim_end().to_owned());
    let mut lines = vec![
        format!("| | {} |", heads.collect::<Vec<_>>().join(" | ")),
        format!("| --- {}|", "| --- ".repeat(names.len())),
    ];
    for row in rows {
        let cell = |name: &&str| match (row.median(name), row.ratio(name)) {
            (Some(median), Some(ratio)) if *name != OURS => {
                format!("{} (ratio {ratio:.2})", number(median))
            }
            (Some(median), _) => number(median),
            (None, _) => "–".to_owned(),
        };
        let unit = if row.unit.is_empty() { String::new() } else { format!(", {}", row.unit) };
        let cells: Vec<String> = names.iter().map(cell).collect();
        lines.push(format!("| {}, {}{unit} | {} |", row.name, row.quantity, cells.join(" | ")));
    }
    let mut machines: Vec<String> = Vec::new();
    for row in rows {
        let environment = &row.environment;
        let commit = environment.commit.as_deref().unwrap_or("of an unknown commit");
        let gpu = environment.gpu.as_ref().map_or_else(String::new, |gpu| format!("{gpu} and "));
        // A GPU has an allocator of its own.
        let allocator = environment.allocator.as_ref().filter(|_| environment.gpu.is_none());
        let allocator = allocator.map_or_else(String::new, |name| format!(", with {name}"));
        let cores = environment.cores;
        let machine = format!("{gpu}{cores} cores of {}, {commit}{allocator}", environment.cpu);
        if !machines.contains(&machine) {
            machines.push(machine);
        }
    }
    let mut missing: Vec<&str> =
        rows.iter().flat_map(|row| row.missing.iter().map(|(name, _)| &**name)).collect();
    missing.sort_unstable();
    missing.dedup();
    let missing = if missing.is_empty() {
        String::new()
    } else {
        format!(" Not every row has {}.", missing.join(", "))
    };
    format!(
        "{}\n\nMedians. A ratio is Fulmen's median divided by the peer's. On {}.{missing}",
        lines.join("\n"),
        machines.join("; ")
    )
}

/// Bars of each peer's median as a multiple of Fulmen's; `None` if no row has a peer.
fn chart(suite: &str, rows: &[&Row]) -> Option<String> {
    let names = contenders(rows);
    let same_quantity = rows.windows(2).all(|pair| pair[0].quantity == pair[1].quantity);
    let groups: Vec<Group> = rows
        .iter()
        .filter_map(|row| {
            let ours = row.median(OURS).filter(|ours| *ours > 0.0)?;
            let bars: Vec<(usize, f64)> = names
                .iter()
                .enumerate()
                .filter_map(|(i, name)| Some((i, row.median(name)? / ours)))
                .collect();
            let name = || {
                if same_quantity {
                    row.name.clone()
                } else {
                    format!("{}, {}", row.name, row.quantity)
                }
            };
            (bars.len() > 1).then(|| (name(), bars))
        })
        .collect();
    let title = format!("{suite}: each median divided by Fulmen's");
    (!groups.is_empty()).then(|| plot::bars(&title, &names, &groups))
}

/// Replaces the part of a Markdown file between the two lines of a suite.
pub(crate) fn write_part(
    file: &Path,
    suite: &str,
    part: impl FnOnce(&str) -> String,
) -> Result<(), Box<dyn Error>> {
    let text = fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let start = format!("<!-- bench {suite} -->");
    let end = format!("<!-- end of bench {suite} -->");
    let missing = || format!("{}: not a file with the lines `{start}` and `{end}`", file.display());
    // The text may mention such a line.
    let (before, rest) = text.split_once(&format!("\n{start}\n")).ok_or_else(missing)?;
    let (old, after) = rest.split_once(&end).ok_or_else(missing)?;
    let part = part(old);
    Ok(fs::write(file, format!("{before}\n{start}\n\n{}\n\n{end}{after}", part.trim()))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Row> {
        let row = |ours, peer| {
            Row::new("steps", "W1", "step", "ms").ours(&[ours]).peer("jax", "0.12", &[peer])
        };
        let other =
            Row::new("steps", "W2", "step", "ms").ours(&[3.0]).missing("torch", "no Python");
        let lines =
            [row(9.0, 9.0), row(1.0, 2.0), other].map(|row| serde_json::to_string(&row).unwrap());
        let mut rows = Vec::new();
        read(&format!("some other line\n{}", lines.join("\n")), &mut rows);
        rows
    }

    #[test]
    fn the_later_result_counts_and_a_missing_peer_is_reported() {
        let rows = rows();
        let table = table(&rows.iter().collect::<Vec<_>>());
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[0], format!("| | Fulmen {} | jax 0.12 |", env!("CARGO_PKG_VERSION")));
        assert_eq!(
            lines[1..4],
            [
                "| --- | --- | --- |",
                "| W1, step, ms | 1 | 2 (ratio 0.50) |",
                "| W2, step, ms | 3 | – |"
            ]
        );
        assert!(table.ends_with("Not every row has torch."), "{table}");
    }

    #[test]
    fn a_table_names_the_allocators_of_its_rows_on_a_cpu() {
        let row = |name: &str, allocator: Option<&str>, gpu: Option<&str>| {
            let mut row = Row::new("steps", name, "step", "ms").ours(&[1.0]);
            row.environment.allocator = allocator.map(str::to_owned);
            row.environment.gpu = gpu.map(str::to_owned);
            row
        };
        let rows = [
            row("W1", Some("jemalloc"), None),
            row("W2", None, None),
            row("gpt2", Some("jemalloc"), Some("a GPU")),
        ];
        let table = table(&rows.iter().collect::<Vec<_>>());
        let (_, machines) = table.split_once(" On ").unwrap();
        let ends = machines.split("; ").map(|machine| machine.ends_with(", with jemalloc"));
        assert_eq!(ends.collect::<Vec<_>>(), [true, false, false], "{machines}");
    }

    #[test]
    fn a_part_of_the_results_is_replaced_and_the_book_gets_a_chart() {
        let folder = tempfile::tempdir().unwrap();
        let results = folder.path().join("RESULTS.md");
        let file = folder.path().join("lines");
        let charts = folder.path().join("book");
        fs::create_dir(&charts).unwrap();
        fs::write(&results, "a `<!-- bench steps -->` line\n<!-- bench steps -->\nold\n<!-- end of bench steps -->\nb\n")
            .unwrap();
        fs::write(
            &file,
            rows().iter().map(|row| serde_json::to_string(row).unwrap() + "\n").collect::<String>(),
        )
        .unwrap();
        let args = Args { files: vec![file], results: results.clone(), charts: charts.clone() };
        run(&args).unwrap();
        run(&args).unwrap();
        let text = fs::read_to_string(&results).unwrap();
        assert!(
            text.starts_with("a `<!-- bench steps -->` line\n<!-- bench steps -->\n\n| | Fulmen")
                && text.ends_with("-->\nb\n"),
            "{text}"
        );
        let path = charts.join("performance-steps.svg");
        assert_eq!(text.matches(&format!("({})", path.display())).count(), 1, "{text}");
        let chart = fs::read_to_string(path).unwrap();
        assert!(chart.contains("W1"), "{chart}");
        fs::write(&results, "nothing").unwrap();
        assert!(
            run(&args)
                .unwrap_err()
                .to_string()
                .contains("not a file with the lines `<!-- bench steps -->`")
        );
    }
}
