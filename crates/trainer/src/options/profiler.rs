//! [`Profiler`]: what a fit records of where its time goes. Who does it is in `run/profiler.rs`.

use crate::options::named::named;

/// What a fit records of where its time goes, for a look at it in a trace viewer.
///
/// ```
/// use fulmen_trainer::Profiler;
/// assert_eq!("host".parse::<Profiler>()?, Profiler::Host);
/// # Ok::<(), fulmen_trainer::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Profiler {
    /// Nothing, until `fulmen profile` asks for it.
    #[default]
    None,
    /// What the threads of this process do, over the whole fit.
    Host,
    /// That, and what the plugin records of its devices in ten of the first steps.
    Xla,
}

const NAMES: [(&str, Profiler); 3] = [("none", Profiler::None), ("host", Profiler::Host), ("xla", Profiler::Xla)];

named!(Profiler, "profiler");
