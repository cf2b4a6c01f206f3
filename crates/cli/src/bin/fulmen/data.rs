//! `fulmen data`: fetches datasets, packs them into shards, and inspects shards.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use fulmen_cli::fetch::{DATASETS, PublishedDataset, fetch};
use fulmen_cli::hub::{self, Fetched, HubPath};
use fulmen_cli::pack::{Manifest, Pack, shards_info};
use fulmen_cli::statistics::statistics;
use fulmen_data::{Error, Result};
use fulmen_durable::messages::{quantity, size};
use fulmen_files::Location;
use fulmen_text::Tokenizer;

use crate::progress::Reporter;
use crate::size::parse_size;

/// Fetches datasets, packs them for training, and inspects shards
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Downloads a published dataset, or files of a Hugging Face hub, and verifies them
    Fetch(Fetch),
    /// Packs archives, folders and texts into shards, in a folder or in a store
    #[command(
        long_about = "Packs images into tar shards train-000000.tar ..., with a .jpg, .png or .webp and a .cls (the \
                      number of the class) for each sample, or texts into token files train-000000.tokens ... with \
                      --tokenizer, otherwise into tar shards with a .txt for each document. An interrupted run can be \
                      continued with the same command"
    )]
    Pack(PackArguments),
    /// Makes the images of a folder smaller, and writes them into a few tar shards
    Presize(crate::presize::Arguments),
    /// Shows the content of tar shards: samples, files by extension, classes
    Info(Info),
}

#[derive(Debug, Args)]
pub(crate) struct Info {
    /// Tar files, or folders of them; with --statistics also CSV, JSON lines, Parquet, Arrow and
    /// token files, and folders of images
    #[arg(required = true)]
    shards: Vec<PathBuf>,
    /// Read everything, and show the statistics of each field: missing values, minimum, maximum,
    /// mean and standard deviation of numbers; sizes and channels of images, and the mean and
    /// standard deviation of their pixels; lengths of texts and lists; counts of classes
    #[arg(long)]
    statistics: bool,
    /// Print the statistics as JSON
    #[arg(long, requires = "statistics")]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Fetch {
    /// The name of the dataset; or hf:OWNER/NAME for a model of a Hugging Face hub, or
    /// hf:datasets/OWNER/NAME for a dataset, then, if needed, @REVISION and /PATH
    #[arg(value_parser = source, long_help = source_help())]
    source: Source,
    /// The folder for the files; an interrupted run can be continued
    #[arg(long, short = 'o', visible_alias = "output", value_name = "FOLDER")]
    to: PathBuf,
    /// Another source of a dataset's files: https://, gs://, s3:// or a local folder
    #[arg(long, value_name = "PLACE")]
    from: Option<String>,
}

/// What to fetch.
#[derive(Debug, Clone)]
enum Source {
    Published(&'static PublishedDataset),
    Hub(HubPath),
}

/// The names of the datasets, and the form of others, for the help.
fn source_help() -> String {
    let lines = DATASETS.iter().map(|dataset| format!("  {:<14}{}", dataset.name, dataset.about));
    format!(
        "The name of a dataset:\n{}\n\
         Or hf:OWNER/NAME for a model of a Hugging Face hub, or hf:datasets/OWNER/NAME for a dataset. After it may \
         follow @REVISION (a branch, a tag or a commit) and /PATH (a file, a folder or a pattern such as '**/*.json'). \
         The token is in HF_TOKEN or in the file of `hf auth login`, and HF_ENDPOINT is the address of another hub",
        lines.collect::<Vec<_>>().join("\n")
    )
}

fn source(text: &str) -> std::result::Result<Source, String> {
    if HubPath::is_meant(text) {
        return text.parse().map(Source::Hub).map_err(|error: Error| error.to_string());
    }
    let dataset = DATASETS.iter().find(|dataset| dataset.name == text);
    dataset.map(Source::Published).ok_or_else(|| {
        let names: Vec<&str> = DATASETS.iter().map(|dataset| dataset.name).collect();
        format!("expected one of {}, or hf:OWNER/NAME", names.join(", "))
    })
}

#[derive(Debug, Args)]
pub(crate) struct PackArguments {
    /// Images: .tar files (also of .tar files), .zip files and folders of images. Texts: .txt,
    /// .jsonl and .parquet files, and folders of them, local or gs:// or s3://. SPLIT=SOURCE names
    /// the split that it belongs to [default: train]
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<String>,
    /// The folder for the shards: local, gs://bucket/folder or s3://bucket/folder
    #[arg(long, value_name = "URL")]
    to: String,
    /// Labels of images, as CSV or JSON lines with a file_name, if they have classes a label, and
    /// what else belongs into the .json of a sample; SPLIT=FILE for another split than train
    #[arg(long, value_name = "FILE")]
    labels: Vec<String>,
    /// Folders and inner tar files are not classes: images without labels have no class
    #[arg(long)]
    flat: bool,
    /// A tokenizer.json of Hugging Face's tokenizers, a SentencePiece model, or a model's folder
    #[arg(long, value_name = "FILE_OR_FOLDER")]
    tokenizer: Option<String>,
    /// Add the special tokens of the tokenizer's file to each document
    #[arg(long, requires = "tokenizer")]
    special_tokens: bool,
    /// A token to append to each document, such as '<|endoftext|>'
    #[arg(long, value_name = "TOKEN")]
    separator: Option<String>,
    /// The field of JSON lines, or the column of Parquet files, with the text [default: text]
    #[arg(long, value_name = "NAME")]
    field: Option<String>,
    /// Treat each line of a text file as a document, instead of the whole file
    #[arg(long)]
    lines: bool,
    /// The fraction of documents for the split validation, such as 0.005
    #[arg(long, value_name = "SHARE")]
    validation: Option<f64>,
    /// The seed for the order of the images, and for the choice of documents for validation
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The maximum number of samples per shard [default: 10000 images, or any number of documents]
    #[arg(long, value_name = "NUMBER")]
    max_samples: Option<usize>,
    /// The maximum size of a shard in bytes
    #[arg(long, default_value = "256MiB", value_parser = parse_size, value_name = "SIZE")]
    max_bytes: u64,
    /// How many shards of images to write, or documents to tokenize, at a time [default: one per
    /// core]
    #[arg(long, value_name = "NUMBER")]
    threads: Option<usize>,
    /// Do not verify the checksums of existing local shards
    #[arg(long)]
    no_verify: bool,
}

impl PackArguments {
    fn pack(self) -> Result<Pack> {
        let mut pack = Pack::new(self.to)
            .flat(self.flat)
            .lines(self.lines)
            .seed(self.seed)
            .max_bytes(self.max_bytes)
            .verify(!self.no_verify);
        for source in &self.sources {
            let (split, source) = split_of(source);
            pack = pack.source(split, source);
        }
        for labels in &self.labels {
            let (split, file) = split_of(labels);
            pack = pack.labels(split, file);
        }
        if let Some(place) = self.tokenizer {
            pack = pack.tokenizer(read_tokenizer(&place)?.special_tokens(self.special_tokens));
        }
        if let Some(token) = self.separator {
            pack = pack.separator(&token);
        }
        if let Some(name) = self.field {
            pack = pack.field(&name);
        }
        if let Some(share) = self.validation {
            pack = pack.validation(share);
        }
        if let Some(samples) = self.max_samples {
            pack = pack.max_samples(samples);
        }
        Ok(match self.threads {
            Some(threads) => pack.threads(threads),
            None => pack,
        })
    }
}

/// The split of an argument `SPLIT=FILE`, and its file.
fn split_of(argument: &str) -> (&str, &str) {
    let is_name =
        |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    argument.split_once('=').filter(|(name, _)| is_name(name)).unwrap_or(("train", argument))
}

pub(crate) fn run(command: Command) -> Result<()> {
    match command {
        Command::Fetch(arguments) => fetch_source(&arguments),
        Command::Pack(arguments) => {
            let pack = arguments.pack()?;
            let reporter = Reporter::new();
            let manifest = pack.run(&reporter)?;
            drop(reporter);
            print_manifest(&manifest);
            Ok(())
        }
        Command::Presize(arguments) => crate::presize::run(arguments),
        Command::Info(arguments) if arguments.statistics => show_statistics(&arguments),
        Command::Info(arguments) => info(&arguments.shards),
    }
}

fn fetch_source(Fetch { source, to, from }: &Fetch) -> Result<()> {
    let reporter = Reporter::new();
    match source {
        Source::Published(dataset) => {
            fetch(dataset, to, from.as_deref(), &reporter)?;
            drop(reporter);
            outln!("{} is in {}", dataset.name, to.display());
        }
        Source::Hub(_) if from.is_some() => {
            return Err(Error::usage(
                "`--from` is for the datasets with a name; HF_ENDPOINT is the address of another hub",
            ));
        }
        Source::Hub(path) => {
            let Fetched { commit, files, bytes, downloaded } = hub::fetch(path, to, &reporter)?;
            drop(reporter);
            let files = quantity(files, "file");
            let sizes = format!("{} ({} downloaded)", size(bytes), size(downloaded));
            outln!("{path} is in {}: {files}, {sizes}, commit {commit}", to.display());
        }
    }
    Ok(())
}

/// Reads a tokenizer's file, or the tokenizer of a folder.
fn read_tokenizer(place: &str) -> Result<Tokenizer> {
    let location = Location::from(place);
    let is_folder = match location.local() {
        Some(path) => path.is_dir(),
        None => !location.exists()?,
    };
    if is_folder { Tokenizer::load(location) } else { Tokenizer::from_file(location) }
}

fn print_manifest(manifest: &Manifest) {
    for split in &manifest.splits {
        let tokens =
            split.tokens.map_or(String::new(), |tokens| format!(", {}", quantity(tokens, "token")));
        outln!(
            "{}: {}{tokens} in {}, {}",
            split.name,
            quantity(split.samples, "sample"),
            quantity(split.shards.len(), "shard"),
            quantity(split.bytes, "byte")
        );
    }
    if !manifest.classes.is_empty() {
        outln!("{}", quantity(manifest.classes.len(), "class"));
    }
    let shards = manifest.splits.iter().flat_map(|split| &split.shards);
    let warnings = manifest.warnings.iter().chain(shards.flat_map(|shard| &shard.warnings));
    for warning in warnings.clone().take(20) {
        let prefix =
            if warning.sample.is_empty() { String::new() } else { format!("{}: ", warning.sample) };
        outln!("warning: {prefix}{}", warning.what);
    }
    let count = warnings.count();
    if count > 20 {
        outln!("manifest.json has {}", quantity(count - 20, "more warning"));
    }
}

fn show_statistics(arguments: &Info) -> Result<()> {
    let found = statistics(&arguments.shards)?;
    if arguments.json {
        outln!("{}", serde_json::to_string_pretty(&found).map_err(Error::new)?);
    } else {
        outln!("{found}");
    }
    Ok(())
}

fn info(paths: &[PathBuf]) -> Result<()> {
    let info = shards_info(paths)?;
    for shard in &info.shards {
        outln!(
            "{}: {}, {}",
            shard.path.display(),
            quantity(shard.samples, "sample"),
            quantity(shard.bytes, "byte")
        );
    }
    outln!(
        "{} in {}, {}",
        quantity(info.samples(), "sample"),
        quantity(info.shards.len(), "shard"),
        quantity(info.bytes(), "byte")
    );
    for (extension, (files, bytes)) in &info.extensions {
        outln!("  .{extension}: {}, {}", quantity(files, "file"), quantity(bytes, "byte"));
    }
    if let (Some(fewest), Some(most)) = (info.classes.values().min(), info.classes.values().max()) {
        let classes = quantity(info.classes.len(), "class");
        outln!("{classes}, with {fewest} to {} each", quantity(most, "sample"));
    }
    Ok(())
}
