//! The environment variables of `huggingface_hub`: the hub's address, the token, and whether requests
//! are forbidden.
//!
//! Out of scope: requests (`client`).

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::Duration;

use fulmen_data::{Error, Result};
use reqwest::Url;
use reqwest::header::HeaderValue;

/// The hub if `HF_ENDPOINT` is not set.
const HUB: &str = "https://huggingface.co";

const MAX_TOKEN_BYTES: u64 = 64 << 10;

const GIVE_UP_VARIABLE: &str = "FULMEN_STORE_GIVE_UP_SECONDS";

/// How to reach the hub.
pub(super) struct Settings {
    /// The hub's address, without a slash at the end.
    pub(super) endpoint: Url,
    /// The value of the header `Authorization`.
    pub(super) token: Option<HeaderValue>,
    /// How long to repeat a request without progress.
    pub(super) give_up: Duration,
}

type Variable<'a> = &'a dyn Fn(&str) -> Option<OsString>;

impl Settings {
    /// Reads the variables, of which empty ones count as not set.
    pub(super) fn read(variable: Variable<'_>) -> Result<Settings> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let offline = set("HF_HUB_OFFLINE").unwrap_or_default().to_string_lossy().to_uppercase();
        if ["1", "ON", "YES", "TRUE"].contains(&offline.as_str()) {
            return Err(Error::usage(
                "HF_HUB_OFFLINE forbids requests to the hub, and files are missing here; unset it, or copy the files \
                 from a machine that has them",
            ));
        }
        let give_up = match set(GIVE_UP_VARIABLE) {
            None => Duration::from_secs(180),
            Some(text) => seconds(&text.to_string_lossy())?,
        };
        Ok(Settings { endpoint: endpoint(set("HF_ENDPOINT"))?, token: token(&set)?, give_up })
    }
}

fn seconds(text: &str) -> Result<Duration> {
    let seconds = text.trim().parse().ok().and_then(|time| Duration::try_from_secs_f64(time).ok());
    seconds.ok_or_else(|| {
        let text = text.escape_debug();
        Error::usage(format!(
            "{GIVE_UP_VARIABLE} is `{text}`; expected a number of seconds, as in 20"
        ))
    })
}

fn endpoint(address: Option<OsString>) -> Result<Url> {
    let text = address.map_or(HUB.to_owned(), |text| text.to_string_lossy().into_owned());
    let url = Url::parse(text.trim_end_matches('/')).ok().filter(|url| {
        let is_plain = url.query().is_none() && url.fragment().is_none();
        ["http", "https"].contains(&url.scheme()) && url.has_host() && is_plain
    });
    let url = url.ok_or_else(|| {
        let text = fulmen_durable::messages::without_user(&text).escape_debug().to_string();
        Error::usage(format!("HF_ENDPOINT is `{text}`; expected an address such as {HUB}"))
    })?;
    if url.username().is_empty() && url.password().is_none() {
        Ok(url)
    } else {
        Err(Error::usage("HF_ENDPOINT has a user or a password; put the token into HF_TOKEN"))
    }
}

fn token(set: Variable<'_>) -> Result<Option<HeaderValue>> {
    let named = ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"];
    let named = named.into_iter().find_map(|name| Some((name.to_owned(), set(name)?)));
    let (place, text) = match named {
        Some((name, value)) => (name, value.to_string_lossy().into_owned()),
        None => {
            let Some(path) = token_file(set) else { return Ok(None) };
            match fulmen_durable::read_regular(&path, MAX_TOKEN_BYTES) {
                Ok(bytes) => {
                    (path.display().to_string(), String::from_utf8_lossy(&bytes).into_owned())
                }
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(Error::io(&path, "cannot read the hub's token", error)),
            }
        }
    };
    if text.trim().is_empty() {
        return Ok(None);
    }
    // The message does not show the token.
    let is_token = text.trim().bytes().all(|byte| byte.is_ascii_graphic());
    let header = HeaderValue::from_str(&format!("Bearer {}", text.trim())).ok();
    let mut header = header.filter(|_| is_token).ok_or_else(|| {
        Error::usage(format!("{place}: this is not a token of a hub; expected letters as in hf_…"))
    })?;
    header.set_sensitive(true);
    Ok(Some(header))
}

fn token_file(set: Variable<'_>) -> Option<PathBuf> {
    let path = |name| set(name).map(PathBuf::from);
    let home = || path("HOME").map(|home| home.join(".cache"));
    let cache = || path("XDG_CACHE_HOME").or_else(home).map(|cache| cache.join("huggingface"));
    path("HF_TOKEN_PATH")
        .or_else(|| path("HF_HOME").or_else(cache).map(|folder| folder.join("token")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Result<Settings> {
        Settings::read(&|name| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(*value))
        })
    }

    fn token_of(variables: &[(&str, &str)]) -> Option<String> {
        let token = settings(variables).unwrap().token?;
        assert!(token.is_sensitive());
        Some(token.to_str().unwrap().to_owned())
    }

    #[test]
    fn the_token_is_where_huggingface_hub_looks_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().to_str().unwrap();
        assert_eq!(token_of(&[]), None);
        assert_eq!(token_of(&[("HF_HOME", home)]), None);
        std::fs::write(folder.path().join("token"), "hf_file\n").unwrap();
        let file = Some("Bearer hf_file".to_owned());
        assert_eq!(token_of(&[("HF_HOME", home)]), file);
        assert_eq!(token_of(&[("HF_HOME", home), ("HF_TOKEN", "")]), file);
        assert_eq!(token_of(&[("HF_TOKEN_PATH", &format!("{home}/token"))]), file);
        let variable = token_of(&[("HF_HOME", home), ("HF_TOKEN", " hf_variable ")]);
        assert_eq!(variable.as_deref(), Some("Bearer hf_variable"));
        std::fs::create_dir_all(folder.path().join(".cache/huggingface")).unwrap();
        std::fs::write(folder.path().join(".cache/huggingface/token"), "hf_cache").unwrap();
        assert_eq!(token_of(&[("HOME", home)]).as_deref(), Some("Bearer hf_cache"));
        let error = settings(&[("HF_TOKEN", "hf_a\nX-Other: secret")]).err().unwrap().to_string();
        assert!(error.contains("HF_TOKEN") && !error.contains("secret"), "{error}");
    }

    #[test]
    fn an_address_is_one_of_the_web() {
        let endpoint = |text| settings(&[("HF_ENDPOINT", text)]).map(|it| it.endpoint.to_string());
        assert_eq!(endpoint("").unwrap(), "https://huggingface.co/");
        assert_eq!(endpoint("http://host/api/hf//").unwrap(), "http://host/api/hf");
        for wrong in ["huggingface.co", "file:///x", "https://", "https://h?x=1", "https://u:p@h"] {
            let error = endpoint(wrong).unwrap_err();
            assert!(error.is_usage() && error.to_string().contains("HF_ENDPOINT"), "{error}");
            assert!(!error.to_string().contains("u:p"), "{error}");
        }
    }

    #[test]
    fn requests_may_be_forbidden() {
        for value in ["1", "on", "Yes", "TRUE"] {
            let error = settings(&[("HF_HUB_OFFLINE", value)]).err().unwrap();
            assert!(error.is_usage() && error.to_string().contains("HF_HUB_OFFLINE"), "{error}");
        }
        settings(&[("HF_HUB_OFFLINE", "0")]).unwrap();
        let error = settings(&[(GIVE_UP_VARIABLE, "soon")]).err().unwrap();
        assert!(error.to_string().contains(GIVE_UP_VARIABLE), "{error}");
    }
}
