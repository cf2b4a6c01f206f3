//! What the command line of a program shares with this crate. Nothing here is promised to anyone else.

pub use crate::callbacks::progress_bar::spell;
pub use crate::options::nearest::nearest;
pub use crate::options::old_names::instead;
pub use crate::options::typed::{toml, typed};
