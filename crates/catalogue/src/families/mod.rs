//! The operations: one row for each operation, one file for each family.

use std::io::Read as _;

use flate2::read::GzDecoder;

use crate::row::{many, pair, row};
use crate::{Case, Row, case};

/// Calls a reduction, or the variant that keeps the axes if the attributes of the case say so.
macro_rules! keepdim {
    ($attrs:expr, $x:expr, $method:ident, $kept:ident, $($arg:expr),*) => {
        if $attrs.keepdims() { $x.$kept($($arg),*) } else { $x.$method($($arg),*) }
    };
}

/// The operations whose cases are in one file of `reference`.
pub struct Family {
    /// The name of the file.
    pub name: &'static str,
    compressed: &'static [u8],
    /// The operations.
    pub rows: Vec<Row>,
}

impl Family {
    /// The cases of all its operations.
    pub fn cases(&self) -> Vec<Case> {
        let mut text = String::new();
        let read = GzDecoder::new(self.compressed).read_to_string(&mut text);
        read.unwrap_or_else(|error| panic!("reference/{}.json: {error}", self.name));
        case::read(&text)
    }
}

/// The family with this name.
pub fn family(name: &str) -> Option<Family> {
    families().into_iter().find(|family| family.name == name)
}

/// Declares and lists the families.
macro_rules! declare {
    ($($name:ident),* $(,)?) => {
        $(mod $name;)*

        /// All families.
        pub fn families() -> Vec<Family> {
            vec![$(Family {
                name: stringify!($name),
                compressed: include_bytes!(concat!(env!("OUT_DIR"), "/", stringify!($name), ".json.gz")),
                rows: $name::rows(),
            }),*]
        }
    };
}

with_families!(declare);
