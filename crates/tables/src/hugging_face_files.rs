//! Finds the files of each split of a Hugging Face folder, by its card or by file names.
//!
//! Out of scope: reading the files (`hugging_face`).

use serde_json::Value;

use super::front_matter::{self, CardConfig};
use super::source_file::files_below;
use fulmen_data::internal::LeftOut;
use fulmen_data::{Error, Result};
use fulmen_files::Location;

/// Cards and lists of files are small.
pub(crate) const MAX_TEXT_BYTES: u64 = 64 << 20;

/// The extensions of the files that are read.
pub(crate) const EXTENSIONS: [&str; 3] = [".parquet", ".arrow", ".arrows"];

/// The words by which `datasets` recognizes splits in names of files and folders.
const KEYWORDS: [(&str, &[&str]); 3] = [
    ("train", &["train", "training"]),
    ("validation", &["validation", "valid", "val", "dev"]),
    ("test", &["test", "testing", "eval", "evaluation"]),
];

/// The files of each split, or their patterns. Files listed in a card need not exist until they are
/// read.
pub(crate) type Splits = Vec<(String, Vec<Location>)>;

/// A configuration: its name, whether it is the default, and its splits.
pub(crate) struct Config {
    pub(crate) name: String,
    pub(crate) default: bool,
    /// Whether the files are patterns from a card.
    pub(crate) patterns: bool,
    pub(crate) splits: Splits,
}

/// The configurations of a folder in the layout of the hub.
pub(crate) fn configs(folder: &Location) -> Result<Vec<Config>> {
    let card = folder.join("README.md");
    let configs = if card.exists()? {
        let text = String::from_utf8_lossy(&card.read_at_most(MAX_TEXT_BYTES)?).into_owned();
        front_matter::configs(&text).map_err(|error| {
            card.error(format!(
                "`configs` should be a list of maps with `config_name` and `data_files`: {error}"
            ))
        })?
    } else {
        None
    };
    let Some(configs) = configs else {
        let splits = splits_by_name(folder)?;
        return Ok(vec![Config {
            name: "default".to_owned(),
            default: true,
            patterns: false,
            splits,
        }]);
    };
    let count = configs.len();
    let mut resolved = Vec::new();
    for CardConfig { config_name: name, default, data_dir, data_files } in configs {
        // A card of another may name any file of this machine.
        let outside = |error: Error| card.error(format!("the configuration `{name}`: {error}"));
        let data_folder = match data_dir.as_deref() {
            None | Some("" | "." | "./") => folder.clone(),
            Some(inner) => folder.join_inside(inner).map_err(outside)?,
        };
        let splits = match &data_files {
            Some(files) => {
                let listed = listed_splits(files).ok_or_else(|| {
                    card.error(format!(
                        "the `data_files` of the configuration `{name}` should be patterns, or a list of maps with \
                         `split` and `path`"
                    ))
                })?;
                located(&data_folder, listed).map_err(outside)?
            }
            // The splits of a configuration that was not downloaded are unknown.
            None => match splits_by_name(&data_folder) {
                Err(error) if error.is_not_found() && count > 1 => Splits::new(),
                splits => splits?,
            },
        };
        let default = default || name == "default";
        resolved.push(Config { name, default, patterns: data_files.is_some(), splits });
    }
    Ok(resolved)
}

/// The patterns of each split.
type Patterns = Vec<(String, Vec<String>)>;

/// The splits listed in a card; `None` if the form of the list is unknown.
fn listed_splits(files: &Value) -> Option<Patterns> {
    let texts = |value: &Value| -> Option<Vec<String>> {
        match value {
            Value::String(text) => Some(vec![text.clone()]),
            Value::Array(texts) => {
                texts.iter().map(|text| text.as_str().map(str::to_owned)).collect()
            }
            _ => None,
        }
    };
    let mut patterns = Patterns::new();
    match files {
        Value::Object(splits) => {
            for (split, paths) in splits {
                patterns.push((split.clone(), texts(paths)?));
            }
        }
        Value::Array(entries) if entries.iter().all(Value::is_object) => {
            for entry in entries {
                patterns
                    .push((entry.get("split")?.as_str()?.to_owned(), texts(entry.get("path")?)?));
            }
        }
        files => patterns.push(("train".to_owned(), texts(files)?)),
    }
    Some(patterns)
}

/// The same splits, with their patterns in a folder.
fn located(folder: &Location, splits: Patterns) -> Result<Splits> {
    let files = |patterns: Vec<String>| {
        patterns.iter().map(|pattern| folder.join_inside(pattern)).collect::<Result<Vec<_>>>()
    };
    splits.into_iter().map(|(split, patterns)| Ok((split, files(patterns)?))).collect()
}

/// A rule that derives the split from the name of a file.
type SplitRule<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The splits by file name, with the rules of `datasets`. The first rule that matches any file
/// applies: `data/SPLIT-00000-of-00002`, words in the names of folders, words in file names. Files
/// that do not match it do not belong to a split. If no rule matches any file, all files are
/// `train`.
fn splits_by_name(folder: &Location) -> Result<Splits> {
    let named = files_below(folder, &EXTENSIONS)?;
    if named.is_empty() {
        return Err(Error::missing(format!(
            "{folder}: not a folder of Hugging Face's `datasets`: it has no `dataset_dict.json`, no `state.json`, and \
             no file whose name ends in {}",
            EXTENSIONS.map(|extension| format!("`{extension}`")).join(" or ")
        )));
    }
    let split_of_folder = |name: &str| keyword(name.rsplit_once('/')?.0);
    let split_of_file = |name: &str| keyword(name.rsplit_once('/').map_or(name, |(_, file)| file));
    let rules: [SplitRule<'_>; 3] = [&split_of_shard, &split_of_folder, &split_of_file];
    let matches = |rule: &&SplitRule<'_>| named.iter().any(|(_, name)| rule(name).is_some());
    let rule = rules.iter().find(matches);
    let mut splits: Splits = Vec::new();
    let mut left_out = LeftOut::default();
    for (file, name) in &named {
        let Some(split) = rule.map_or(Some("train".to_owned()), |rule| rule(name)) else {
            left_out.add("of no split");
            continue;
        };
        match splits.iter_mut().find(|(name, _)| *name == split) {
            Some((_, files)) => files.push(file.clone()),
            None => splits.push((split, vec![file.clone()])),
        }
    }
    left_out.note(folder, "their names give no split, but those of others do");
    // Train first, as in `datasets`.
    let order = |name: &str| {
        KEYWORDS.iter().position(|(split, _)| *split == name).unwrap_or(KEYWORDS.len())
    };
    splits.sort_by_key(|(name, _)| order(name));
    Ok(splits)
}

/// The split in `data/SPLIT-00000-of-00002.parquet`.
fn split_of_shard(name: &str) -> Option<String> {
    let (folder, file) = name.rsplit_once('/')?;
    if folder != "data" {
        return None;
    }
    let stem = file.rsplit_once('.')?.0;
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (split, number) = rest.rsplit_once('-')?;
    // In some files the hub adds a hash after the count.
    let count = count.split('-').next().unwrap_or_default();
    let digits = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    (digits(number) && digits(count) && !split.is_empty()).then(|| split.to_owned())
}

/// The split whose keyword occurs as a separate word in a name.
fn keyword(name: &str) -> Option<String> {
    let name = name.to_lowercase();
    let words: Vec<&str> = name.split(|letter: char| !letter.is_ascii_alphabetic()).collect();
    KEYWORDS
        .iter()
        .find(|(_, keywords)| words.iter().any(|word| keywords.contains(word)))
        .map(|(split, _)| (*split).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_are_known_by_words_that_stand_alone() {
        assert_eq!(keyword("en/train-part1.parquet").as_deref(), Some("train"));
        assert_eq!(keyword("Dev/0001.parquet").as_deref(), Some("validation"));
        assert_eq!(keyword("my_val.parquet").as_deref(), Some("validation"));
        assert_eq!(keyword("contest.parquet"), None);
        assert_eq!(keyword("test0.parquet").as_deref(), Some("test"));
        assert_eq!(
            split_of_shard("data/unsupervised-00000-of-00001.parquet").as_deref(),
            Some("unsupervised")
        );
        assert_eq!(
            split_of_shard("data/train_sft-00001-of-00002-0123abcd.parquet").as_deref(),
            Some("train_sft")
        );
        assert_eq!(split_of_shard("data/train.parquet"), None);
        assert_eq!(split_of_shard("other/train-00000-of-00001.parquet"), None);
    }
}
