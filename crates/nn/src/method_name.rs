//! The names of methods that compute the same values in different ways.

use fulmen_error::Error;

/// The method with this name. `of` says what is computed, for the message.
pub(crate) fn parse<T: Copy>(of: &str, names: &[(&str, T)], name: &str) -> Result<T, Error> {
    let row = names.iter().find(|row| row.0 == name);
    row.map(|row| row.1).ok_or_else(|| {
        let all: Vec<&str> = names.iter().map(|row| row.0).collect();
        let all = all.join(", ");
        Error::usage(format!("`{name}` is not a method of {of}; there are: {all}"))
    })
}

/// The name of a method.
pub(crate) fn name_of<T: PartialEq>(names: &[(&'static str, T)], method: &T) -> &'static str {
    names.iter().find(|row| row.1 == *method).map_or("auto", |row| row.0)
}
