//! The differences between runs: configuration, environment, and results.

use std::collections::BTreeMap;

use crate::Run;
use crate::chart::number;
use crate::html::{Html, element, table};
use crate::report::{by_interest, shortened};

/// The maximum number of metrics whose last values are compared.
const MAX_METRICS: usize = 20;
/// The maximum number of rows in the table of settings.
const MAX_ROWS: usize = 100;

/// Two tables with a column for each run: the settings that differ, and the last values.
pub(crate) fn differences(runs: &[Run]) -> Html {
    let settings: Vec<BTreeMap<String, String>> = runs.iter().map(settings).collect();
    let mut names: Vec<&String> = settings.iter().flat_map(BTreeMap::keys).collect();
    names.sort();
    names.dedup();
    // The start time always differs.
    let differs = |name: &&String| {
        *name != "started"
            && settings.windows(2).any(|pair| pair[0].get(*name) != pair[1].get(*name))
    };
    let rows: Vec<Vec<Html>> = names
        .into_iter()
        .filter(differs)
        .take(MAX_ROWS)
        .map(|name| {
            let value = |settings: &BTreeMap<String, String>| {
                Html::from(settings.get(name).map_or("–".into(), |text| shortened(text)))
            };
            [Html::from(&**name)].into_iter().chain(settings.iter().map(value)).collect()
        })
        .collect();
    let header =
        |first| [first].into_iter().chain(runs.iter().map(|run| &*run.name)).collect::<Vec<&str>>();
    let first = if rows.is_empty() {
        element("p", &[], "Configuration and environment are the same.")
    } else {
        table(&header("setting"), rows)
    };
    let mut metrics: Vec<&str> = Vec::new();
    for name in runs.iter().flat_map(by_interest) {
        if !metrics.contains(&name) {
            metrics.push(name);
        }
    }
    let values = metrics.into_iter().take(MAX_METRICS).map(|name| {
        let last = |run: &Run| run.curves().get(name)?.last();
        let value =
            |run: &Run| Html::from(last(run).map_or("–".into(), |(_, value)| number(value)));
        [Html::from(name)].into_iter().chain(runs.iter().map(value)).collect()
    });
    [first, table(&header("last value"), values)].into()
}

/// The configuration and the environment by name. A file that is not valid TOML has no settings.
fn settings(run: &Run) -> BTreeMap<String, String> {
    let mut all: BTreeMap<String, String> = run.environment.iter().cloned().collect();
    all.extend(run.summary.iter().flat_map(|summary| summary.setting.clone()));
    let config = run.config.as_deref().and_then(|text| text.parse::<toml_edit::DocumentMut>().ok());
    if let Some(config) = config {
        add(&mut all, "", config.as_table());
    }
    all
}

fn add(all: &mut BTreeMap<String, String>, prefix: &str, table: &dyn toml_edit::TableLike) {
    for (key, item) in table.iter() {
        match (item.as_table_like(), item.as_value()) {
            (Some(table), _) => add(all, &format!("{prefix}{key}."), table),
            // This removes the comment about the value's origin.
            (_, Some(value)) => {
                let value = value.clone().decorated("", "");
                drop(all.insert(format!("{prefix}{key}"), value.to_string()));
            }
            _ => {}
        }
    }
}
