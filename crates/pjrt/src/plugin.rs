//! A loaded PJRT plugin. It opens the shared object and asks it who it is; running programs is the client's matter.

use std::collections::{BTreeMap, HashMap};
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
use crate::error::{Error, Kind, Result};
use crate::value::{Value, read_named};
use crate::{elf, environment, fetch, starting};

/// The oldest minor version whose struct layouts are those written down in `abi`.
pub(crate) const OLDEST_MINOR: i32 = 81;

/// The version of the PJRT C API that a plugin was compiled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ApiVersion {
    /// Changes when old callers break.
    pub major: i32,
    /// Grows with each addition.
    pub minor: i32,
}

impl fmt::Display for ApiVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// A PJRT plugin: the shared object that knows one kind of device. Clones are the same plugin.
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
    /// The file as it was when it was loaded.
    stamp: Stamp,
    identity: OnceLock<String>,
    /// Held while the file is hashed.
    hashing: Mutex<()>,
}

/// What tells a file from one that has taken its place, without reading it: length, time of change, number.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    len: u64,
    modified: (i64, i64),
    inode: u64,
}

impl Stamp {
    fn new(metadata: &Metadata) -> Self {
        Self { len: metadata.len(), modified: (metadata.mtime(), metadata.mtime_nsec()), inode: metadata.ino() }
    }
}

impl Plugin {
    /// Loads a plugin from its shared object. The same file loaded again is the same plugin; it is never unloaded.
    ///
    /// The first load of a process also readies the process: it sets `TF_CPP_MIN_LOG_LEVEL` to 3 (plugins print each
    /// error a second time otherwise) and, where there is no TPU, the variables that keep libtpu from searching for
    /// one; variables that are set already are left alone. The first load should come before other threads use the
    /// environment: foreign (C) code that reads a variable while this sets one is a race that cannot be prevented here.
    ///
    /// A non-empty `XLA_FLAGS` is refused, because an unknown flag in it ends the process; use
    /// [`CompileOptions::override_flag`](crate::CompileOptions::override_flag).
    ///
    /// If an earlier process did not exit but crashed or was killed while it started a plugin that Fulmen had
    /// [fetched](crate::fetch), the file is verified first; one that turns out to be damaged is fetched again.
    ///
    /// Loading runs the file's code: load only files that you trust as you would a program.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        static LOADED: Mutex<Option<HashMap<(u64, u64), Plugin>>> = Mutex::new(None);

        let path = path.as_ref();
        environment::refuse_xla_flags()?;
        let real = path
            .canonicalize()
            .map_err(|error| Error::io(format!("there is no PJRT plugin at {}", path.display()), error))?;
        let mut loaded = LOADED.lock();
        let loaded = loaded.get_or_insert_with(HashMap::new);
        if let Some(plugin) = loaded.get(&file_number(&look_at(&real)?)) {
            return Ok(plugin.clone());
        }
        let (api, metadata) = open_whole(&real)?;
        let (key, stamp) = (file_number(&metadata), Stamp::new(&metadata));
        let plugin =
            Self(Arc::new(Inner { api, path: real, stamp, identity: OnceLock::new(), hashing: Mutex::new(()) }));
        // SAFETY: this function takes nothing.
        unsafe { plugin.api().call(&mut PJRT_Plugin_Initialize_Args::new()) }
            .map_err(|error| error.during(format_args!("starting the plugin {}", plugin.path().display())))?;
        loaded.insert(key, plugin.clone());
        Ok(plugin)
    }

    pub(crate) fn api(&self) -> Api {
        self.0.api
    }

    /// Where the plugin was loaded from, without links.
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The version of the C API that it speaks.
    pub fn api_version(&self) -> ApiVersion {
        version(self.0.api)
    }

    /// What the plugin tells of itself, such as `stablehlo_current_version`.
    pub fn attributes(&self) -> Result<BTreeMap<String, Value>> {
        let mut args = PJRT_Plugin_Attributes_Args::new();
        // SAFETY: this function only answers, and what it answers lives as long as the process.
        unsafe {
            self.api().call(&mut args)?;
            read_named(args.attributes, args.num_attributes)
        }
    }

    /// A name for exactly this file, for deciding whether a stored executable is this plugin's: the SHA-256 of the file,
    /// found out at the first call. That fails if the file has been replaced since it was loaded.
    pub fn identity(&self) -> Result<&str> {
        if let Some(identity) = self.0.identity.get() {
            return Ok(identity);
        }
        // Two threads that ask at once hash the file once.
        let _hashing = self.0.hashing.lock();
        if let Some(identity) = self.0.identity.get() {
            return Ok(identity);
        }
        let digest = crate::hash::of_file(self.path())?;
        // Looked at after reading, so that it also covers the time of reading.
        let unchanged = self.path().metadata().is_ok_and(|metadata| Stamp::new(&metadata) == self.0.stamp);
        if !unchanged {
            return Err(Error::new(
                Kind::Io,
                format!(
                    "the plugin's file {} was replaced after it was loaded; restart the program",
                    self.path().display()
                ),
            ));
        }
        Ok(self.0.identity.get_or_init(|| digest))
    }

    /// The identity and the state that the file has now, to be kept for [`Plugin::recall_identity`].
    pub(crate) fn identity_record(&self) -> Result<String> {
        Ok(format!("{}\n{}\n", self.identity()?, file_state(&look_at(self.path())?)))
    }

    /// Takes the identity from a file that has an [`identity_record`](Plugin::identity_record), if the plugin's file has
    /// not changed since; says whether the file has the record of this plugin.
    pub(crate) fn recall_identity(&self, record: &Path) -> bool {
        let state = look_at(self.path()).ok().filter(|metadata| Stamp::new(metadata) == self.0.stamp);
        let (Some(metadata), Ok(text)) = (state, std::fs::read_to_string(record)) else { return false };
        let Some((identity, state)) = text.split_once('\n') else { return false };
        let whole = identity.len() == 64 && identity.bytes().all(|byte| byte.is_ascii_hexdigit());
        let unchanged = whole && state.trim_end() == file_state(&metadata);
        unchanged && self.0.identity.get_or_init(|| identity.to_owned()) == identity
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Plugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Plugin({}, PJRT API {})", self.path().display(), self.api_version())
    }
}

fn version(api: Api) -> ApiVersion {
    let (major, minor) = api.version();
    ApiVersion { major, minor }
}

/// The version that a plugin speaks, if it is one that can be used. The plugin is opened for this, but not started.
pub(crate) fn version_of(path: &Path) -> Result<ApiVersion> {
    let real = path
        .canonicalize()
        .map_err(|error| Error::io(format!("there is no PJRT plugin at {}", path.display()), error))?;
    Ok(version(open_whole(&real)?.0))
}

fn look_at(path: &Path) -> Result<Metadata> {
    path.metadata().map_err(|error| Error::io(format!("cannot look at {}", path.display()), error))
}

/// What makes a file the same file under all its names.
fn file_number(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// What differs once a file's content has changed, in one line. Programs cannot set the time of change.
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

/// Opens a plugin that can be used, and gives what its file was just before. One that was fetched and is found to be
/// damaged is fetched again.
fn open_whole(path: &Path) -> Result<(Api, Metadata)> {
    let attempt = || -> Result<(Api, Metadata)> {
        elf::check(path)?;
        environment::prepare();
        let metadata = look_at(path)?;
        let api = open(path)?;
        check_version(path, api)?;
        Ok((api, metadata))
    };
    starting::begin(path)?;
    match attempt() {
        Err(error) if error.is_not_a_plugin() && fetch::mend(path)? => attempt(),
        result => result,
    }
}

fn check_version(path: &Path, api: Api) -> Result<()> {
    let version = version(api);
    if version.major == 0 && version.minor >= OLDEST_MINOR {
        return Ok(());
    }
    Err(Error::new(
        Kind::NotAPlugin,
        format!(
            "the plugin {} speaks PJRT API {version}; this program speaks 0.{OLDEST_MINOR} and later 0.x: use a {} plugin",
            path.display(),
            if version.major > 0 { "different (or this program's newer release with that)" } else { "newer" },
        ),
    ))
}

/// Opens the shared object and asks for its table of functions.
fn open(path: &Path) -> Result<Api> {
    let not_a_plugin = |why: String| {
        Error::new(Kind::NotAPlugin, format!("{} cannot be used as a PJRT plugin: {why}", path.display()))
    };
    let c_path = CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Error::invalid(format!("the path {} has a NUL in it", path.display())))?;
    // SAFETY: the path is a C string. The file's constructors run here; the caller chose the file.
    let library = unsafe { libc::dlopen(c_path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return Err(not_a_plugin(format!("the dynamic loader says: {}", loader_error())));
    }
    // SAFETY: the library is open and is never closed.
    let symbol = unsafe { libc::dlsym(library, c"GetPjrtApi".as_ptr()) };
    if symbol.is_null() {
        return Err(not_a_plugin("it is a shared object but no PJRT plugin: it has no GetPjrtApi".to_owned()));
    }
    // SAFETY: the header gives a function of this name this type.
    let get: unsafe extern "C-unwind" fn() -> *const PJRT_Api = unsafe { std::mem::transmute(symbol) };
    // SAFETY: it takes nothing.
    let table = guarded("GetPjrtApi", || unsafe { get() });
    if table.is_null() {
        return Err(not_a_plugin("its GetPjrtApi gave nothing".to_owned()));
    }
    // SAFETY: every version's table starts with its own size.
    let size = unsafe { std::ptr::addr_of!((*table).struct_size).read() };
    if size < size_of::<PJRT_Api>() {
        return Err(not_a_plugin(format!("its table of functions has {size} bytes, too few to hold a version")));
    }
    // SAFETY: the table came from GetPjrtApi and belongs to a library that stays.
    Ok(unsafe { Api::new(table) })
}

/// What went wrong in this thread's last call of a dl function.
pub(crate) fn loader_error() -> String {
    // SAFETY: dlerror gives null or a C string that stays until this thread's next call of a dl function.
    let message = unsafe { libc::dlerror() };
    if message.is_null() {
        return "no reason given".to_owned();
    }
    // SAFETY: as above.
    unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned()
}
