//! Flags with underscores in place of dashes: `--dry_run`.

use std::ffi::OsString;

use clap::Command;
use fulmen_durable::with_dashes;

/// Writes `--dry_run` as `--dry-run`, for the flags of the subcommand that the arguments select.
/// What follows `--` belongs to another program.
pub(crate) fn accept(mut args: Vec<OsString>, command: &Command) -> Vec<OsString> {
    let mut command = command;
    for arg in args.iter_mut().skip(1).take_while(|arg| *arg != "--") {
        let Some(text) = arg.to_str() else { continue };
        if !text.starts_with("--") {
            command = command.find_subcommand(text).unwrap_or(command);
        } else if let Some(dashed) = with_dashes(text, |flag| has_flag(command, flag)) {
            *arg = dashed.into();
        }
    }
    args
}

fn has_flag(command: &Command, name: &str) -> bool {
    command.get_arguments().any(|arg| arg.get_long() == Some(name))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn accepted(line: &str) -> String {
        let args = line.split(' ').map(OsString::from).collect();
        let args = accept(args, &crate::Arguments::command());
        args.join(" ".as_ref()).into_string().unwrap()
    }

    #[test]
    fn a_flag_may_have_underscores() {
        assert_eq!(
            accepted("fulmen cache warm --images a_b --dry_run --data_version=x_y"),
            "fulmen cache warm --images a_b --dry-run --data-version=x_y"
        );
        let of_another = "fulmen pod run --virtual 2x1 -- ./train --dry_run";
        assert_eq!(accepted(of_another), of_another);
        let unknown = "fulmen runs list --dry_run";
        assert_eq!(accepted(unknown), unknown, "the error names what was typed");
    }
}
