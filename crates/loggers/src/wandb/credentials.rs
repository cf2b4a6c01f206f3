//! The settings of a [`WandbLogger`](super::WandbLogger) in environment variables, and its API key
//! in `WANDB_API_KEY` or `~/.netrc`, where `wandb login` writes it.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::Resume;

/// The settings, without the key.
#[derive(Debug, PartialEq)]
pub(super) struct Settings {
    pub(super) server: String,
    pub(super) project: String,
    pub(super) entity: Option<String>,
    pub(super) run_id: Option<String>,
    pub(super) name: Option<String>,
    pub(super) resume: Resume,
    pub(super) labels: Labels,
}

/// What the server shows of a run besides its name.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Labels {
    pub(super) group: Option<String>,
    pub(super) job_type: Option<String>,
    pub(super) notes: Option<String>,
    /// `None` keeps the tags of a run that continues.
    pub(super) tags: Option<Vec<String>>,
}

impl Settings {
    /// The settings in these variables.
    pub(super) fn read(variable: impl Fn(&str) -> Option<String>) -> io::Result<Settings> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let refuse = |message: String| Err(io::Error::new(ErrorKind::InvalidInput, message));
        if let Some(mode) =
            set("WANDB_MODE").filter(|mode| !["online", "shared"].contains(&&**mode))
        {
            return refuse(format!(
                "WANDB_MODE is {mode}, but this logger is always online; unset it, or leave `wandb` out of `loggers`"
            ));
        }
        if set("WANDB_DISABLED").is_some_and(|value| !["false", "0"].contains(&&*value)) {
            return refuse(
                "WANDB_DISABLED is set; unset it, or leave `wandb` out of `loggers`".to_owned(),
            );
        }
        let run_id = set("WANDB_RUN_ID");
        let is_part = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if let Some(id) = run_id.as_deref().filter(|id| id.len() > 128 || !id.chars().all(is_part))
        {
            return refuse(format!(
                "WANDB_RUN_ID is `{id}`; expected up to 128 letters, digits, `-`, `_` and `.`"
            ));
        }
        let resume = match set("WANDB_RESUME").as_deref() {
            None | Some("allow") => Resume::Allow,
            Some("must") => Resume::Must,
            Some("never") => Resume::Never,
            Some(other) => {
                return refuse(format!("WANDB_RESUME is {other}; expected allow, must or never"));
            }
        };
        if resume == Resume::Must && run_id.is_none() {
            return refuse("WANDB_RESUME is must, but WANDB_RUN_ID names no run".to_owned());
        }
        let server = set("WANDB_BASE_URL").unwrap_or_else(|| "https://api.wandb.ai".to_owned());
        if !server.starts_with("http://") && !server.starts_with("https://") {
            return refuse(format!(
                "WANDB_BASE_URL is {server}; expected an address such as https://api.wandb.ai"
            ));
        }
        let labels = Labels {
            group: set("WANDB_RUN_GROUP"),
            job_type: set("WANDB_JOB_TYPE"),
            notes: set("WANDB_NOTES"),
            tags: set("WANDB_TAGS").map(|list| tags(&list)),
        };
        Ok(Settings {
            server,
            project: set("WANDB_PROJECT").unwrap_or_else(|| "uncategorized".to_owned()),
            entity: set("WANDB_ENTITY"),
            run_id,
            name: set("WANDB_NAME"),
            resume,
            labels,
        })
    }
}

/// The tags in a list that is separated by commas.
fn tags(list: &str) -> Vec<String> {
    let tags = list.split(',').map(str::trim).filter(|tag| !tag.is_empty());
    tags.map(str::to_owned).collect()
}

/// The API key for a server: in `WANDB_API_KEY`, or in the netrc file.
pub(super) fn api_key(
    server: &str,
    variable: impl Fn(&str) -> Option<String>,
) -> io::Result<String> {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty());
    if let Some(key) = set("WANDB_API_KEY") {
        return Ok(key);
    }
    let host = server.split_once("://").map_or(server, |(_, address)| address);
    let host = host.split('/').next().unwrap_or(host);
    let file =
        set("NETRC").map(PathBuf::from).or_else(|| Some(Path::new(&set("HOME")?).join(".netrc")));
    let text = file.and_then(|file| fulmen_durable::read_text(&file).ok()).unwrap_or_default();
    netrc_password(&text, host).ok_or_else(|| {
        let message = format!(
            "there is no API key for {host}: set WANDB_API_KEY to that of https://wandb.ai/authorize, or run `wandb login`"
        );
        io::Error::new(ErrorKind::PermissionDenied, message)
    })
}

/// The password of a machine in a netrc file.
fn netrc_password(text: &str, machine: &str) -> Option<String> {
    let mut words = text.split_whitespace();
    let mut is_machine = false;
    while let Some(word) = words.next() {
        match word {
            "machine" => is_machine = words.next() == Some(machine),
            "default" => is_machine = false,
            "password" if is_machine => return words.next().map(str::to_owned),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_variables(pairs: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> {
        let pairs: Vec<(String, String)> =
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        move |name| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.clone())
    }

    #[test]
    fn the_key_comes_from_the_variable_or_the_file_of_wandb_login() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().to_str().unwrap();
        let key = |server: &str, pairs: &[(&str, &str)]| api_key(server, in_variables(pairs));
        let cloud = "https://api.wandb.ai";
        let error = key(cloud, &[("HOME", home)]).unwrap_err().to_string();
        assert!(
            error.starts_with("there is no API key for api.wandb.ai: set WANDB_API_KEY"),
            "{error}"
        );
        let netrc = "machine other.org\n  login me\n  password no\nmachine api.wandb.ai login user password abc\nmachine 127.0.0.1:8080\n  login user\n  password local\n";
        std::fs::write(folder.path().join(".netrc"), netrc).unwrap();
        assert_eq!(key(cloud, &[("HOME", home)]).unwrap(), "abc");
        assert_eq!(key("http://127.0.0.1:8080", &[("HOME", home)]).unwrap(), "local");
        assert_eq!(key(cloud, &[("HOME", home), ("WANDB_API_KEY", "first")]).unwrap(), "first");
        let other = format!("{home}/other");
        std::fs::write(&other, "machine api.wandb.ai password elsewhere").unwrap();
        assert_eq!(key(cloud, &[("HOME", home), ("NETRC", &other)]).unwrap(), "elsewhere");
    }

    #[test]
    fn settings_that_the_logger_cannot_follow_are_errors() {
        let read = |pairs: &[(&str, &str)]| Settings::read(in_variables(pairs));
        let settings = read(&[]).unwrap();
        assert_eq!(
            (&*settings.server, &*settings.project),
            ("https://api.wandb.ai", "uncategorized")
        );
        assert_eq!(settings.resume, Resume::Allow);
        assert_eq!(settings.labels, Labels::default());
        for (pairs, expected) in [
            (&[("WANDB_MODE", "offline")][..], "WANDB_MODE is offline"),
            (&[("WANDB_DISABLED", "true")], "WANDB_DISABLED is set"),
            (&[("WANDB_RUN_ID", "a/b")], "WANDB_RUN_ID is `a/b`"),
            (&[("WANDB_RESUME", "auto")], "WANDB_RESUME is auto; expected allow, must or never"),
            (&[("WANDB_RESUME", "must")], "WANDB_RUN_ID names no run"),
            (&[("WANDB_BASE_URL", "ftp://x")], "WANDB_BASE_URL is ftp://x"),
        ] {
            let error = read(pairs).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
