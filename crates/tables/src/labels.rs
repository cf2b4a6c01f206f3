//! The classes of a label column, and their indices.
//!
//! Out of scope: classes that a file lists (`features`).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::block_reader::BlockReader;
use super::column::{Column, Kind};
use super::scalar::{Mismatch, ScalarRef, shorten};
use fulmen_data::{Error, Result};

/// A column with more distinct texts does not contain classes.
const MAX_CLASSES: usize = 1 << 20;

/// How labels are converted to indices.
#[derive(Debug)]
pub(crate) enum Labels {
    /// Integers that are used unchanged, starting at 0.
    Integers,
    /// Names of classes, or integers below the number of classes. In CSV, a text may be such an
    /// integer (`in_text`), but only if no class has a number as its name. Otherwise an unknown
    /// class could be mistaken for another one.
    Named { names: Arc<[String]>, indices: HashMap<String, i32>, in_text: bool },
}

impl Labels {
    /// Whether a column can contain labels.
    pub(crate) fn fits(kind: &Kind) -> bool {
        matches!(kind, Kind::Untyped | Kind::Bool | Kind::Integer | Kind::Text)
    }

    /// The classes of a column: given by the user, listed in the file, or found in the values.
    pub(crate) fn find(
        table: &mut BlockReader,
        column: usize,
        names: Option<&[String]>,
        fill: Option<f64>,
    ) -> Result<Labels> {
        let info = &table.columns[column];
        if let Some(names) = names {
            return Labels::from_names(names.into(), info);
        }
        if let Some(classes) = &info.classes {
            return Labels::from_names(Arc::clone(classes), info);
        }
        if matches!(info.kind, Kind::Integer | Kind::Bool) {
            return Ok(Labels::Integers);
        }
        let name = info.name.clone();
        table.select(&[column])?;
        let mut texts = BTreeSet::new();
        for index in 0..table.len() {
            let row = table.borrow_row(index)?;
            let fail = |mismatch: Mismatch| {
                table.error(index, &format!("column `{name}` {}", mismatch.message()))
            };
            match row.cell(column) {
                ScalarRef::Text(text) if texts.contains(text) => {}
                ScalarRef::Text(text) => drop(texts.insert(text.to_owned())),
                ScalarRef::Missing if fill.is_some() => {}
                cell => return Err(fail(Mismatch::kind(&cell, "a class"))),
            }
            if texts.len() > MAX_CLASSES {
                return Err(Error::label(format!(
                    "{}: column `{name}` has more than {MAX_CLASSES} different values; it cannot be a column of \
                     labels",
                    table.name
                )));
            }
        }
        let info = &table.columns[column];
        if info.kind == Kind::Untyped && texts.iter().all(|text| is_integer(text)) {
            return Ok(Labels::Integers);
        }
        Labels::from_names(texts.into_iter().collect(), info)
    }

    fn from_names(names: Arc<[String]>, info: &Column) -> Result<Labels> {
        let column = &info.name;
        let mut indices = HashMap::with_capacity(names.len());
        for (index, name) in names.iter().enumerate() {
            let index = i32::try_from(index).map_err(|_| {
                Error::label(format!("column `{column}` has more classes than an i32 can count"))
            })?;
            if indices.insert(name.clone(), index).is_some() {
                return Err(Error::label(format!(
                    "the classes of column `{column}` have `{name}` twice"
                )));
            }
        }
        let numbers = names.iter().any(|name| name.trim().parse::<f64>().is_ok());
        Ok(Labels::Named { names, indices, in_text: info.kind == Kind::Untyped && !numbers })
    }

    /// The index of a label.
    pub(crate) fn index(&self, cell: &ScalarRef<'_>) -> Result<i32, Mismatch> {
        match (self, cell) {
            (_, ScalarRef::Missing) => Err(Mismatch::Missing),
            (Labels::Integers, cell) => match cell.integer("a label").ok().map(i32::try_from) {
                Some(Ok(label)) if label >= 0 => Ok(label),
                _ => Err(Mismatch::kind(
                    cell,
                    format!("a label from 0 to {} (`label_of` numbers other names)", i32::MAX),
                )),
            },
            (Labels::Named { indices, names, in_text }, ScalarRef::Text(text)) => {
                match (indices.get(*text), text.trim().parse::<i32>()) {
                    (Some(&index), _) => Ok(index),
                    (None, Ok(index)) if *in_text => class(index.into(), names),
                    _ => Err(Mismatch::Kind(format!("the class {}", shorten(text)), list(names))),
                }
            }
            (Labels::Named { names, .. }, cell) => class(cell.integer("a label")?, names),
        }
    }

    /// The names of the classes, if they have names.
    pub(crate) fn names(&self) -> Option<&[String]> {
        match self {
            Labels::Integers => None,
            Labels::Named { names, .. } => Some(names),
        }
    }
}

/// Whether a text is a label written as an integer. In a column of integers with missing values, 10
/// may have been written as `10.0`. An integer that is not a label does not turn the others into
/// texts.
fn is_integer(text: &str) -> bool {
    text.trim().parse::<f64>().is_ok_and(|value| value.fract() == 0.0)
}

/// Converts a label to an index into the classes.
fn class(label: i128, names: &[String]) -> Result<i32, Mismatch> {
    match usize::try_from(label) {
        Ok(index) if index < names.len() => Ok(index as i32),
        _ => Err(Mismatch::Kind(
            format!("the label {label}"),
            format!(
                "one from 0 to {}: there are {} classes",
                names.len().saturating_sub(1),
                names.len()
            ),
        )),
    }
}

/// The list of classes, for a message.
fn list(names: &[String]) -> String {
    const MAX_SHOWN: usize = 10;
    let shown: Vec<String> = names.iter().take(MAX_SHOWN).map(|name| shorten(name)).collect();
    let more = if names.len() > MAX_SHOWN { " …" } else { "" };
    format!("one of the {} classes {}{more}", names.len(), shown.join(", "))
}
