//! Items that the command line of a program shares with this crate. They are not a public API.

pub use crate::callbacks::progress_bar::format_metrics;
pub use crate::host_memory::resident as resident_memory;
pub use crate::options::config_format::{json_value, toml_line};
pub use crate::options::lightning_names::{replacement_for, replacement_for_value};
pub use crate::options::nearest_name::nearest_name;
pub use crate::options::source_env;
pub use crate::secret::without_secrets;

/// The names of the options set on this builder so far. A command line calls this before it adds
/// its own options.
pub fn explicit(builder: &crate::TrainerBuilder) -> Vec<&'static str> {
    builder.trainer_args.explicit()
}
