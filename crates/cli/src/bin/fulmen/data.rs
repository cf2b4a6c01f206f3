//! `fulmen data`: fetches and prepares datasets, and inspects shards.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use fulmen_cli::fetch::{DATASETS, PublishedDataset, fetch};
use fulmen_cli::prepare::{
    self, ExpectedContents, Manifest, PrepareOptions, TextOptions, shards_info,
};
use fulmen_cli::statistics::statistics;
use fulmen_data::{Error, Result};
use fulmen_durable::messages::quantity;
use fulmen_files::Location;
use fulmen_text::Tokenizer;

use crate::progress::Reporter;
use crate::size::parse_size;

/// Fetches datasets, prepares them for training, and inspects shards
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Downloads a published dataset, and verifies it
    Fetch(Fetch),
    /// Converts the official archives of a dataset, as downloaded, to shards
    #[command(subcommand)]
    Prepare(Dataset),
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
    /// The name of the dataset
    #[arg(value_parser = dataset, long_help = dataset_help())]
    dataset: &'static PublishedDataset,
    /// The folder for the files; an interrupted run can be continued
    #[arg(long, short, value_name = "FOLDER")]
    output: PathBuf,
    /// Another source of the files: https://, gs://, s3:// or a local folder
    #[arg(long, value_name = "PLACE")]
    from: Option<String>,
}

/// The names of the datasets, for the help.
fn dataset_help() -> String {
    let lines = DATASETS.iter().map(|dataset| format!("  {:<14}{}", dataset.name, dataset.about));
    format!("Its name:\n{}", lines.collect::<Vec<_>>().join("\n"))
}

fn dataset(name: &str) -> std::result::Result<&'static PublishedDataset, String> {
    DATASETS.iter().find(|dataset| dataset.name == name).ok_or_else(|| {
        let names: Vec<&str> = DATASETS.iter().map(|dataset| dataset.name).collect();
        format!("expected one of {}", names.join(", "))
    })
}

#[derive(Debug, Subcommand)]
pub(crate) enum Dataset {
    /// ImageNet (ILSVRC 2012): images and classes
    #[command(
        long_about = "ImageNet (ILSVRC 2012): ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar and \
                            ILSVRC2012_devkit_t12.tar.gz become tar shards train-000000.tar ... and val-000000.tar \
                            ..., with a .jpg and a .cls (the class) for each sample"
    )]
    Imagenet(Archives),
    /// COCO 2017: images with boxes, outlines and captions
    #[command(
        long_about = "COCO 2017: train2017.zip, val2017.zip and annotations_trainval2017.zip become tar shards \
                      train-000000.tar ... and val-000000.tar ..., with a .jpg and a .json (the annotations) for each \
                      sample"
    )]
    Coco(Archives),
    /// Text files: tokens with a tokenizer, or documents
    #[command(
        long_about = "Text files (.txt and .jsonl, optionally compressed with gzip or zstd, and .parquet) become \
                      token files train-000000.tokens ... with --tokenizer, otherwise tar shards with a .txt for each \
                      document. Documents for validation are chosen by a hash of their text"
    )]
    Text(Texts),
}

#[derive(Debug, Args)]
pub(crate) struct Archives {
    /// The folder with the archives
    archives: PathBuf,
    /// Expected counts and checksums instead of the official ones, as a JSON file: {"archives":
    /// [{"name": ..., "md5": ...}], "samples": {"train": ...}, "classes": ...}
    #[arg(long, value_name = "FILE")]
    expected: Option<PathBuf>,
    #[command(flatten)]
    output_args: OutputArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Texts {
    /// Files, patterns such as 'texts/*.jsonl', and folders, local or gs:// or s3://
    #[arg(required = true)]
    files: Vec<String>,
    /// A tokenizer.json of Hugging Face's tokenizers, a SentencePiece model, or a model's folder
    #[arg(long, value_name = "FILE_OR_FOLDER")]
    tokenizer: Option<String>,
    /// Add the special tokens of the tokenizer's file to each document
    #[arg(long, requires = "tokenizer")]
    special_tokens: bool,
    /// A token to append to each document, such as '<|endoftext|>'
    #[arg(long, value_name = "TOKEN")]
    separator: Option<String>,
    /// The field of JSON lines, or the column of Parquet files, with the text
    #[arg(long, default_value = "text", value_name = "NAME")]
    field: String,
    /// Treat each line of a text file as a document, instead of the whole file
    #[arg(long)]
    lines: bool,
    /// The fraction of documents for validation, such as 0.005
    #[arg(long, default_value_t = 0.0, value_name = "SHARE")]
    validation: f64,
    #[command(flatten)]
    output_args: OutputArgs,
}

#[derive(Debug, Args)]
struct OutputArgs {
    /// The folder for the shards; an interrupted run can be continued
    #[arg(long, short, value_name = "FOLDER")]
    output: PathBuf,
    /// The seed for the order of the samples
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The maximum number of samples per shard [default: 10000 images, or any number of documents]
    #[arg(long, value_name = "NUMBER")]
    max_samples: Option<usize>,
    /// The maximum size of a shard in bytes
    #[arg(long, default_value = "256MiB", value_parser = parse_size, value_name = "SIZE")]
    max_bytes: u64,
    /// How many shards to write at a time [default: one per core]
    #[arg(long, value_name = "NUMBER")]
    threads: Option<usize>,
    /// Do not verify the checksums of the archives and of existing shards
    #[arg(long)]
    no_verify: bool,
    /// Also upload each shard as soon as it is written: gs://bucket/folder, s3://bucket/folder or a
    /// local folder
    #[arg(long, value_name = "PLACE")]
    upload: Option<String>,
    /// Delete each local shard after its upload, so that the disk needs space for only a few
    #[arg(long, requires = "upload")]
    delete_uploaded: bool,
}

impl OutputArgs {
    fn options(self, max_samples: usize) -> PrepareOptions {
        let options = PrepareOptions::new(self.output)
            .seed(self.seed)
            .max_samples(self.max_samples.unwrap_or(max_samples))
            .max_bytes(self.max_bytes)
            .verify(!self.no_verify)
            .delete_uploaded(self.delete_uploaded);
        let options = match self.threads {
            Some(threads) => options.threads(threads),
            None => options,
        };
        match self.upload {
            Some(place) => options.upload(place),
            None => options,
        }
    }
}

pub(crate) fn run(command: Command) -> Result<()> {
    match command {
        Command::Fetch(Fetch { dataset, output, from }) => {
            fetch(dataset, &output, from.as_deref(), &Reporter::new())?;
            outln!("{} is in {}", dataset.name, output.display());
            Ok(())
        }
        Command::Prepare(dataset) => {
            let reporter = Reporter::new();
            let manifest = match dataset {
                Dataset::Imagenet(Archives { archives, expected, output_args }) => {
                    let expected = expected
                        .as_deref()
                        .map_or_else(|| Ok(ExpectedContents::imagenet()), ExpectedContents::read)?;
                    prepare::imagenet(archives, &expected, &output_args.options(10_000), &reporter)?
                }
                Dataset::Coco(Archives { archives, expected, output_args }) => {
                    let expected = expected
                        .as_deref()
                        .map_or_else(|| Ok(ExpectedContents::coco()), ExpectedContents::read)?;
                    prepare::coco(archives, &expected, &output_args.options(10_000), &reporter)?
                }
                Dataset::Text(texts) => {
                    let options = TextOptions::new()
                        .field(&texts.field)
                        .lines(texts.lines)
                        .validation(texts.validation);
                    let options = match texts.tokenizer {
                        Some(file) => options
                            .tokenizer(read_tokenizer(&file)?.special_tokens(texts.special_tokens)),
                        None => options,
                    };
                    let options = match texts.separator {
                        Some(token) => options.separator(&token),
                        None => options,
                    };
                    let files: Vec<Location> =
                        texts.files.into_iter().map(Location::from).collect();
                    // The size of a shard is not limited by the number of documents, because they
                    // are small.
                    prepare::text(
                        &files,
                        &options,
                        &texts.output_args.options(usize::MAX),
                        &reporter,
                    )?
                }
            };
            drop(reporter);
            print_manifest(&manifest);
            Ok(())
        }
        Command::Presize(arguments) => crate::presize::run(arguments),
        Command::Info(arguments) if arguments.statistics => show_statistics(&arguments),
        Command::Info(arguments) => info(&arguments.shards),
    }
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
    for warning in manifest.warnings.iter().take(20) {
        let prefix =
            if warning.sample.is_empty() { String::new() } else { format!("{}: ", warning.sample) };
        outln!("warning: {prefix}{}", warning.what);
    }
    if manifest.warnings.len() > 20 {
        let more = quantity(manifest.warnings.len() - 20, "more warning");
        outln!("manifest.json has {more}");
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
