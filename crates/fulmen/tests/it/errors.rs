//! How errors are printed: `fn main() -> Result<(), Box<dyn Error>>` prints their `Debug`, and a
//! reporter such as `anyhow` prints the error and its sources.

use std::error::Error;
use std::path::Path;

use fulmen::prelude::*;

/// Checks that an error's `Debug` is its message, and that no source repeats an earlier text.
#[track_caller]
fn check(error: impl Error) {
    assert_eq!(format!("{error:?}"), error.to_string());
    let mut printed = error.to_string();
    assert!(!printed.is_empty());
    let mut source = error.source();
    while let Some(error) = source {
        let text = error.to_string();
        assert!(!printed.contains(&text), "`{text}` appears twice:\n{printed}");
        printed = format!("{printed}\ncaused by: {text}");
        source = error.source();
    }
}

/// Like [`check`], for an error of the file system: its text appears once.
#[track_caller]
fn check_missing(error: impl Error) {
    let text = error.to_string();
    assert_eq!(text.matches("No such file").count(), 1, "{text}");
    assert!(error.source().is_none(), "{text}");
    check(error);
}

fn weights() -> fulmen::nn::Result<fulmen::nn::weights::StateDict> {
    fulmen::nn::weights::StateDict::read("/no/such/weights.safetensors")
}

#[test]
fn the_message_of_an_error_of_every_crate_is_printed_once() {
    check_missing(fulmen::low_level::pjrt::Plugin::load("/no/such/plugin.so").unwrap_err());
    check(fulmen::low_level::pjrt::KeyValueError::timed_out("host 3 did not come"));
    check(Tensor::ones(DType::F32, [2]).matmul(Tensor::ones(DType::F32, [3])).eval().unwrap_err());
    check(Linear::new(2, 2).to_dtype(DType::I32).unwrap_err());
    check_missing(weights().unwrap_err());
    check(fulmen::data::TensorDataset::builder().build().map(|_| ()).unwrap_err());
    check_missing(fulmen::data::Error::new(std::fs::read("/no/such/file").unwrap_err()));
    check_missing(fulmen::data::Error::io(
        Path::new("x"),
        "opening",
        std::fs::read("/no/such/file").unwrap_err(),
    ));
    check(Trainer::builder().max_epochs(0).options().unwrap_err());
    check_missing(weights().unwrap_err().context("the weights"));
}

#[test]
fn a_source_that_the_message_does_not_show_is_kept() {
    #[derive(Debug)]
    struct Outer(std::num::ParseIntError);
    impl std::fmt::Display for Outer {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("the label cannot be read")
        }
    }
    impl Error for Outer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }
    let error = fulmen::data::Error::new(Outer("x".parse::<u8>().unwrap_err()));
    assert_eq!(error.to_string(), "the label cannot be read");
    assert_eq!(error.source().unwrap().to_string(), "invalid digit found in string");
    check(error);
}

#[cfg(feature = "multi-host")]
#[test]
fn the_message_of_an_error_of_many_hosts_is_printed_once() {
    check(fulmen::coordination::Process::new(8, 8, "host-a:8482").unwrap_err());
}

#[cfg(feature = "images")]
#[test]
fn the_message_of_an_error_about_images_is_printed_once() {
    check_missing(
        fulmen::data::images::ImageFolder::open("/no/such/folder").map(|_| ()).unwrap_err(),
    );
    check(fulmen::data::images::Image::new(1, 1, 3, Vec::new()).map(|_| ()).unwrap_err());
}

#[cfg(feature = "tables")]
#[test]
fn the_message_of_an_error_about_tables_is_printed_once() {
    check(fulmen::data::tables::Csv::open("/no/such/table.csv").map(|_| ()).unwrap_err());
    check(fulmen::data::tables::ArrowFiles::open("/no/such/table.arrow").map(|_| ()).unwrap_err());
}

#[cfg(feature = "shards")]
#[test]
fn the_message_of_an_error_about_shards_is_printed_once() {
    check(fulmen::data::shards::TarSource::open("/no/such/shard.tar").map(|_| ()).unwrap_err());
    check(fulmen::data::shards::TfRecordSource::open("/no/such/records").map(|_| ()).unwrap_err());
}

#[cfg(feature = "text")]
#[test]
fn the_message_of_an_error_about_texts_is_printed_once() {
    check(fulmen::data::text::TokenFile::open("/no/such/tokens").map(|_| ()).unwrap_err());
    check(
        fulmen::data::text::Tokenizer::from_file("/no/such/tokenizer.json")
            .map(|_| ())
            .unwrap_err(),
    );
}

#[cfg(feature = "cache")]
#[test]
fn the_message_of_an_error_about_a_cache_is_printed_once() {
    check(fulmen::data::cache::CachedDataset::open("/no/such/cache").map(|_| ()).unwrap_err());
}

#[cfg(feature = "cloud")]
#[test]
fn the_message_of_an_error_about_a_store_is_printed_once() {
    check(fulmen::data::files::Location::from("s3://bucket").size().unwrap_err());
}
