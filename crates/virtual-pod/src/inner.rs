//! The functions of the CPU plugin that computes, and the form of those that replace them. Out of
//! scope: which ones are replaced (`plugin`).

use std::ffi::c_void;
use std::sync::OnceLock;

use fulmen_pjrt::Plugin;
use fulmen_pjrt::abi::*;
use fulmen_pjrt::api::{Api, guarded};

use crate::error::{Failure, PodError};
use crate::settings::cpu_plugin;

/// The CPU plugin that computes, or why there is none.
static INNER: OnceLock<Result<Plugin, PodError>> = OnceLock::new();

/// The functions of the CPU plugin.
pub(crate) fn inner() -> Result<Api, PodError> {
    Ok(inner_plugin()?.api())
}

pub(crate) fn inner_plugin() -> Result<&'static Plugin, PodError> {
    let load = || -> Result<Plugin, PodError> { Ok(Plugin::load(cpu_plugin()?)?) };
    INNER.get_or_init(load).as_ref().map_err(PodError::clone)
}

/// Calls the function of the CPU plugin that takes `args`. The caller gets its error.
///
/// # Safety
/// Every pointer in `args` must be valid as the header requires.
pub(crate) unsafe fn forward<A: Args>(args: *mut A) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    unsafe { forward_slot(A::SLOT, args.cast()) }
}

/// # Safety
/// As for [`forward`]. The function in the slot must take these arguments and return an error.
pub(crate) unsafe fn forward_slot(slot: Slot, args: *mut c_void) -> Result<(), Failure> {
    let function = inner()?.function(slot)?;
    // SAFETY: all functions of the table but two take one pointer and return an error.
    let function: unsafe extern "C-unwind" fn(*mut c_void) -> *mut PJRT_Error =
        unsafe { std::mem::transmute(function) };
    // SAFETY: the caller's promise.
    let error = guarded(slot, || unsafe { function(args) });
    if error.is_null() { Ok(()) } else { Err(Failure::Inner(error)) }
}

/// A function of the table that this crate replaces, as a property of its arguments.
pub(crate) trait Entry: Args {
    /// The function's body.
    ///
    /// # Safety
    /// Every pointer in `self` must be valid as the header requires.
    unsafe fn run(&mut self) -> Result<(), Failure>;
}
