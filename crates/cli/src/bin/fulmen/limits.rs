//! Limits on images, for the commands that decode them.
//!
//! Out of scope: what the commands do with the images.

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct Limits {
    /// The maximum number of pixels of an image; more are treated as a decompression bomb
    #[arg(long, value_name = "NUMBER")]
    pub(crate) max_pixels: Option<u64>,
    /// Accept JPEGs with invalid data; the affected pixels are wrong
    #[arg(long)]
    pub(crate) keep_damaged: bool,
}
