//! [`Media`]: logged images, texts and histograms on the host.

use std::io::{self, Write as _};

use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};

/// A logged value other than a metric, as loggers and callbacks receive it.
#[derive(Clone, Debug, PartialEq)]
pub enum Media {
    /// An image, or several images of the same size.
    Image(Images),
    /// One text for each row of token ids.
    Text(Vec<String>),
    /// The distribution of the elements of a tensor.
    Histogram(Histogram),
}

/// Images of the same size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Images {
    /// The number of images, the number of channels (1, 3 or 4), the height and the width.
    pub shape: [usize; 4],
    /// The pixels in the order of the shape, from 0 to 255.
    pub pixels: Vec<u8>,
}

/// A histogram: the number of elements in each of several bins of equal width.
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    /// The lower edge of the first bin: the smallest finite element, or half a unit less if all are
    /// equal.
    pub low: f64,
    /// The upper edge of the last bin: the largest finite element, or half a unit more if all are
    /// equal.
    pub high: f64,
    /// The sum of the finite elements.
    pub sum: f64,
    /// The sum of the squares of the finite elements.
    pub sum_squares: f64,
    /// The number of finite elements in each bin; an element on an edge counts in the upper bin.
    pub counts: Vec<u64>,
    /// The number of elements that are NaN or infinite.
    pub non_finite: u64,
}

impl Media {
    /// The value as a file: the extension of the file name, and the content. Images become a PNG,
    /// texts are separated by empty lines, and a histogram becomes a CSV with a row for each bin.
    ///
    /// # Errors
    /// The number of pixels does not match the shape.
    pub fn to_file(&self) -> io::Result<(&'static str, Vec<u8>)> {
        Ok(match self {
            Media::Image(images) => ("png", images.png()?),
            Media::Text(texts) => ("txt", (texts.join("\n\n") + "\n").into_bytes()),
            Media::Histogram(histogram) => {
                let edges = histogram.edges();
                let rows: String = edges
                    .windows(2)
                    .zip(&histogram.counts)
                    .map(|(edges, count)| format!("{},{},{count}\n", edges[0], edges[1]))
                    .collect();
                ("csv", format!("low,high,count\n{rows}").into_bytes())
            }
        })
    }
}

impl Histogram {
    /// The edges of the bins. There is one more edge than bins.
    ///
    /// ```
    /// use fulmen_loggers::Histogram;
    ///
    /// let sum = 4.0;
    /// let sum_squares = 10.0;
    /// let non_finite = 0;
    /// let histogram = Histogram { low: 0.0, high: 3.0, sum, sum_squares, counts: vec![2, 0, 1], non_finite };
    /// assert_eq!(histogram.edges(), [0.0, 1.0, 2.0, 3.0]);
    /// ```
    pub fn edges(&self) -> Vec<f64> {
        let bins = self.counts.len();
        let edge = |i: usize| self.low + (self.high - self.low) * (i as f64 / bins as f64);
        (0..bins).map(edge).chain([self.high]).collect()
    }
}

impl Images {
    /// The space between the images of a grid, in pixels.
    const BORDER: usize = 2;

    /// Draws the images into one PNG, as an almost square grid.
    ///
    /// # Errors
    /// The number of pixels does not match the shape, or exceeds the limit of PNG.
    pub fn png(&self) -> io::Result<Vec<u8>> {
        let [n, channels, height, width] = self.shape;
        if self.pixels.len() != self.shape.iter().product::<usize>() || self.pixels.is_empty() {
            let message = format!(
                "{} pixels do not match images of shape {:?}",
                self.pixels.len(),
                self.shape
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let columns = (n as f64).sqrt().ceil() as usize;
        let side = |count: usize, size: usize| count * size + (count - 1) * Images::BORDER;
        let grid_width = side(columns, width);
        let grid_height = side(n.div_ceil(columns), height);
        let mut rows = vec![0; grid_width * grid_height * channels];
        for (i, planes) in self.pixels.chunks(channels * height * width).enumerate() {
            let top = i / columns * (height + Images::BORDER);
            let left = i % columns * (width + Images::BORDER);
            for (index, &pixel) in planes.iter().enumerate() {
                let channel = index / (height * width);
                let y = index / width % height;
                let x = index % width;
                rows[((top + y) * grid_width + left + x) * channels + channel] = pixel;
            }
        }
        let size = |size: usize| u32::try_from(size).map_err(io::Error::other);
        // PNG's color types for grayscale, RGB and RGBA.
        let color_type = match channels {
            1 => 0,
            3 => 2,
            _ => 6,
        };
        png(size(grid_width)?, size(grid_height)?, color_type, &rows)
    }
}

/// Encodes rows of 8-bit pixels as a PNG. This does not use the crate `png`, which brings six
/// packages for these four chunks.
fn png(width: u32, height: u32, color_type: u8, pixels: &[u8]) -> io::Result<Vec<u8>> {
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    let mut chunk = |kind: &[u8; 4], data: &[u8]| -> io::Result<()> {
        let mut crc = Crc::new();
        crc.update(kind);
        crc.update(data);
        let size = u32::try_from(data.len()).map_err(io::Error::other)?;
        for part in [&size.to_be_bytes(), &kind[..], data, &crc.sum().to_be_bytes()] {
            file.extend_from_slice(part);
        }
        Ok(())
    };
    // 8 bits per channel, the only compression and filter methods that exist, and no interlacing.
    chunk(
        b"IHDR",
        &[&width.to_be_bytes()[..], &height.to_be_bytes(), &[8, color_type, 0, 0, 0]].concat(),
    )?;
    let mut compressed = ZlibEncoder::new(Vec::new(), Compression::default());
    for row in pixels.chunks(pixels.len() / height as usize) {
        // The row has no filter.
        compressed.write_all(&[0])?;
        compressed.write_all(row)?;
    }
    chunk(b"IDAT", &compressed.finish()?)?;
    chunk(b"IEND", &[])?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_png_has_the_pixels_of_its_images() {
        for channels in [1, 3, 4] {
            // Two images of two rows and three columns: a grid of one row.
            let pixels: Vec<u8> = (0..2 * channels * 6).map(|i| (i * 7 % 251) as u8).collect();
            let file = Images { shape: [2, channels, 2, 3], pixels: pixels.clone() }.png().unwrap();
            let mut reader = png::Decoder::new(io::Cursor::new(file)).read_info().unwrap();
            let mut rows = vec![0; reader.output_buffer_size().unwrap()];
            let info = reader.next_frame(&mut rows).unwrap();
            assert_eq!(
                (info.width, info.height, info.color_type.samples()),
                (3 + 2 + 3, 2, channels)
            );
            let shown = |n: usize, channel: usize, y: usize, x: usize| {
                rows[(y * 8 + n * 5 + x) * channels + channel]
            };
            for (index, &pixel) in pixels.iter().enumerate() {
                assert_eq!(
                    shown(index / (6 * channels), index / 6 % channels, index / 3 % 2, index % 3),
                    pixel
                );
            }
        }
    }
}
