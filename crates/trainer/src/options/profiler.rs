//! [`Profiler`]: the trace that a fit records. `session/profiler.rs` records it.

use crate::options::named_enum::named_enum;

/// The trace that a fit records, for trace viewers.
///
/// ```
/// use fulmen_trainer::Profiler;
/// assert_eq!("host".parse::<Profiler>()?, Profiler::Host);
/// # Ok::<(), fulmen_trainer::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Profiler {
    /// Nothing, except what `fulmen profile` requests.
    #[default]
    None,
    /// The activity of this process's threads, over the whole fit.
    Host,
    /// The activity of the threads, and the plugin's trace of its devices in ten of the first
    /// steps.
    Xla,
}

const NAMES: [(&str, Profiler); 3] =
    [("none", Profiler::None), ("host", Profiler::Host), ("xla", Profiler::Xla)];

named_enum!(Profiler, "profiler");
