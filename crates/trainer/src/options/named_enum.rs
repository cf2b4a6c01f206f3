//! Parses and formats the enums of options, whose values have names on the command line and in
//! files.

use crate::options::lightning_names::replacement_for_value;
use crate::{Error, Result};

/// The value with this name. `noun` is the name of the option in messages.
pub(crate) fn named_value<T: Copy>(noun: &str, names: &[(&str, T)], name: &str) -> Result<T> {
    let row = names.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
    row.map(|row| row.1).ok_or_else(|| {
        if let Some(replacement) = replacement_for_value(noun, name) {
            return Error::usage(format!("`{name}` is not a {noun}: {replacement}"));
        }
        let known: Vec<_> = names.iter().map(|row| row.0).collect();
        Error::usage(format!("`{name}` is not a {noun}; there are: {}", known.join(", ")))
    })
}

/// Parses and formats the values of an enum by the names in its `NAMES`. Each row has a name and a
/// value.
macro_rules! named_enum {
    ($ty:ident, $noun:literal) => {
        impl std::str::FromStr for $ty {
            type Err = crate::Error;
            fn from_str(name: &str) -> crate::Result<$ty> {
                crate::options::named_enum::named_value($noun, &NAMES, name)
            }
        }

        impl TryFrom<&str> for $ty {
            type Error = crate::Error;
            fn try_from(name: &str) -> crate::Result<$ty> {
                name.parse()
            }
        }

        impl std::fmt::Display for $ty {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(
                    NAMES.iter().find(|row| row.1 == *self).map_or(stringify!($ty), |row| row.0),
                )
            }
        }
    };
}
pub(crate) use named_enum;
