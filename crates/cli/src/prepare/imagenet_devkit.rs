//! ImageNet's development kit: the classes, and the class of each validation image.
//!
//! Out of scope: the images (`imagenet`).

use std::collections::{BTreeMap, HashMap};
use std::io::{BufReader, Read};
use std::path::Path;

use flate2::bufread::GzDecoder;

use super::mat5::{self, Value};
use fulmen_data::{Error, Result};

/// The size limit of the kit's files, which have 600 kB.
const MAX_BYTES: u64 = 64 << 20;

const META: &str = "data/meta.mat";
const TRUTH: &str = "data/ILSVRC2012_validation_ground_truth.txt";

/// The parts of the development kit that the shards need.
#[derive(Debug)]
pub(crate) struct ImagenetDevkit {
    /// The WordNet id of each class (`n01440764`), and its name.
    pub(crate) names: BTreeMap<String, String>,
    /// For each validation image, in the order of its numbers from 1, the WordNet id of its class.
    pub(crate) validation: Vec<String>,
}

impl ImagenetDevkit {
    pub(crate) fn read(path: &Path) -> Result<ImagenetDevkit> {
        let [meta, truth] = files(path, [META, TRUTH])?;
        let wrong =
            |entry: &str, message: &str| Error::file(path, format!("entry {entry}: {message}"));
        let variables = mat5::variables(&meta).map_err(|message| wrong(META, &message))?;
        let synsets = variables.into_iter().find(|(name, _)| name == "synsets");
        let Some((_, Value::Structures(synsets))) = synsets else {
            return Err(wrong(META, "there is no array of structures `synsets`"));
        };
        let mut names = BTreeMap::new();
        let mut ids = HashMap::new();
        for (index, synset) in synsets.iter().enumerate() {
            let field = |name: &str| Value::field(synset, name);
            let number = |name: &str| {
                let number = field(name)
                    .and_then(Value::number)
                    .filter(|number| (0.0..1e9).contains(number));
                number.ok_or_else(|| wrong(META, &format!("synset {index} has no number {name}")))
            };
            let text = |name: &str| {
                let text = field(name).and_then(Value::text);
                text.ok_or_else(|| wrong(META, &format!("synset {index} has no text {name}")))
            };
            // A synset with children is a superclass without images.
            if number("num_children")? == 0.0 {
                let wnid = text("WNID")?.to_owned();
                ids.insert(number("ILSVRC2012_ID")? as u64, wnid.clone());
                names.insert(wnid, text("words")?.to_owned());
            }
        }
        let truth = String::from_utf8(truth).map_err(|_| wrong(TRUTH, "it is not a text"))?;
        let class = |(line, text): (usize, &str)| {
            let id = text.trim().parse::<u64>().ok();
            id.and_then(|id| ids.get(&id)).cloned().ok_or_else(|| {
                wrong(
                    TRUTH,
                    &format!("line {}: {text:?} is not the number of a class of {META}", line + 1),
                )
            })
        };
        let validation = truth.lines().enumerate().map(class).collect::<Result<_>>()?;
        Ok(ImagenetDevkit { names, validation })
    }
}

/// Reads the files of a `.tar.gz` whose paths end with these names.
fn files<const N: usize>(path: &Path, names: [&str; N]) -> Result<[Vec<u8>; N]> {
    let io = |doing: &str, source| Error::io(path, doing, source);
    let file =
        fulmen_durable::open_regular(path).map_err(|source| io("opening the archive", source))?;
    let mut tar = tar::Archive::new(GzDecoder::new(BufReader::new(file)));
    let mut contents: [Option<Vec<u8>>; N] = [const { None }; N];
    let mut place = String::new();
    let reading = |place: &str| format!("reading the archive{place} (is it whole?)");
    for entry in tar.entries().map_err(|source| io(&reading(""), source))? {
        let entry = entry.map_err(|source| io(&reading(&place), source))?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        place = format!(" at or after entry {name}");
        let matches = |ending: &&str| {
            name.strip_suffix(*ending)
                .is_some_and(|before| before.is_empty() || before.ends_with('/'))
        };
        if let Some(position) = names.iter().position(matches) {
            let size = entry.size();
            if size > MAX_BYTES {
                return Err(Error::file(
                    path,
                    format!("entry {name} has {size} bytes, expected at most {MAX_BYTES}"),
                ));
            }
            let mut bytes = Vec::new();
            entry
                .take(MAX_BYTES)
                .read_to_end(&mut bytes)
                .map_err(|source| io(&reading(&place), source))?;
            if bytes.len() as u64 != size {
                return Err(Error::file(
                    path,
                    format!("entry {name} is truncated: download the archive again"),
                ));
            }
            contents[position] = Some(bytes);
        }
    }
    let missing: Vec<&str> = names
        .iter()
        .zip(&contents)
        .filter(|(_, content)| content.is_none())
        .map(|(&name, _)| name)
        .collect();
    if !missing.is_empty() {
        return Err(Error::file(
            path,
            format!("there is no {} in it; is it truncated?", missing.join(" and no ")),
        ));
    }
    Ok(contents.map(Option::unwrap_or_default))
}
