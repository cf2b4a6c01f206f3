//! Which images are taken, as the commands that decode them have it.
//!
//! Not here: what is done with the images.

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Limits {
    /// The most pixels of an image; one with more is taken for a decompression bomb
    #[arg(long, value_name = "NUMBER")]
    pub(crate) max_pixels: Option<u64>,
    /// Accept JPEGs in which some data make no sense, with wrong pixels there
    #[arg(long)]
    pub(crate) keep_damaged: bool,
}
