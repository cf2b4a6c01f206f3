//! Taking one file out of a wheel, which is a zip file. Which wheel, and whether it is the right one, is decided elsewhere.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;

use crate::error::{Error, Kind, Result};

/// Writes the member to `target` and makes sure that it is on the disk.
pub(crate) fn unpack(wheel: &Path, member: &str, target: &Path) -> Result<()> {
    let cannot_read =
        |why: String| Error::new(Kind::Fetch, format!("cannot read {member} from {}: {why}", wheel.display()));
    let file = File::open(wheel).map_err(|error| cannot_read(error.to_string()))?;
    let mut archive = zip::ZipArchive::new(BufReader::new(file)).map_err(|error| cannot_read(error.to_string()))?;
    let mut source = archive.by_name(member).map_err(|error| cannot_read(error.to_string()))?;
    let write = |source: &mut dyn io::Read| -> io::Result<()> {
        let mut target = File::create_new(target)?;
        io::copy(source, &mut target)?;
        target.sync_all()
    };
    write(&mut source).map_err(|error| Error::io(format!("cannot unpack the plugin to {}", target.display()), error))
}
