//! The color outside an image.
//!
//! Out of scope: padding that repeats the image (`pad`).

use std::fmt;

use crate::Image;
use fulmen_data::internal::quantity;
use fulmen_data::{Error, Result};

/// A color: one value for all channels, or one per channel. Black by default.
///
/// ```
/// use fulmen_images::functional::Fill;
///
/// let gray = Fill::from(128);
/// let orange = Fill::from([255, 165, 0]);
/// assert_eq!((gray.to_string(), orange.to_string()), ("128".to_owned(), "255/165/0".to_owned()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fill(Vec<u8>);

impl Fill {
    /// The value of each channel of an image; the last one is alpha.
    ///
    /// # Errors
    /// The number of values is not the number of channels.
    pub(crate) fn pixel(&self, image: &Image) -> Result<[u8; 4]> {
        let channels = image.channels();
        match self.0.as_slice() {
            &[value] => Ok([value; 4]),
            values if values.len() == channels && channels <= 4 => {
                let mut pixel = [0; 4];
                pixel[..channels].copy_from_slice(values);
                Ok(pixel)
            }
            values => Err(Error::usage(format!(
                "a fill of {} does not fit an image with {}; pass one value, or one per channel",
                quantity(values.len(), "value"),
                quantity(channels, "channel")
            ))),
        }
    }
}

impl Default for Fill {
    fn default() -> Fill {
        Fill::from(0)
    }
}

impl From<u8> for Fill {
    fn from(value: u8) -> Fill {
        Fill(vec![value])
    }
}

impl<const N: usize> From<[u8; N]> for Fill {
    fn from(values: [u8; N]) -> Fill {
        Fill(values.to_vec())
    }
}

impl From<&Fill> for Fill {
    fn from(fill: &Fill) -> Fill {
        fill.clone()
    }
}

impl fmt::Display for Fill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values: Vec<String> = self.0.iter().map(u8::to_string).collect();
        f.write_str(&values.join("/"))
    }
}
