//! A column of a table: its name, the kind of its values, and conversion errors.
//!
//! Out of scope: the values (`scalar`), and the fields made from columns (`table_dataset`).

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use fulmen_data::internal::quantity;
use fulmen_tensor::DType;

use fulmen_data::{Error, Result};

/// The kind of the values in a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Text that may have any meaning, as in CSV.
    Untyped,
    Bool,
    Integer,
    Float,
    Text,
    Bytes,
    List(Box<Kind>),
    /// Only nulls.
    Nothing,
    Other,
}

impl Kind {
    /// Whether scalars can be converted to `dtype`.
    pub(crate) fn fits(&self, dtype: DType) -> bool {
        match self {
            Kind::Untyped | Kind::Nothing => !dtype.is_complex(),
            Kind::Bool | Kind::Integer => !dtype.is_complex(),
            Kind::Float => dtype.is_float(),
            Kind::Text | Kind::Bytes | Kind::List(_) | Kind::Other => false,
        }
    }

    /// Whether lists can be converted to arrays of `dtype`.
    pub(crate) fn fits_array(&self, dtype: DType) -> bool {
        match self {
            Kind::Bytes => dtype == DType::U8,
            Kind::List(element) => element.fits(dtype) || element.fits_array(dtype),
            _ => false,
        }
    }
}

/// A column of a table.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// Its type, as named by the file's format.
    pub(crate) type_name: String,
    /// The names of its classes, if the file has them.
    pub(crate) classes: Option<Arc<[String]>>,
}

impl Column {
    /// A column of text values, each of which may have another meaning.
    pub(crate) fn untyped(name: String) -> Column {
        Column { name, kind: Kind::Untyped, type_name: "text".to_owned(), classes: None }
    }
}

/// Selects a column by name or by position from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ColumnRef {
    /// The name, as in the header.
    Name(String),
    /// The position, from 0.
    Position(usize),
}

impl ColumnRef {
    /// The position of this column in a table of this name, a file or folder.
    pub(crate) fn find(
        &self,
        columns: &[Column],
        names: &Positions,
        table_name: &str,
    ) -> Result<usize> {
        let index = match self {
            ColumnRef::Position(position) => (*position < columns.len()).then_some(*position),
            ColumnRef::Name(name) => names.get(name),
        };
        let names = || columns.iter().map(|column| column.name.as_str());
        index.ok_or_else(|| {
            Error::field(format!("{table_name} has no column {self}; {}", known_columns(names())))
        })
    }
}

/// The positions of columns by name, because a linear search for each name would take quadratic
/// time.
#[derive(Debug)]
pub(crate) struct Positions(HashMap<String, usize>);

impl Positions {
    pub(crate) fn new<'a>(columns: impl IntoIterator<Item = &'a Column>) -> Positions {
        let mut positions = HashMap::new();
        for (position, column) in columns.into_iter().enumerate() {
            // If several columns have the same name, the first one counts.
            positions.entry(column.name.clone()).or_insert(position);
        }
        Positions(positions)
    }

    pub(crate) fn get(&self, name: &str) -> Option<usize> {
        self.0.get(name).copied()
    }
}

/// The list of columns, for a message.
pub(crate) fn known_columns<'a>(columns: impl ExactSizeIterator<Item = &'a str>) -> String {
    const MAX_SHOWN: usize = 30;
    let count = columns.len();
    let names: Vec<String> = columns.take(MAX_SHOWN).map(|name| format!("`{name}`")).collect();
    let hidden = count.saturating_sub(MAX_SHOWN);
    let more = if hidden > 0 { format!(" and {hidden} more") } else { String::new() };
    format!("it has {}: {}{more}", quantity(count, "column"), names.join(", "))
}

impl fmt::Display for ColumnRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ColumnRef::Name(name) => write!(f, "`{name}`"),
            ColumnRef::Position(position) => write!(f, "{position}"),
        }
    }
}

impl From<&str> for ColumnRef {
    fn from(name: &str) -> ColumnRef {
        ColumnRef::Name(name.to_owned())
    }
}

impl From<String> for ColumnRef {
    fn from(name: String) -> ColumnRef {
        ColumnRef::Name(name)
    }
}

impl From<&String> for ColumnRef {
    fn from(name: &String) -> ColumnRef {
        ColumnRef::Name(name.clone())
    }
}

impl From<usize> for ColumnRef {
    fn from(position: usize) -> ColumnRef {
        ColumnRef::Position(position)
    }
}
