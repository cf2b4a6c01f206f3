//! Taking one file out of a wheel, which is a zip file. Which wheel, and whether it is the right one, is decided elsewhere.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;

use crate::error::{Error, Kind, Result};

/// Writes the member to `target`, whole or not at all.
pub(crate) fn unpack(wheel: &Path, member: &str, target: &Path) -> Result<()> {
    let cannot_read =
        |why: String| Error::new(Kind::Fetch, format!("cannot read {member} from {}: {why}", wheel.display()));
    let file = File::open(wheel).map_err(|error| cannot_read(error.to_string()))?;
    let mut archive = zip::ZipArchive::new(BufReader::new(file)).map_err(|error| cannot_read(error.to_string()))?;
    let mut source = archive.by_name(member).map_err(|error| cannot_read(error.to_string()))?;
    let size = source.size();
    fulmen_durable::write(target, Some(size), |file| io::copy(&mut source, file).map(|_| ()))
        .map_err(|error| Error::io(format!("cannot put the plugin in its place at {}", target.display()), error))
}
