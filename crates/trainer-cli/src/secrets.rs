//! Which arguments are secret. Their values are used, but neither printed nor recorded.

use std::any::TypeId;

use clap::{Arg, ArgMatches, Command};
use fulmen_trainer::Secret;

/// Names of arguments that are secret even if their type is not [`Secret`].
const NAMES: [&str; 8] = [
    "hub_token",
    "access_token",
    "auth_token",
    "api_token",
    "api_key",
    "secret_key",
    "client_secret",
    "password",
];

/// Whether an argument is secret: its type is [`Secret`], or its name says so.
pub(crate) fn is_secret(arg: &Arg) -> bool {
    let name = arg.get_long().unwrap_or(arg.get_id().as_str()).replace('-', "_").to_lowercase();
    let has_name = NAMES.iter().any(|secret| {
        name.strip_suffix(secret).is_some_and(|rest| rest.is_empty() || rest.ends_with('_'))
    });
    arg.get_value_parser().type_id() == TypeId::of::<Secret>()
        || has_name && arg.get_action().takes_values()
}

/// Keeps the values of secret arguments out of `--help`.
pub(crate) fn hide_in_help(arg: Arg) -> Arg {
    if is_secret(&arg) { arg.hide_env_values(true).hide_default_value(true) } else { arg }
}

/// Declares the values of secret arguments as secrets, so that nothing writes them.
pub(crate) fn declare(command: &Command, matches: &ArgMatches) {
    for arg in command.get_arguments().filter(|arg| is_secret(arg)) {
        let values = matches.try_get_raw(arg.get_id().as_str()).ok().flatten();
        for value in values.into_iter().flatten() {
            Secret::new(value.to_string_lossy());
        }
    }
}
