//! `fulmen report`: writes a page about one run, or compares several.

use std::io::Write as _;
use std::path::PathBuf;

use clap::Args;
use fulmen_data::{Error, Result};
use fulmen_report::{Run, report};

/// Writes a page about a run, or compares several runs and their differences
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The folders of the runs, such as runs/version_3 runs/version_4
    #[arg(required = true, value_name = "FOLDER")]
    runs: Vec<PathBuf>,
    /// The HTML file
    #[arg(long, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let runs = arguments
        .runs
        .iter()
        .map(|folder| Run::open(folder).map_err(Error::new))
        .collect::<Result<Vec<_>>>()?;
    let page = report(&runs);
    let output = &arguments.output;
    let written = fulmen_durable::write(output, Some(page.len() as u64), |file| {
        file.write_all(page.as_bytes())
    });
    written.map_err(|e| Error::file(output, e.to_string()))?;
    outln!("{}", output.display());
    Ok(())
}
