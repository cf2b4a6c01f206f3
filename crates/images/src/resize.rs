//! Renders a view of decoded pixels: cropping, resizing, and writing.
//!
//! Out of scope: how the view is defined (`geometry`), and decoding (`decode`).

use fast_image_resize::images::{TypedCroppedImage, TypedImage, TypedImageRef};
use fast_image_resize::pixels::{InnerPixel, U8, U8x3, U8x4};
use fast_image_resize::{FilterType, PixelTrait, ResizeAlg, ResizeOptions, Resizer};

use super::decode::lengthen;
use super::geometry::{ImageSize, Orientation, Rect, View};
use super::interpolation::Interpolation;
use fulmen_data::{Error, Result};

/// Rows of pixels.
pub(crate) struct Pixels<'a> {
    pub(crate) bytes: &'a [u8],
    /// Bytes from one row to the next; a multiple of the channels.
    pub(crate) stride: usize,
    pub(crate) channels: usize,
    /// Their rectangle in the source.
    pub(crate) rect: Rect,
    /// Their scale in eighths of the source's size.
    pub(crate) eighths: usize,
}

impl Interpolation {
    fn filter(self) -> Option<(FilterType, f64)> {
        match self {
            Interpolation::Nearest => None,
            Interpolation::Bilinear => Some((FilterType::Bilinear, 1.0)),
            // Catmull-Rom is the cubic with a = -0.5, like Pillow's.
            Interpolation::Bicubic => Some((FilterType::CatmullRom, 2.0)),
            Interpolation::Lanczos => Some((FilterType::Lanczos3, 3.0)),
        }
    }
}

/// The part of the source that a view needs; `None` if the view shows only black.
pub(crate) fn needed_part(view: &View, interpolation: Interpolation) -> Option<Rect> {
    let visible = view.window.intersection(&Rect::all(view.size))?;
    if !view.is_resized() {
        return Some(Rect { x: view.crop.x + visible.x, y: view.crop.y + visible.y, ..visible });
    }
    let support = interpolation.filter().map_or(1.0, |(_, support)| support);
    let axis = |start: isize, length: usize, crop: usize, size: usize| {
        let scale = crop as f64 / size as f64;
        // One pixel more than the kernel's support, for rounding.
        let reach = (support * scale.max(1.0)).ceil() as isize + 1;
        let low = ((start as f64 * scale).floor() as isize - reach).max(0);
        let high =
            (((start + length as isize) as f64 * scale).ceil() as isize + reach).min(crop as isize);
        (low, (high - low).max(1) as usize)
    };
    let (x, width) = axis(visible.x, visible.width, view.crop.width, view.size.width);
    let (y, height) = axis(visible.y, visible.height, view.crop.height, view.size.height);
    Some(Rect { x: view.crop.x + x, y: view.crop.y + y, width, height })
}

/// Samples a view into `into`, as rows of the window's size, not oriented yet.
pub(crate) fn render(
    view: &View,
    pixels: &Pixels<'_>,
    interpolation: Interpolation,
    resizer: &mut Resizer,
    into: &mut Vec<u8>,
) -> Result<()> {
    let channels = pixels.channels;
    let ImageSize { width, height } = view.window.size();
    into.clear();
    lengthen(into, width * height * channels)?;
    let Some(visible) = view.window.intersection(&Rect::all(view.size)) else { return Ok(()) };
    if !view.is_resized() && pixels.eighths == 8 {
        let left = (view.crop.x + visible.x - pixels.rect.x) as usize * channels;
        let top = (view.crop.y + visible.y - pixels.rect.y) as usize;
        for row in 0..visible.height {
            let from =
                &pixels.bytes[(top + row) * pixels.stride + left..][..visible.width * channels];
            let to = ((visible.y - view.window.y) as usize + row) * width
                + (visible.x - view.window.x) as usize;
            into[to * channels..][..from.len()].copy_from_slice(from);
        }
        return Ok(());
    }
    let sample = match channels {
        1 => sample::<U8>,
        3 => sample::<U8x3>,
        _ => sample::<U8x4>,
    };
    if visible == view.window {
        return sample(view, visible, pixels, interpolation, resizer, into);
    }
    let mut part = Vec::new();
    lengthen(&mut part, visible.width * visible.height * channels)?;
    sample(view, visible, pixels, interpolation, resizer, &mut part)?;
    for (row, from) in part.chunks_exact(visible.width * channels).enumerate() {
        let to = ((visible.y - view.window.y) as usize + row) * width
            + (visible.x - view.window.x) as usize;
        into[to * channels..][..from.len()].copy_from_slice(from);
    }
    Ok(())
}

/// Samples the part `visible` of the resized crop. This function is generic over the pixel type,
/// because the `resize` of `fast_image_resize` would add code for all 13 pixel types to a program.
fn sample<P: PixelTrait + InnerPixel>(
    view: &View,
    visible: Rect,
    pixels: &Pixels<'_>,
    interpolation: Interpolation,
    resizer: &mut Resizer,
    into: &mut [u8],
) -> Result<()> {
    let refuse = |reason: String| {
        Error::usage(format!("cannot resize: {reason}; this is a bug in fulmen-images"))
    };
    let rows = pixels.rect.height;
    let bytes = pixels.bytes.get(..rows * pixels.stride).unwrap_or(pixels.bytes);
    let whole = TypedImageRef::<P>::from_buffer(
        (pixels.stride / pixels.channels) as u32,
        rows as u32,
        bytes,
    )
    .map_err(|error| refuse(error.to_string()))?;
    // The decoded part of the crop, in pixels of the scaled source. Kernels must not reach beyond
    // it.
    let scale = pixels.eighths as f64 / 8.0;
    let axis = |crop: isize,
                crop_length: usize,
                rect: isize,
                length: usize,
                visible: isize,
                visible_length: usize,
                size: usize| {
        let low = ((crop as f64 * scale).floor() as isize).max(rect);
        let high = (((crop + crop_length as isize) as f64 * scale).ceil() as isize)
            .min(rect + length as isize);
        let step = crop_length as f64 * scale / size as f64;
        let from = crop as f64 * scale + visible as f64 * step - low as f64;
        let length = (visible_length as f64 * step).min((high - low) as f64 - from);
        ((low - rect) as u32, (high - low) as u32, from, length)
    };
    let crop = view.crop;
    let rect = pixels.rect;
    let (x, width, left, box_width) =
        axis(crop.x, crop.width, rect.x, rect.width, visible.x, visible.width, view.size.width);
    let (y, height, top, box_height) =
        axis(crop.y, crop.height, rect.y, rect.height, visible.y, visible.height, view.size.height);
    let source = TypedCroppedImage::from_ref(&whole, x, y, width, height)
        .map_err(|error| refuse(error.to_string()))?;
    let mut target =
        TypedImage::<P>::from_buffer(visible.width as u32, visible.height as u32, into)
            .map_err(|error| refuse(error.to_string()))?;
    let algorithm = match interpolation.filter() {
        None => ResizeAlg::Nearest,
        Some((filter, _)) => ResizeAlg::Convolution(filter),
    };
    let options = ResizeOptions::new().resize_alg(algorithm).crop(left, top, box_width, box_height);
    resizer.resize_typed(&source, &mut target, &options).map_err(|error| refuse(error.to_string()))
}

/// The output layout: orientation, and channel by channel or pixel by pixel.
pub(crate) struct Target {
    /// The size before orientation.
    pub(crate) size: ImageSize,
    pub(crate) channels: usize,
    pub(crate) orientation: Orientation,
    pub(crate) channels_first: bool,
}

impl Target {
    /// Writes pixels, converted by `make` for each channel and value.
    pub(crate) fn write<T: Copy>(
        &self,
        from: &[u8],
        into: &mut [T],
        make: impl Fn(usize, u8) -> T,
    ) {
        let &Target { size, channels, orientation, channels_first } = self;
        let Orientation { transpose, flip_x, flip_y } = orientation;
        let out = orientation.size(size);
        let plane = out.width * out.height;
        if plane == 0 {
            return;
        }
        if transpose {
            for (index, (y, x)) in
                (0..out.height).flat_map(|y| (0..out.width).map(move |x| (y, x))).enumerate()
            {
                let column = if flip_y { out.height - 1 - y } else { y };
                let row = if flip_x { out.width - 1 - x } else { x };
                let pixel = &from[(row * size.width + column) * channels..][..channels];
                for (channel, &value) in pixel.iter().enumerate() {
                    let target = if channels_first {
                        channel * plane + index
                    } else {
                        index * channels + channel
                    };
                    into[target] = make(channel, value);
                }
            }
            return;
        }
        for y in 0..out.height {
            let from_y = if flip_y { out.height - 1 - y } else { y };
            let row = &from[from_y * size.width * channels..][..size.width * channels];
            if !channels_first {
                let to = into[y * row.len()..][..row.len()].chunks_exact_mut(channels);
                let put = |(to, from): (&mut [T], &[u8])| {
                    to.iter_mut()
                        .zip(from)
                        .enumerate()
                        .for_each(|(channel, (to, from))| *to = make(channel, *from));
                };
                if flip_x {
                    to.zip(row.chunks_exact(channels).rev()).for_each(put)
                } else {
                    to.zip(row.chunks_exact(channels)).for_each(put)
                }
            } else if channels == 3 {
                let (red, rest) = into.split_at_mut(plane);
                let (green, blue) = rest.split_at_mut(plane);
                let range = y * size.width..(y + 1) * size.width;
                split(
                    row,
                    [&mut red[range.clone()], &mut green[range.clone()], &mut blue[range]],
                    flip_x,
                    &make,
                );
            } else {
                for channel in 0..channels {
                    let to = into[channel * plane + y * size.width..][..size.width].iter_mut();
                    let values = row[channel..].iter().step_by(channels);
                    if flip_x {
                        to.rev().zip(values).for_each(|(to, from)| *to = make(channel, *from))
                    } else {
                        to.zip(values).for_each(|(to, from)| *to = make(channel, *from))
                    }
                }
            }
        }
    }
}

/// Splits a row of three channels into one row per channel.
fn split<T: Copy>(
    row: &[u8],
    [red, green, blue]: [&mut [T]; 3],
    flip: bool,
    make: &impl Fn(usize, u8) -> T,
) {
    let targets = red.iter_mut().zip(green.iter_mut()).zip(blue.iter_mut());
    let put = |(((r, g), b), pixel): (((&mut T, &mut T), &mut T), &[u8])| {
        *r = make(0, pixel[0]);
        *g = make(1, pixel[1]);
        *b = make(2, pixel[2]);
    };
    if flip {
        targets.zip(row.chunks_exact(3).rev()).for_each(put)
    } else {
        targets.zip(row.chunks_exact(3)).for_each(put)
    }
}
