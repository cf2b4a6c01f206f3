//! The price of a chip hour: a dated table, built in or the user's own.

use std::path::Path;

use toml_edit::{DocumentMut, TableLike};

use crate::generations::GENERATIONS;
use crate::{Error, Generation, Result, Slice};

const BUILT_IN: &str = include_str!("prices.toml");

/// A table of prices.
#[derive(Clone, Debug, PartialEq)]
pub struct Prices {
    /// The date of the prices.
    pub date: String,
    /// The source of the prices.
    pub source: String,
    rows: Vec<Price>,
}

/// The price of one generation in one region.
#[derive(Clone, Debug, PartialEq)]
pub struct Price {
    /// The generation.
    pub generation: &'static str,
    /// The region.
    pub region: String,
    /// US dollars per chip hour.
    pub usd_per_chip_hour: f64,
}

impl Prices {
    /// The table that comes with Fulmen: on-demand list prices. Prices change; [`Prices::date`]
    /// says how old these are.
    ///
    /// # Errors
    /// The built-in table is invalid, which a user cannot cause.
    pub fn built_in() -> Result<Prices> {
        Prices::parse(BUILT_IN, "the price table of Fulmen")
    }

    /// Reads a user's own table, a TOML file in the form that the error messages show.
    ///
    /// # Errors
    /// The file cannot be read or is not such a table.
    pub fn read(path: &Path) -> Result<Prices> {
        let text = fulmen_durable::read_text(path).map_err(|e| {
            Error::usage(format!("cannot read the price table {}: {e}", path.display()))
        })?;
        Prices::parse(&text, &format!("the price table {}", path.display()))
    }

    fn parse(text: &str, origin: &str) -> Result<Prices> {
        let wrong = |reason: String| {
            let format = "[[price]] tables with generation = \"v5e\", region = \"us-central1\" and usd_per_chip_hour = 1.20, \
                        and before them date and source";
            Error::usage(format!("{origin}: {reason}. It must be TOML: {format}"))
        };
        let document: DocumentMut =
            text.parse().map_err(|e| wrong(format!("{e}").trim_end().to_owned()))?;
        let text_of = |table: &dyn TableLike, key: &str| {
            table.get(key).and_then(|v| v.as_str()).map(str::to_owned)
        };
        let mut rows = Vec::new();
        let tables = document.get("price").and_then(|item| item.as_array_of_tables());
        for table in tables.ok_or_else(|| wrong("there is no [[price]]".into()))? {
            let name = text_of(table, "generation")
                .ok_or_else(|| wrong("a price has no generation".into()))?;
            let generation = Generation::find(&name).ok_or_else(|| {
                let names: Vec<_> = GENERATIONS.iter().map(|g| g.name).collect();
                wrong(format!("there is no generation `{name}`; there are {}", names.join(", ")))
            })?;
            let number = table.get("usd_per_chip_hour");
            let price =
                number.and_then(|v| v.as_float().or_else(|| v.as_integer().map(|n| n as f64)));
            let usd_per_chip_hour =
                price.filter(|usd| usd.is_finite() && *usd >= 0.0).ok_or_else(|| {
                    wrong(format!(
                        "the price of {name} must have a usd_per_chip_hour that is at least 0"
                    ))
                })?;
            let region = text_of(table, "region").unwrap_or_default();
            rows.push(Price { generation: generation.name, region, usd_per_chip_hour });
        }
        let head =
            |key: &str| text_of(document.as_table(), key).unwrap_or_else(|| "unknown".into());
        Ok(Prices { date: head("date"), source: head("source"), rows })
    }

    /// The lowest price for the generation of a slice.
    pub fn for_slice(&self, slice: &Slice) -> Option<&Price> {
        self.for_generation(slice.generation())
    }

    /// The lowest price for a generation.
    pub fn for_generation(&self, generation: &Generation) -> Option<&Price> {
        let rows = self.rows.iter().filter(|price| price.generation == generation.name);
        rows.min_by(|a, b| a.usd_per_chip_hour.total_cmp(&b.usd_per_chip_hour))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_table_can_be_read() {
        let prices = Prices::built_in().unwrap();
        assert!(prices.date.starts_with("20") && prices.source.contains("pricing"));
        let price = |slice: &str| {
            prices.for_slice(&slice.parse().unwrap()).map(|price| price.usd_per_chip_hour)
        };
        assert_eq!(
            (price("v5e:2x4"), price("v3-8"), price("tpu7x:2x2x1")),
            (Some(1.20), Some(2.00), None)
        );
    }

    #[test]
    fn a_users_table_is_read_and_an_invalid_one_is_explained() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let read = |text: &str| {
            std::fs::write(file.path(), text).unwrap();
            Prices::read(file.path())
        };
        let table = "[[price]]\ngeneration = \"ironwood\"\nusd_per_chip_hour = 9\n\
                   [[price]]\ngeneration = \"tpu7x\"\nregion = \"x\"\nusd_per_chip_hour = 8.5";
        let prices = read(table).unwrap();
        let price = prices.for_slice(&"tpu7x-8".parse().unwrap()).unwrap();
        assert_eq!((price.region.as_str(), price.usd_per_chip_hour), ("x", 8.5));
        assert_eq!(prices.date, "unknown");
        let check = |text: &str, expected: &str| {
            let error = read(text).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("[[price]] tables with"), "{error}");
        };
        check("= 1", "TOML parse error");
        check("date = \"2026\"", "there is no [[price]]");
        check("[[price]]\nusd_per_chip_hour = 1", "a price has no generation");
        check(
            "[[price]]\ngeneration = \"v9\"\nusd_per_chip_hour = 1",
            "there is no generation `v9`; there are v2",
        );
        check(
            "[[price]]\ngeneration = \"v5e\"\nusd_per_chip_hour = \"1\"",
            "must have a usd_per_chip_hour that is at least 0",
        );
        check(
            "[[price]]\ngeneration = \"v5e\"\nusd_per_chip_hour = -1",
            "must have a usd_per_chip_hour that is at least 0",
        );
        assert!(
            Prices::read(Path::new("no/such/table.toml"))
                .unwrap_err()
                .to_string()
                .contains("cannot read")
        );
    }
}
