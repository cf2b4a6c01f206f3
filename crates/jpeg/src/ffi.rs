//! Safe functions around TurboJPEG, libjpeg-turbo's own interface. All of the crate's `unsafe` is in this file.
//!
//! Out of scope: which part of an image to decode, and what a warning means.
#![allow(unsafe_code, reason = "TurboJPEG's C functions are called here")]

use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;

use turbojpeg_sys as sys;

use crate::ColorSpace;

/// A progressive file of a few kilobytes can claim thousands of scans, and decode for minutes.
const MAX_SCANS: c_int = 500;

/// How the texts of libjpeg's warnings begin. All other texts are those of errors.
const WARNINGS: [&str; 6] = [
    "Corrupt JPEG data",
    "Inconsistent progression sequence",
    "Invalid SOS parameters",
    "Premature end of JPEG file",
    "Unknown Adobe color transform",
    "Warning: unknown JFIF revision",
];

/// A file, and the TurboJPEG instance that has read its header.
pub(crate) struct File<'a> {
    instance: Instance,
    data: &'a [u8],
}

/// A TurboJPEG instance. Tables and dimensions stay in it, so each file gets its own.
struct Instance(NonNull<c_void>);

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) message: String,
    /// Whether libjpeg warned before it failed.
    pub(crate) warned: bool,
}

/// The columns and rows to decode, in pixels of the scaled image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) left: usize,
    pub(crate) width: usize,
    pub(crate) top: usize,
    pub(crate) rows: usize,
}

/// The result of a call: the first warning, if there was one. TurboJPEG does not keep the text of any other.
pub(crate) type Outcome = Result<Option<String>, Failure>;

impl<'a> File<'a> {
    /// Reads the header of a file.
    pub(crate) fn open(data: &'a [u8]) -> Result<(File<'a>, Option<String>), Failure> {
        let instance = Instance::new()?;
        // SAFETY: the instance is live, and the pointer and the length are those of a slice.
        let status = unsafe {
            sys::tj3DecompressHeader(instance.0.as_ptr(), data.as_ptr(), data.len() as _)
        };
        let warning = instance.outcome(status)?;
        Ok((File { instance, data }, warning))
    }

    /// A parameter of the header.
    pub(crate) fn get(&self, param: sys::TJPARAM) -> c_int {
        // SAFETY: the instance is live; an unknown parameter gives -1.
        unsafe { sys::tj3Get(self.instance.0.as_ptr(), param as c_int) }
    }

    /// The size at a scale of `eighths` / 8, rounded up.
    pub(crate) fn scaled(&self, eighths: usize) -> (usize, usize) {
        let side = |param| (self.get(param).max(0) as usize * eighths).div_ceil(8);
        (side(sys::TJPARAM_TJPARAM_JPEGWIDTH), side(sys::TJPARAM_TJPARAM_JPEGHEIGHT))
    }

    /// Decodes a window at a scale of `eighths` / 8 into the first rows of `pixels`, without bytes between them.
    pub(crate) fn decode(
        &mut self,
        space: ColorSpace,
        eighths: usize,
        window: Window,
        pixels: &mut Vec<u8>,
    ) -> Outcome {
        self.crop(eighths, window)?;
        let (format, channels) = match space {
            ColorSpace::Gray => (sys::TJPF_TJPF_GRAY, 1),
            ColorSpace::Rgb => (sys::TJPF_TJPF_RGB, 3),
            ColorSpace::Cmyk => (sys::TJPF_TJPF_CMYK, 4),
        };
        let Window { width, rows, .. } = window;
        let stride = width * channels;
        let no_memory = || error(format!("not enough memory for {width} x {rows} pixels"));
        let bytes = stride.checked_mul(rows).ok_or_else(no_memory)?;
        if pixels.len() < bytes {
            pixels.try_reserve(bytes - pixels.len()).map_err(|_| no_memory())?;
            pixels.resize(bytes, 0);
        }
        // SAFETY: the instance is live, and the pointer and the length of the file are those of a slice. It is the file
        // whose header gave the dimensions that `crop` checked the window against, so that `rows` rows of `width`
        // pixels are written, `stride` bytes apart. `pixels` has room for them.
        let status = unsafe {
            sys::tj3Decompress8(
                self.instance.0.as_ptr(),
                self.data.as_ptr(),
                self.data.len() as _,
                pixels.as_mut_ptr(),
                stride as c_int,
                format,
            )
        };
        self.instance.outcome(status)
    }

    /// Sets the scale and the window for the next decoding. A window that is not inside the image is an error.
    fn crop(&mut self, eighths: usize, window: Window) -> Result<(), Failure> {
        let shift = eighths.trailing_zeros().min(3);
        let scale = sys::tjscalingfactor { num: (eighths >> shift) as c_int, denom: 8 >> shift };
        let Window { left, width, top, rows } = window;
        if width == 0 || rows == 0 {
            return Err(error("an empty window".into()));
        }
        // A region of zeros is the whole image, of any sampling.
        let is_whole = ((left, top), (width, rows)) == ((0, 0), self.scaled(eighths));
        let region = if is_whole { [0; 4] } else { [left, top, width, rows] };
        let [x, y, w, h] = region.map(|side| side as c_int);
        // SAFETY: the instance is live; both functions check their argument.
        let status = unsafe {
            match sys::tj3SetScalingFactor(self.instance.0.as_ptr(), scale) {
                0 => sys::tj3SetCroppingRegion(
                    self.instance.0.as_ptr(),
                    sys::tjregion { x, y, w, h },
                ),
                status => status,
            }
        };
        self.instance.outcome(status).map(|_| ())
    }
}

impl Instance {
    fn new() -> Result<Instance, Failure> {
        // SAFETY: it returns a new instance or null.
        let instance = unsafe { sys::tj3Init(sys::TJINIT_TJINIT_DECOMPRESS as c_int) };
        let instance = NonNull::new(instance)
            .map(Instance)
            .ok_or_else(|| error("not enough memory for a JPEG decoder".into()))?;
        for (param, value) in
            [(sys::TJPARAM_TJPARAM_SCANLIMIT, MAX_SCANS), (sys::TJPARAM_TJPARAM_SAVEMARKERS, 0)]
        {
            // SAFETY: the instance is live; the function checks the parameter and its value.
            let status = unsafe { sys::tj3Set(instance.0.as_ptr(), param as c_int, value) };
            instance.outcome(status)?;
        }
        Ok(instance)
    }

    /// What the last call on this instance reported.
    fn outcome(&self, status: c_int) -> Outcome {
        // SAFETY: the instance is live.
        let code = unsafe { sys::tj3GetErrorCode(self.0.as_ptr()) };
        let warned = code == sys::TJERR_TJERR_WARNING as c_int;
        if status == 0 && !warned {
            return Ok(None);
        }
        // SAFETY: the instance is live. The text is an array of it or of this thread, ends with a zero, and is
        // written by the next call at the earliest.
        let text = unsafe { CStr::from_ptr(sys::tj3GetErrorStr(self.0.as_ptr())) };
        let text = text.to_string_lossy();
        let message = text.split_once("(): ").map_or(&*text, |(_, message)| message).to_owned();
        if warned && WARNINGS.iter().any(|warning| message.starts_with(warning)) {
            Ok(Some(message))
        } else {
            Err(Failure { message, warned })
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: the instance is live, and not used after this.
        unsafe { sys::tj3Destroy(self.0.as_ptr()) }
    }
}

fn error(message: String) -> Failure {
    Failure { message, warned: false }
}
