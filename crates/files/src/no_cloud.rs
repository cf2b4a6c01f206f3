//! Replaces the functions of `remote` in a build without object stores.
//!
//! Out of scope: the local disk (`local`).

use std::io::Read;
use std::ops::Range;
use std::path::Path;

use super::StoreOptions;
use super::object_path::ObjectPath;
use crate::{Error, Result};

fn unsupported<T>(object: &ObjectPath) -> Result<T> {
    Err(Error::usage(format!(
        "{object}: this program was built without object stores; build fulmen with its feature `cloud`"
    )))
}

pub(super) fn size(object: &ObjectPath, _: &StoreOptions) -> Result<u64> {
    unsupported(object)
}

pub(super) fn version(object: &ObjectPath, _: &StoreOptions) -> Result<(u64, String)> {
    unsupported(object)
}

/// Returns the bytes, or the size of the object if the range extends beyond it.
pub(super) fn read_range(
    object: &ObjectPath,
    _: &StoreOptions,
    _: Range<u64>,
) -> Result<Result<Vec<u8>, u64>> {
    unsupported(object)
}

pub(super) fn open(object: &ObjectPath, _: &StoreOptions) -> Result<Box<dyn Read + Send>> {
    unsupported(object)
}

pub(super) fn list(object: &ObjectPath, _: &StoreOptions) -> Result<Vec<String>> {
    unsupported(object)
}

pub(super) fn upload(
    object: &ObjectPath,
    _: &StoreOptions,
    _: &Path,
    _: &dyn Fn(u64),
) -> Result<()> {
    unsupported(object)
}
