//! Profiles from a plugin's profiler extension. libtpu has the extension; the known CPU plugins do
//! not.
//!
//! Out of scope: reading a profile. TensorBoard's profile plugin (XProf) shows it.

use std::fmt;
use std::ptr::{self, NonNull};

use prost::Message;

use crate::abi::*;
use crate::api::{guarded, list, non_null, text};
use crate::error::{self, Error, Fact, Result};
use crate::plugin::Plugin;

/// `tensorflow.ProfileOptions`, with only the fields that this crate sets.
#[derive(Clone, PartialEq, Message)]
struct ProfileOptions {
    #[prost(uint32, tag = "2")]
    host_tracer_level: u32,
    #[prost(uint32, tag = "3")]
    device_tracer_level: u32,
    /// From version 1 on, the plugin uses the other fields as they are.
    #[prost(uint32, tag = "5")]
    version: u32,
    #[prost(bool, tag = "7")]
    enable_hlo_proto: bool,
}

/// `tensorflow.profiler.XSpace`, without decoding its planes.
#[derive(Clone, PartialEq, Message)]
struct XSpace {
    #[prost(bytes = "vec", repeated, tag = "1")]
    planes: Vec<Vec<u8>>,
}

/// A profile that a plugin is recording. [`Profile::finish`] ends the recording and returns it.
/// Dropping the `Profile` ends the recording and discards it.
///
/// ```no_run
/// use fulmen_pjrt::{Plugin, locate::{Platform, locate}};
///
/// let plugin = Plugin::load(locate(Platform::Tpu, None)?)?;
/// let profile = plugin.start_profile()?;
/// // Programs run.
/// std::fs::write("host.xplane.pb", profile.finish()?).unwrap();
/// # Ok::<(), fulmen_pjrt::Error>(())
/// ```
pub struct Profile {
    table: &'static PLUGIN_Profiler_Api,
    raw: NonNull<PLUGIN_Profiler>,
    running: bool,
}

impl Plugin {
    /// Starts a profile of this process's devices.
    ///
    /// # Errors
    /// The plugin has no profiler ([unsupported](Error::is_unsupported)); the plugin's own errors,
    /// for example if a profile is already running.
    pub fn start_profile(&self) -> Result<Profile> {
        // SAFETY: this is the header's layout for this kind.
        let extension = unsafe {
            self.api().extension::<PJRT_Profiler_Extension>(PJRT_EXTENSION_TYPE_PROFILER)
        };
        let table = extension
            // SAFETY: the plugin's table lives as long as the plugin, which is never unloaded.
            .and_then(|extension| unsafe { extension.profiler_api.as_ref() })
            .filter(|table| table.struct_size >= size_of::<PLUGIN_Profiler_Api>())
            .ok_or_else(|| {
                Error::of(
                    Fact::Unsupported,
                    format!("the plugin {} has no profiler", self.path().display()),
                )
            })?;
        Profile::start(table)
    }
}

impl Profile {
    fn start(table: &'static PLUGIN_Profiler_Api) -> Result<Profile> {
        // The options that XLA's own tools use.
        let options = ProfileOptions {
            host_tracer_level: 2,
            device_tracer_level: 1,
            version: 1,
            enable_hlo_proto: true,
        }
        .encode_to_vec();
        let mut args = PLUGIN_Profiler_Create_Args {
            struct_size: size_of::<PLUGIN_Profiler_Create_Args>(),
            options: options.as_ptr().cast(),
            options_size: options.len(),
            profiler: ptr::null_mut(),
        };
        // SAFETY: the options outlive the call.
        unsafe { call(table, "PLUGIN_Profiler_Create", table.create, &mut args) }?;
        let raw = non_null(args.profiler, "profiler")?;
        let mut profile = Profile { table, raw, running: false };
        profile.with_profiler("PLUGIN_Profiler_Start", table.start)?;
        profile.running = true;
        Ok(profile)
    }

    /// Calls a function whose only argument is the profiler.
    fn with_profiler(
        &self,
        name: &'static str,
        function: PLUGIN_Profiler_Function<PLUGIN_Profiler_Profiler_Args>,
    ) -> Result<()> {
        let struct_size = size_of::<PLUGIN_Profiler_Profiler_Args>();
        let mut args = PLUGIN_Profiler_Profiler_Args { struct_size, profiler: self.raw.as_ptr() };
        // SAFETY: the profiler is alive.
        unsafe { call(self.table, name, function, &mut args) }
    }

    fn stop(&mut self) -> Result<()> {
        if !std::mem::take(&mut self.running) {
            return Ok(());
        }
        self.with_profiler("PLUGIN_Profiler_Stop", self.table.stop)
    }

    /// Ends the profile and returns it: a serialized `XSpace`, the content of a file
    /// `HOST.xplane.pb`.
    ///
    /// # Errors
    /// The plugin's own errors; data that is not an `XSpace`.
    pub fn finish(mut self) -> Result<Vec<u8>> {
        self.stop()?;
        let mut args = PLUGIN_Profiler_CollectData_Args {
            struct_size: size_of::<PLUGIN_Profiler_CollectData_Args>(),
            profiler: self.raw.as_ptr(),
            buffer: ptr::null_mut(),
            buffer_size_in_bytes: 0,
        };
        let collect = |args: &mut _| {
            // SAFETY: the profiler is alive, and the buffer is null or of this size.
            unsafe {
                call(self.table, "PLUGIN_Profiler_CollectData", self.table.collect_data, args)
            }
        };
        collect(&mut args)?;
        // The header says that a first call only returns the size. XLA's own profilers, including
        // libtpu's, return their own buffer.
        let mut bytes = if args.buffer.is_null() {
            let mut bytes = vec![0; args.buffer_size_in_bytes];
            args.buffer = bytes.as_mut_ptr();
            collect(&mut args)?;
            bytes
        } else {
            // SAFETY: the plugin owns the buffer until the profiler is destroyed.
            unsafe { list(args.buffer.cast_const(), args.buffer_size_in_bytes) }.to_vec()
        };
        // Some versions of XLA append a zero to the data, which belongs to no field.
        if bytes.last() == Some(&0) && XSpace::decode(&bytes[..]).is_err() {
            bytes.pop();
        }
        XSpace::decode(&bytes[..]).map_err(|error| {
            error::broken(format!("the plugin's profile cannot be read: {error}"))
        })?;
        Ok(bytes)
    }
}

impl Drop for Profile {
    fn drop(&mut self) {
        // A failure cannot be reported here.
        let _ = self.stop();
        let _ = self.with_profiler("PLUGIN_Profiler_Destroy", self.table.destroy);
    }
}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Profile").finish_non_exhaustive()
    }
}

/// Calls a function of the table.
///
/// # Safety
/// Every pointer in `args` must be valid as the header requires.
unsafe fn call<A>(
    table: &PLUGIN_Profiler_Api,
    name: &'static str,
    function: PLUGIN_Profiler_Function<A>,
    args: &mut A,
) -> Result<()> {
    let Some(function) = function else {
        return Err(Error::of(Fact::Unsupported, format!("the plugin's profiler has no {name}")));
    };
    // SAFETY: the caller's promise.
    let error = guarded(name, || unsafe { function(args) });
    if error.is_null() {
        return Ok(());
    }
    let mut message = PLUGIN_Profiler_Error_Message_Args {
        struct_size: size_of::<PLUGIN_Profiler_Error_Message_Args>(),
        private: ptr::null_mut(),
        error: error.cast_const(),
        message: ptr::null(),
        message_size: 0,
    };
    if let Some(function) = table.error_message {
        // SAFETY: the error is alive.
        guarded("PLUGIN_Profiler_Error_Message", || unsafe { function(&mut message) });
    }
    // SAFETY: the message lives as long as the error.
    let description = unsafe { text(message.message, message.message_size) };
    if let Some(function) = table.error_destroy {
        let struct_size = size_of::<PLUGIN_Profiler_Error_Destroy_Args>();
        let mut args =
            PLUGIN_Profiler_Error_Destroy_Args { struct_size, private: ptr::null_mut(), error };
        // SAFETY: we own the error, and do not use it afterwards.
        guarded("PLUGIN_Profiler_Error_Destroy", || unsafe { function(&mut args) });
    }
    Err(error::plugin(PJRT_Error_Code::UNKNOWN, format!("{name}: {}", description.trim_end())))
}

#[cfg(test)]
mod tests {
    use std::ffi::c_char;

    use parking_lot::Mutex;

    use super::*;

    /// The calls of the profiler below.
    static CALLS: Mutex<Vec<String>> = Mutex::new(Vec::new());
    /// A plane, followed by the zero that some versions of XLA append.
    static DATA: [u8; 5] = [0x0a, 0x02, 0x08, 0x07, 0];
    static FAILURE: &[u8] = b"another profile is being recorded";

    fn done(name: &str) -> *mut PLUGIN_Profiler_Error {
        CALLS.lock().push(name.to_owned());
        ptr::null_mut()
    }

    unsafe extern "C-unwind" fn create(
        args: *mut PLUGIN_Profiler_Create_Args,
    ) -> *mut PLUGIN_Profiler_Error {
        // SAFETY: the caller's arguments are valid.
        let args = unsafe { &mut *args };
        // SAFETY: as above.
        let options = unsafe { list(args.options.cast::<u8>(), args.options_size) };
        args.profiler = NonNull::dangling().as_ptr();
        done(&format!("create {options:?}"))
    }

    unsafe extern "C-unwind" fn start(
        _: *mut PLUGIN_Profiler_Profiler_Args,
    ) -> *mut PLUGIN_Profiler_Error {
        done("start")
    }

    unsafe extern "C-unwind" fn fail(
        _: *mut PLUGIN_Profiler_Profiler_Args,
    ) -> *mut PLUGIN_Profiler_Error {
        NonNull::dangling().as_ptr()
    }

    unsafe extern "C-unwind" fn stop(
        _: *mut PLUGIN_Profiler_Profiler_Args,
    ) -> *mut PLUGIN_Profiler_Error {
        done("stop")
    }

    unsafe extern "C-unwind" fn destroy(
        _: *mut PLUGIN_Profiler_Profiler_Args,
    ) -> *mut PLUGIN_Profiler_Error {
        done("destroy")
    }

    unsafe extern "C-unwind" fn collect(
        args: *mut PLUGIN_Profiler_CollectData_Args,
    ) -> *mut PLUGIN_Profiler_Error {
        // SAFETY: the caller's arguments are valid.
        let args = unsafe { &mut *args };
        (args.buffer, args.buffer_size_in_bytes) = (DATA.as_ptr().cast_mut(), DATA.len());
        done("collect")
    }

    unsafe extern "C-unwind" fn message(args: *mut PLUGIN_Profiler_Error_Message_Args) {
        // SAFETY: the caller's arguments are valid.
        let args = unsafe { &mut *args };
        (args.message, args.message_size) = (FAILURE.as_ptr().cast::<c_char>(), FAILURE.len());
    }

    unsafe extern "C-unwind" fn destroy_error(_: *mut PLUGIN_Profiler_Error_Destroy_Args) {
        done("destroy error");
    }

    fn table(
        start: PLUGIN_Profiler_Function<PLUGIN_Profiler_Profiler_Args>,
    ) -> &'static PLUGIN_Profiler_Api {
        Box::leak(Box::new(PLUGIN_Profiler_Api {
            struct_size: size_of::<PLUGIN_Profiler_Api>(),
            private: ptr::null_mut(),
            error_destroy: Some(destroy_error),
            error_message: Some(message),
            error_get_code: ptr::null(),
            create: Some(create),
            destroy: Some(destroy),
            start,
            stop: Some(stop),
            collect_data: Some(collect),
        }))
    }

    /// One test, because both halves share the list of calls.
    #[test]
    fn a_profile_is_created_started_stopped_collected_and_destroyed() {
        let bytes = Profile::start(table(Some(start))).unwrap().finish().unwrap();
        assert_eq!(bytes, DATA[..4], "the zero at the end is not part of it");
        let calls = std::mem::take(&mut *CALLS.lock());
        assert_eq!(
            calls,
            ["create [16, 2, 24, 1, 40, 1, 56, 1]", "start", "stop", "collect", "destroy"]
        );

        let error = Profile::start(table(Some(fail))).unwrap_err();
        assert_eq!(error.to_string(), "PLUGIN_Profiler_Start: another profile is being recorded");
        let calls = std::mem::take(&mut *CALLS.lock());
        assert_eq!(calls[1..], ["destroy error", "destroy"]);
    }

    #[test]
    fn the_tables_are_laid_out_as_the_header_says() {
        assert_eq!(size_of::<PLUGIN_Profiler_Api>(), 80);
        assert_eq!(std::mem::offset_of!(PJRT_Profiler_Extension, profiler_api), 24);
        assert_eq!(size_of::<PLUGIN_Profiler_Create_Args>(), 32);
        assert_eq!(size_of::<PLUGIN_Profiler_Profiler_Args>(), 16);
        assert_eq!(std::mem::offset_of!(PLUGIN_Profiler_CollectData_Args, buffer), 16);
        assert_eq!(size_of::<PLUGIN_Profiler_Error_Message_Args>(), 40);
    }
}
