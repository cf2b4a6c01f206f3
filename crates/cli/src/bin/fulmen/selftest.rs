//! `fulmen selftest`: tests a device with everything that training needs.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use fulmen_data::{Error, Result};
use fulmen_selftest::{Options, Report, Tested, compare, page};

/// The largest report that is read.
const MAX_REPORT: u64 = 256 << 20;

/// Tests a device with everything that training needs: operations, kernels, transfers, training, speed
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The kind of device [default: a TPU or GPU if the machine has one, else the CPU]
    #[arg(long, value_parser = ["auto", "cpu", "cuda", "tpu"], default_value = "auto", hide_default_value = true)]
    accelerator: String,
    /// The number of devices; a CPU is split into as many [default: all, and one on a CPU]
    #[arg(long, value_name = "COUNT")]
    devices: Option<usize>,
    /// Test what takes about a minute; the default
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// Test everything: each operation at each dtype, large arrays
    #[arg(long)]
    full: bool,
    /// Run only this part; can be repeated
    #[arg(long = "part", value_name = "NAME")]
    parts: Vec<String>,
    /// Test only operations whose name contains this
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// End work that reports nothing for this long [default: 120, and 300 with --full]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: Option<u64>,
    /// Write the report as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the report as a page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print the differences of two reports instead
    #[arg(long, num_args = 2, value_names = ["BEFORE", "AFTER"], conflicts_with_all = ["devices", "quick", "full", "parts", "only", "timeout", "json", "html"])]
    compare: Option<Vec<PathBuf>>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    if let Some(files) = &arguments.compare {
        let reports = files.iter().map(|file| read(file)).collect::<Result<Vec<_>>>()?;
        compare(&reports[0], &reports[1]).iter().for_each(|line| outln!("{line}"));
        return Ok(ExitCode::SUCCESS);
    }
    let options = Options {
        accelerator: arguments.accelerator.clone(),
        devices: arguments.devices,
        full: arguments.full,
        parts: arguments.parts.clone(),
        only: arguments.only.clone(),
        timeout: arguments.timeout,
    };
    let program = std::env::current_exe()
        .map_err(|e| Error::new(format!("cannot find this program's own file: {e}")))?;
    let program: [OsString; 2] = [program.into(), "selftest-part".into()];
    let Tested { report, is_first } = fulmen_selftest::run(&options, &program, |so_far| {
        if let Some(part) = so_far.parts.last() {
            outln!("{part}");
        }
        // A test that is ended leaves what it found. The last one reports what cannot be written.
        let _ = write_report(arguments, so_far);
    })?;
    if !is_first {
        // The first process says what came of it. A failure here would end it before that.
        return Ok(ExitCode::SUCCESS);
    }
    write_report(arguments, &report)?;
    outln!("{}", report.closing_line());
    Ok(ExitCode::from(u8::from(!report.passed)))
}

fn write_report(arguments: &Arguments, report: &Report) -> Result<()> {
    if let Some(file) = &arguments.json {
        write(file, &report.to_json()?)?;
    }
    if let Some(file) = &arguments.html {
        write(file, &page(report))?;
    }
    Ok(())
}

fn read(file: &Path) -> Result<Report> {
    let bytes = fulmen_durable::read_regular(file, MAX_REPORT)
        .map_err(|e| Error::file(file, e.to_string()))?;
    Report::from_json(&String::from_utf8_lossy(&bytes)).map_err(|e| e.context(file.display()))
}

fn write(file: &Path, text: &str) -> Result<()> {
    let length = Some(text.len() as u64);
    fulmen_durable::write(file, length, |file| file.write_all(text.as_bytes()))
        .map_err(|e| Error::file(file, e.to_string()))
}
