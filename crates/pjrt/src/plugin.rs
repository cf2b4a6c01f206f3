//! A loaded PJRT plugin: opens the shared object and reads its properties. Out of scope: running
//! programs (`client`).

use std::collections::{BTreeMap, HashMap};
use std::env;
use std::ffi::{CStr, CString};
use std::fmt;
use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use crate::abi::*;
use crate::api::{Api, guarded};
use crate::error::{self, Error, Fact, Result};
use crate::locate::Platform;
use crate::named_value::{NamedValue, read_named};
use crate::{environment, fetch};

/// The oldest minor version whose struct layouts match those in `abi`.
pub(crate) const OLDEST_MINOR: i32 = 81;

/// The version of the PJRT C API that a plugin was compiled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ApiVersion {
    /// Changes when the API changes incompatibly.
    pub major: i32,
    /// Grows with each addition.
    pub minor: i32,
}

impl fmt::Display for ApiVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// A PJRT plugin: the shared object for one kind of device. Clones are the same plugin.
///
/// ```
/// use fulmen_pjrt::{Plugin, locate::{Platform, locate}};
/// let plugin = Plugin::load(locate(Platform::Cpu, None)?)?;
/// assert_eq!(plugin.api_version().major, 0);
/// let client = plugin.create_client(&[("cpu_device_count", 2.into())])?;
/// assert_eq!(client.devices().len(), 2);
/// # Ok::<(), fulmen_pjrt::Error>(())
/// ```
#[derive(Clone)]
pub struct Plugin(Arc<Inner>);

struct Inner {
    path: PathBuf,
    api: Api,
    /// The file's stamp when it was loaded.
    stamp: Stamp,
    identity: OnceLock<String>,
    /// Held while the file is hashed.
    hashing: Mutex<()>,
}

/// Detects that a file was replaced without reading it: length, time of change, inode number.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    len: u64,
    modified: (i64, i64),
    inode: u64,
}

impl Stamp {
    fn new(metadata: &Metadata) -> Stamp {
        Self {
            len: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            inode: metadata.ino(),
        }
    }
}

impl Plugin {
    /// Loads a plugin from its shared object. Loading the same file again returns the same plugin.
    /// It is never unloaded.
    ///
    /// The first load of a process prepares the environment. It sets `TF_CPP_MIN_LOG_LEVEL` to 3
    /// and `GRPC_VERBOSITY` to `ERROR`, because plugins otherwise print each error a second time. On machines without a TPU, it also
    /// sets the variables that keep libtpu from searching for one. Existing variables are not
    /// changed. Call it before other threads use the environment: it cannot prevent a race with
    /// foreign (C) code that reads a variable at the same time.
    ///
    /// A non-empty `XLA_FLAGS` is rejected, because an unknown flag in it ends the process; use
    /// [`CompileOptions::override_flag`](crate::CompileOptions::override_flag). The only exception
    /// is the value with which Fulmen's own tests compile faster.
    ///
    /// A plugin that Fulmen [downloaded](crate::fetch) is compared with its published SHA-256 if its
    /// size or time has changed since that was last done. If it is damaged, it is downloaded again.
    ///
    /// Loading runs the file's code: load only files that you trust.
    pub fn load(path: impl AsRef<Path>) -> Result<Plugin> {
        static LOADED: Mutex<Option<HashMap<(u64, u64), Plugin>>> = Mutex::new(None);

        let path = path.as_ref();
        environment::refuse_xla_flags()?;
        let real = path.canonicalize().map_err(|error| {
            error::io(format!("there is no PJRT plugin at {}", path.display()), error)
        })?;
        let mut loaded = LOADED.lock();
        let loaded = loaded.get_or_insert_with(HashMap::new);
        if let Some(plugin) = loaded.get(&file_number(&look_at(&real)?)) {
            return Ok(plugin.clone());
        }
        let OpenedPlugin { api, metadata, sha256 } = open_whole(&real)?;
        let key = file_number(&metadata);
        let stamp = Stamp::new(&metadata);
        let plugin = Self(Arc::new(Inner {
            api,
            path: real,
            stamp,
            identity: sha256.map_or_else(OnceLock::new, |sha256| sha256.to_owned().into()),
            hashing: Mutex::new(()),
        }));
        // SAFETY: this function has no arguments.
        unsafe { plugin.api().call(&mut PJRT_Plugin_Initialize_Args::new()) }.map_err(|error| {
            error.context(format_args!("starting the plugin {}", plugin.path().display()))
        })?;
        loaded.insert(key, plugin.clone());
        Ok(plugin)
    }

    /// The functions of the plugin, for `fulmen-virtual-pod`.
    #[doc(hidden)]
    pub fn api(&self) -> Api {
        self.0.api
    }

    /// The path that the plugin was loaded from, without links.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The version of the C API that the plugin supports.
    pub fn api_version(&self) -> ApiVersion {
        version(self.0.api)
    }

    /// The attributes that the plugin reports, such as `stablehlo_current_version`.
    pub fn attributes(&self) -> Result<BTreeMap<String, NamedValue>> {
        let mut args = PJRT_Plugin_Attributes_Args::new();
        // SAFETY: this function only returns data, which lives as long as the process.
        unsafe {
            self.api().call(&mut args)?;
            read_named(args.attributes, args.num_attributes)
        }
    }

    /// Whether a client of this plugin takes the options `node_id` and `num_nodes`, and finds the
    /// other processes through a [store](Plugin::create_client_with). NVIDIA's plugin does. Other
    /// plugins say so with the attribute `takes_node_id_and_store`, as `fulmen-virtual-pod` does.
    pub fn takes_peers(&self, platform: Platform) -> Result<bool> {
        if platform == Platform::Cuda {
            return Ok(true);
        }
        Ok(self.attributes()?.get("takes_node_id_and_store") == Some(&NamedValue::Bool(true)))
    }

    /// The SHA-256 of the plugin's file, which identifies the plugin of a stored executable. The
    /// first call computes it. It fails if the file has been replaced since it was loaded.
    pub fn identity(&self) -> Result<&str> {
        if let Some(identity) = self.0.identity.get() {
            return Ok(identity);
        }
        // If two threads call this at once, the file is hashed once.
        let _hashing = self.0.hashing.lock();
        if let Some(identity) = self.0.identity.get() {
            return Ok(identity);
        }
        let digest = crate::hash::of_file(self.path())?;
        // Checked after reading, to include changes while reading.
        let unchanged =
            self.path().metadata().is_ok_and(|metadata| Stamp::new(&metadata) == self.0.stamp);
        if !unchanged {
            return Err(Error::of(
                Fact::Io,
                format!(
                    "the plugin's file {} was replaced after it was loaded; restart the program",
                    self.path().display()
                ),
            ));
        }
        Ok(self.0.identity.get_or_init(|| digest))
    }

    /// The identity and the current state of the file, to be stored for
    /// [`Plugin::recall_identity`].
    pub(crate) fn identity_record(&self) -> Result<String> {
        Ok(format!("{}\n{}\n", self.identity()?, file_state(&look_at(self.path())?)))
    }

    /// Reads the identity from a file with an [`identity_record`](Plugin::identity_record), if the
    /// plugin's file has not changed since. Returns whether the record is valid for this plugin.
    pub(crate) fn recall_identity(&self, record: &Path) -> bool {
        let state =
            look_at(self.path()).ok().filter(|metadata| Stamp::new(metadata) == self.0.stamp);
        let (Some(metadata), Ok(text)) =
            (state, fulmen_durable::read_regular(record, MAX_RECORD_BYTES))
        else {
            return false;
        };
        let Ok(text) = String::from_utf8(text) else { return false };
        let Some((identity, state)) = text.split_once('\n') else { return false };
        let is_digest =
            identity.len() == 64 && identity.bytes().all(|byte| byte.is_ascii_hexdigit());
        let unchanged = is_digest && state.trim_end() == file_state(&metadata);
        unchanged && self.0.identity.get_or_init(|| identity.to_owned()) == identity
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The size limit of an identity record.
const MAX_RECORD_BYTES: u64 = 4096;

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Plugin({}, PJRT API {})", self.path().display(), self.api_version())
    }
}

fn version(api: Api) -> ApiVersion {
    let (major, minor) = api.version();
    ApiVersion { major, minor }
}

/// The API version of a plugin file, if it is supported. The plugin is opened for this, but not
/// started.
pub(crate) fn version_of(path: &Path) -> Result<ApiVersion> {
    let real = path.canonicalize().map_err(|error| {
        error::io(format!("there is no PJRT plugin at {}", path.display()), error)
    })?;
    Ok(version(open_whole(&real)?.api))
}

fn look_at(path: &Path) -> Result<Metadata> {
    path.metadata().map_err(|error| {
        error::io(format!("cannot read the metadata of {}", path.display()), error)
    })
}

/// Identifies a file under all its names.
fn file_number(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// One line that changes when a file's content changes. No process can set the time of change.
fn file_state(metadata: &Metadata) -> String {
    format!(
        "{} bytes, modified {}.{:09}, changed {}.{:09}, file {} of device {}",
        metadata.len(),
        metadata.mtime(),
        metadata.mtime_nsec(),
        metadata.ctime(),
        metadata.ctime_nsec(),
        metadata.ino(),
        metadata.dev()
    )
}

/// Opens a usable plugin. A damaged file that Fulmen downloaded is downloaded again.
fn open_whole(path: &Path) -> Result<OpenedPlugin> {
    let attempt = |sha256| -> Result<OpenedPlugin> {
        environment::prepare();
        let metadata = look_at(path)?;
        // The dynamic loader would wait for a writer if the file is a pipe.
        if !metadata.is_file() {
            let path = path.display();
            return Err(Error::of(
                Fact::NotAPlugin,
                format!(
                    "{path} is not a PJRT plugin: it is not a regular file; use the path of a plugin's shared object (.so)"
                ),
            ));
        }
        let api = open(path)?;
        check_version(path, api)?;
        Ok(OpenedPlugin { api, metadata, sha256 })
    };
    let sha256 = fetch::verify_if_changed(path)?;
    match attempt(sha256) {
        Err(error) if error.is_not_a_plugin() && fetch::repair(path)? => attempt(sha256),
        result => result,
    }
}

/// A plugin that was opened, but not started.
struct OpenedPlugin {
    api: Api,
    /// The metadata of its file from just before.
    metadata: Metadata,
    /// The SHA-256 of its file, if Fulmen downloaded it.
    sha256: Option<&'static str>,
}

fn check_version(path: &Path, api: Api) -> Result<()> {
    let version = version(api);
    if version.major == 0 && version.minor >= OLDEST_MINOR {
        return Ok(());
    }
    Err(Error::of(
        Fact::NotAPlugin,
        format!(
            "the plugin {} speaks PJRT API {version}; this program speaks 0.{OLDEST_MINOR} and later 0.x: use {}",
            path.display(),
            if version.major > 0 {
                "a plugin of one of these versions, or a newer Fulmen"
            } else {
                "a newer plugin"
            },
        ),
    ))
}

/// Opens the shared object, and calls its `GetPjrtApi`.
fn open(path: &Path) -> Result<Api> {
    let not_a_plugin = |why: String| {
        Error::of(
            Fact::NotAPlugin,
            format!("{} cannot be used as a PJRT plugin: {why}", path.display()),
        )
    };
    let c_path = CString::new(path.as_os_str().as_bytes()).map_err(|_| {
        error::invalid(format!("the path {} contains a NUL character", path.display()))
    })?;
    // SAFETY: the path is a C string. The file's constructors run here; the caller chose the file.
    let library = unsafe { libc::dlopen(c_path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        // For a file of another architecture, the dynamic loader reports that it does not exist.
        let here = env::consts::ARCH;
        return Err(not_a_plugin(format!(
            "the dynamic loader says: {}; use the path of a whole plugin (.so) for {here}",
            loader_error()
        )));
    }
    // SAFETY: the library is open and is never closed.
    let symbol = unsafe { libc::dlsym(library, c"GetPjrtApi".as_ptr()) };
    if symbol.is_null() {
        return Err(not_a_plugin(
            "it is a shared object but not a PJRT plugin: it has no GetPjrtApi".to_owned(),
        ));
    }
    // SAFETY: the header defines this type for the function with this name.
    let get: unsafe extern "C-unwind" fn() -> *const PJRT_Api =
        unsafe { std::mem::transmute(symbol) };
    // SAFETY: it has no arguments.
    let table = guarded("GetPjrtApi", || unsafe { get() });
    if table.is_null() {
        return Err(not_a_plugin("its GetPjrtApi returned null".to_owned()));
    }
    // SAFETY: every version's table starts with its own size.
    let size = unsafe { std::ptr::addr_of!((*table).struct_size).read() };
    if size < size_of::<PJRT_Api>() {
        return Err(not_a_plugin(format!(
            "its table of functions has {size} bytes, too few for a version"
        )));
    }
    // SAFETY: GetPjrtApi returned the table, and its library is never unloaded.
    Ok(unsafe { Api::new(table) })
}

/// The error of this thread's last call of a dl function.
pub(crate) fn loader_error() -> String {
    // SAFETY: dlerror returns null, or a C string that lives until this thread's next call of a dl
    // function.
    let message = unsafe { libc::dlerror() };
    if message.is_null() {
        return "the loader gives no reason".to_owned();
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned()
}
