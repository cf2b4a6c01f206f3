//! `fulmen doctor`: finds problems that prevent training on the devices of this machine.

use clap::Args;
use fulmen_data::{Error, Result};
use fulmen_machine::doctor::{Machine, Severity};

/// Finds problems that prevent or slow down training on this machine's devices, and says what to do
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// A bucket whose region is compared with this machine's zone [default: that of
    /// FULMEN_CHECKPOINT_DIR]
    #[arg(long, value_name = "gs://NAME")]
    bucket: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: Arguments) -> Result<()> {
    let program = std::env::current_exe()
        .map_err(|e| Error::new(format!("cannot find this program's own file: {e}")))?;
    let list = ["plugin", "list", "--json"].map(Into::into);
    let mut machine = Machine::local(std::iter::once(program.into_os_string()).chain(list));
    if let Some(bucket) = arguments.bucket {
        if !bucket.starts_with("gs://") {
            return Err(Error::usage(format!("--bucket is {bucket}; expected gs://NAME")));
        }
        machine = machine.bucket(bucket);
    }
    let report = machine.examine();
    if arguments.json {
        outln!("{}", serde_json::to_string(&report).map_err(Error::new)?);
    } else {
        outln!("{report}");
        outln!("On a kind of device that you have not used before, run `fulmen selftest`.");
    }
    match report.count(Severity::Error) {
        0 => Ok(()),
        1 => Err(Error::new("one problem prevents training here")),
        count => Err(Error::new(format!("{count} problems prevent training here"))),
    }
}
