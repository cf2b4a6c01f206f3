//! What an error says of its cause: each predicate, once for all crates.

use crate::Error;
use crate::fact::Fact;

/// What the cause is.
impl Error {
    /// Whether the mistake is in the program, an argument or an option: an expression whose shapes do
    /// not match, a batch size of 0, arrays of different lengths, a name that does not exist.
    pub fn is_usage(&self) -> bool {
        self.has(Fact::Usage) || self.has(Fact::Rejected) || self.has(Fact::Option)
    }

    /// Whether the mistake is in how the program was started, not in its code: an invalid option or
    /// environment variable, or devices that this machine does not have. Then
    /// [`is_usage`](Error::is_usage) is true too.
    pub fn is_option(&self) -> bool {
        self.has(Fact::Option)
    }

    /// Whether a file, a plugin, a device, a checkpoint or a tensor in it does not exist.
    pub fn is_not_found(&self) -> bool {
        self.has(Fact::NotFound)
    }

    /// Whether the file system failed: file not found, permission denied, disk full.
    pub fn is_io(&self) -> bool {
        self.has(Fact::Io)
    }

    /// Whether a disk or a quota has no room, for example for a checkpoint, a log or a plugin.
    pub fn is_disk_full(&self) -> bool {
        self.has(Fact::DiskFull)
    }

    /// Whether there was not enough memory, on the host or on the device.
    pub fn is_out_of_memory(&self) -> bool {
        self.has(Fact::OutOfMemory)
    }

    /// Whether the plugin, the device or a host allocation failed, although the request was valid.
    pub fn is_runtime(&self) -> bool {
        self.has(Fact::Runtime)
    }

    /// Whether something did not happen in time: a process did not arrive, a value was not put, or
    /// checkpoints were not copied. Checkpoints are still in the store where they were written.
    pub fn is_timeout(&self) -> bool {
        self.has(Fact::TimedOut)
    }

    /// Whether a thread, a dataset or a sampler panicked.
    pub fn is_panic(&self) -> bool {
        self.has(Fact::Panic)
    }
}

/// Devices and plugins.
impl Error {
    /// Whether this machine does not have the selected accelerator, a plugin for it, or the selected
    /// devices.
    pub fn is_devices(&self) -> bool {
        self.has(Fact::Devices)
    }

    /// Whether a file is not a PJRT plugin, or its version is not supported.
    pub fn is_not_a_plugin(&self) -> bool {
        self.has(Fact::NotAPlugin)
    }

    /// Whether a plugin does not have the function, or has not implemented it.
    pub fn is_unsupported(&self) -> bool {
        self.has(Fact::Unsupported)
    }

    /// Whether stored bytes are damaged, or were written by another plugin or for another machine.
    pub fn is_corrupt(&self) -> bool {
        self.has(Fact::Corrupt)
    }

    /// Whether a plugin could not be downloaded.
    pub fn is_fetch(&self) -> bool {
        self.has(Fact::Fetch)
    }

    /// Whether the message comes from the plugin, and may differ between plugins.
    pub fn is_from_plugin(&self) -> bool {
        self.code().is_some()
    }
}

/// Weights and models.
impl Error {
    /// Whether a file of weights has an unknown format or is damaged.
    pub fn is_format(&self) -> bool {
        self.has(Fact::Format)
    }

    /// Whether the names and shapes in a file differ from the model's. Then
    /// [`detail`](Error::detail) has a `LoadReport`.
    pub fn is_mismatch(&self) -> bool {
        self.has(Fact::Mismatch)
    }

    /// Whether a config belongs to a different model, or asks for an unsupported feature.
    pub fn is_config(&self) -> bool {
        self.has(Fact::Config)
    }
}

/// Data.
impl Error {
    /// Whether the dataset or its loader failed.
    pub fn is_data(&self) -> bool {
        self.has(Fact::Data)
    }

    /// Whether a file of a dataset could not be read or has invalid content.
    pub fn is_file(&self) -> bool {
        self.has(Fact::File)
    }

    /// Whether an image ends too early.
    pub fn is_cut_short(&self) -> bool {
        self.has(Fact::CutShort)
    }

    /// Whether a field's name, dtype or size differs from the declaration.
    pub fn is_field(&self) -> bool {
        self.has(Fact::Field)
    }

    /// Whether a label is outside the classes.
    pub fn is_label(&self) -> bool {
        self.has(Fact::Label)
    }
}

/// Runs and their checkpoints.
impl Error {
    /// Whether a checkpoint could not be written or read.
    pub fn is_checkpoint(&self) -> bool {
        self.has(Fact::Checkpoint)
    }

    /// Whether a checkpoint cannot be read, so that the caller should try an earlier one.
    pub fn is_unreadable(&self) -> bool {
        self.has(Fact::Unreadable)
    }

    /// Whether a checkpoint has changed since it was written: a byte differs, or a shard is missing or
    /// truncated.
    pub fn is_damaged(&self) -> bool {
        self.has(Fact::Damaged)
    }

    /// Whether a newer version of Fulmen wrote the checkpoint.
    pub fn is_newer(&self) -> bool {
        self.has(Fact::Newer)
    }

    /// Whether a logger could not start to write.
    pub fn is_logger(&self) -> bool {
        self.has(Fact::Logger)
    }

    /// Whether Ctrl-C, SIGTERM or SIGHUP ended the run, in this process or in another one before its
    /// first step. An interrupted fit is not an error. [`signal`](Error::signal) has the number.
    pub fn is_interrupted(&self) -> bool {
        self.signal().is_some()
    }
}

/// The processes of a run.
impl Error {
    /// Whether the processes of a run could not connect, differ in what they run, or lost one of
    /// them. [`processes`](Error::processes) lists the processes concerned.
    pub fn is_coordination(&self) -> bool {
        self.has(Fact::Coordination)
    }

    /// Whether the coordinator refused this process.
    pub fn is_refused(&self) -> bool {
        self.has(Fact::Refused)
    }

    /// Whether a process is lost: it died, fell silent, failed or left early.
    pub fn is_peer_lost(&self) -> bool {
        self.has(Fact::PeerLost) || self.has(Fact::PeerSilent)
    }

    /// Whether a process of the run no longer answers, for a reason outside its program: it was killed
    /// or stopped, or its host is not reachable. Then the same run, started again, may succeed. So a
    /// program with a command line exits with code 75.
    pub fn is_peer_silent(&self) -> bool {
        self.has(Fact::PeerSilent) || self.has(Fact::CoordinatorLost)
    }

    /// Whether the coordinator no longer answers.
    pub fn is_coordinator_lost(&self) -> bool {
        self.has(Fact::CoordinatorLost)
    }

    /// Whether the processes are about to run different things.
    pub fn is_disagreement(&self) -> bool {
        self.has(Fact::Disagreement)
    }

    /// Whether a key of the coordinator already has a different value.
    pub fn is_conflict(&self) -> bool {
        self.has(Fact::Conflict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Predicate {
        name: &'static str,
        holds: fn(&Error) -> bool,
    }

    macro_rules! predicates {
        ($($name:ident)*) => {
            [$(Predicate { name: stringify!($name), holds: Error::$name }),*]
        };
    }

    const PREDICATES: [Predicate; 35] = predicates! {
        is_usage is_option is_not_found is_io is_disk_full is_out_of_memory is_runtime is_timeout
        is_panic is_devices is_not_a_plugin is_unsupported is_corrupt is_fetch is_from_plugin
        is_format is_mismatch is_config is_data is_file is_cut_short is_field is_label is_checkpoint
        is_unreadable is_damaged is_newer is_logger is_coordination is_refused is_peer_lost
        is_peer_silent is_coordinator_lost is_disagreement is_conflict
    };

    fn true_of(error: &Error) -> Vec<&'static str> {
        let holds = PREDICATES.iter().filter(|predicate| (predicate.holds)(error));
        holds.map(|predicate| predicate.name).collect()
    }

    #[test]
    fn each_fact_makes_its_own_predicates_true_and_no_other() {
        use Fact::*;
        for (fact, expected) in [
            (Usage, &["is_usage"][..]),
            (Rejected, &["is_usage"]),
            (Option, &["is_usage", "is_option"]),
            (NotFound, &["is_not_found"]),
            (Io, &["is_io"]),
            (DiskFull, &["is_disk_full"]),
            (OutOfMemory, &["is_out_of_memory"]),
            (Runtime, &["is_runtime"]),
            (TimedOut, &["is_timeout"]),
            (Panic, &["is_panic"]),
            (Devices, &["is_devices"]),
            (NotAPlugin, &["is_not_a_plugin"]),
            (Unsupported, &["is_unsupported"]),
            (Corrupt, &["is_corrupt"]),
            (Fetch, &["is_fetch"]),
            (Format, &["is_format"]),
            (Mismatch, &["is_mismatch"]),
            (Config, &["is_config"]),
            (Data, &["is_data"]),
            (File, &["is_file"]),
            (CutShort, &["is_cut_short"]),
            (Field, &["is_field"]),
            (Label, &["is_label"]),
            (Checkpoint, &["is_checkpoint"]),
            (Unreadable, &["is_unreadable"]),
            (Damaged, &["is_damaged"]),
            (Newer, &["is_newer"]),
            (Logger, &["is_logger"]),
            (Coordination, &["is_coordination"]),
            (Refused, &["is_refused"]),
            (PeerLost, &["is_peer_lost"]),
            (PeerSilent, &["is_peer_lost", "is_peer_silent"]),
            (CoordinatorLost, &["is_peer_silent", "is_coordinator_lost"]),
            (Disagreement, &["is_disagreement"]),
            (Conflict, &["is_conflict"]),
        ] {
            let error = Error::of(fact, "x").context("y").note("z");
            assert_eq!(true_of(&error), expected, "{fact:?}");
            assert!(true_of(&error.without(fact)).is_empty(), "{fact:?}");
        }
        assert_eq!(true_of(&Error::with_message("x").with_code("ABORTED")), ["is_from_plugin"]);
        assert!(Error::with_message("x").with_signal(Some(15)).is_interrupted());
    }

    #[test]
    fn a_failure_of_the_runtime_is_the_users_mistake_only_in_an_expression() {
        let rejected = Error::of(Fact::Rejected, "the argument has 3 elements");
        assert_eq!(true_of(&Error::runtime("running", rejected)), ["is_runtime"]);
        let mistake = Error::usage("the shapes differ");
        assert_eq!(true_of(&Error::runtime("stacking x", mistake)), ["is_usage"]);
        let short = Error::of(Fact::OutOfMemory, "no memory");
        let expected = ["is_out_of_memory", "is_runtime"];
        assert_eq!(true_of(&Error::runtime("running", short)), expected);
    }

    #[test]
    fn an_error_of_the_system_is_recognized_in_every_constructor() {
        use std::io;
        use std::path::Path;

        let kinds = [
            (io::ErrorKind::StorageFull, "is_disk_full"),
            (io::ErrorKind::QuotaExceeded, "is_disk_full"),
            (io::ErrorKind::NotFound, "is_not_found"),
        ];
        for (kind, fact) in kinds {
            let source = || io::Error::from(kind);
            assert_eq!(true_of(&Error::new(source())), [fact]);
            assert_eq!(true_of(&Error::from(source()).at_sample(3, None)), [fact, "is_data"]);
            assert!(true_of(&Error::runtime("writing", source())).contains(&fact));
            assert!(true_of(&Error::of_io("writing", source())).contains(&fact));
            let of_file = Error::io(Path::new("x"), "writing", source());
            assert!(true_of(&of_file).contains(&fact) && of_file.is_file() && of_file.is_io());
        }
    }
}
