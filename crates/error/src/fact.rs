//! What can be known about an error. The predicates of [`Error`](crate::Error) are made of it.

/// Something that is known about an error. An error gains facts on its way up: a full disk that ends
/// a save is also a failed checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact {
    /// Arguments are invalid, or an expression has a mistake.
    Usage,
    /// A plugin's function rejected its arguments. It is a mistake of the code that calls the
    /// function, so it is no longer known where that code reports a failure of the runtime.
    Rejected,
    /// An option, an environment variable or a choice of devices is invalid.
    Option,
    /// A file, a plugin, a checkpoint or a tensor does not exist.
    NotFound,
    /// The file system failed.
    Io,
    /// A disk or a quota is full.
    DiskFull,
    /// The host or the device ran out of memory.
    OutOfMemory,
    /// The plugin or the device failed.
    Runtime,
    /// Something did not happen in time.
    TimedOut,
    /// A thread, a dataset or a sampler panicked.
    Panic,
    /// The selected devices are not there.
    Devices,
    /// The file is not a PJRT plugin.
    NotAPlugin,
    /// The plugin does not have the function.
    Unsupported,
    /// Stored bytes of a plugin or a program are damaged, or belong to a different plugin.
    Corrupt,
    /// The plugin could not be downloaded.
    Fetch,
    /// A file of weights has an unknown format, or is damaged.
    Format,
    /// The names or shapes in a file of weights differ from the model's.
    Mismatch,
    /// A config belongs to another model, or asks for something unsupported.
    Config,
    /// The dataset or its loader failed.
    Data,
    /// A file of a dataset could not be read or has invalid content.
    File,
    /// An image ends too early.
    CutShort,
    /// A field of a sample differs from its declaration.
    Field,
    /// A label is outside the classes.
    Label,
    /// A checkpoint could not be written or read.
    Checkpoint,
    /// A checkpoint cannot be read.
    Unreadable,
    /// A checkpoint has changed since it was written.
    Damaged,
    /// A newer version of Fulmen wrote the checkpoint.
    Newer,
    /// A logger could not start to write.
    Logger,
    /// The processes of a run could not connect, differ, or lost one of them.
    Coordination,
    /// The coordinator refused the process.
    Refused,
    /// A process failed or left early.
    PeerLost,
    /// A process no longer answers.
    PeerSilent,
    /// The coordinator no longer answers.
    CoordinatorLost,
    /// The processes are about to run different things.
    Disagreement,
    /// The key already has a different value.
    Conflict,
}

/// A set of facts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts(u64);

impl Facts {
    pub(crate) fn has(self, fact: Fact) -> bool {
        self.0 & bit(fact) != 0
    }

    pub(crate) fn insert(&mut self, fact: Fact) {
        self.0 |= bit(fact);
    }

    pub(crate) fn remove(&mut self, fact: Fact) {
        self.0 &= !bit(fact);
    }
}

fn bit(fact: Fact) -> u64 {
    1 << fact as u32
}
