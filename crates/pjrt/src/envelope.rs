//! The envelope of a stored executable: its origin, its target and a checksum. Plugins execute
//! damaged bytes as machine code and crash. A plugin therefore only gets bytes that are intact and
//! its own.

use std::sync::LazyLock;

use prost::Message;

use crate::error::{self, Result};
use crate::hash;
use crate::hlo::proto::HeaderWithConfig;
use crate::plugin::Plugin;

/// Changes with the format.
const MAGIC: &[u8; 8] = b"FULMENX2";
const DIGEST: usize = 32;

/// A stored executable whose checksum and origin have been verified.
pub(crate) struct Envelope(StoredExecutable);

#[derive(Clone, PartialEq, Message)]
struct StoredExecutable {
    /// The SHA-256 of the plugin's file.
    #[prost(string, tag = "1")]
    plugin: String,
    #[prost(string, tag = "2")]
    platform: String,
    /// The CPU's features. Machine code for a newer CPU would have illegal instructions.
    #[prost(string, tag = "3")]
    cpu: String,
    #[prost(uint64, tag = "4")]
    replicas: u64,
    #[prost(uint64, tag = "5")]
    partitions: u64,
    #[prost(bytes = "vec", tag = "6")]
    payload: Vec<u8>,
    /// The signature of the program.
    #[prost(message, optional, tag = "7")]
    header: Option<HeaderWithConfig>,
}

impl Envelope {
    /// Wraps the plugin's bytes. The platform is empty if there was no client to report it.
    pub(crate) fn wrap(
        plugin: &Plugin,
        platform: &str,
        replicas: usize,
        partitions: usize,
        header: &HeaderWithConfig,
        payload: &[u8],
    ) -> Result<Vec<u8>> {
        let stored = StoredExecutable {
            plugin: plugin.identity()?.to_owned(),
            platform: platform.to_owned(),
            cpu: cpu_features(),
            replicas: replicas as u64,
            partitions: partitions as u64,
            payload: payload.to_vec(),
            header: Some(header.clone()),
        };
        Ok(wrap(&stored))
    }

    /// Verifies that the bytes are intact and were written by this plugin, for this platform, on a
    /// CPU with these features.
    pub(crate) fn open(bytes: &[u8], plugin: &Plugin, platform: &str) -> Result<Envelope> {
        let stored = unwrap(bytes)?;
        let refuse = |what: String| {
            Err(error::corrupt(format!("the stored executable {what}; compile the program again")))
        };
        if stored.plugin != plugin.identity()? {
            return refuse(format!(
                "was written by a plugin file other than {}",
                plugin.path().display()
            ));
        }
        if !stored.platform.is_empty() && stored.platform != platform {
            return refuse(format!("is for the platform {:?}, not {platform:?}", stored.platform));
        }
        if platform == "cpu" && stored.cpu != cpu_features() {
            return refuse("was written on a CPU with different features".to_owned());
        }
        Ok(Self(stored))
    }

    pub(crate) fn payload(&self) -> &[u8] {
        &self.0.payload
    }

    /// The signature of the program.
    pub(crate) fn into_header(self) -> Option<HeaderWithConfig> {
        self.0.header
    }

    /// The number of devices that the program runs on.
    pub(crate) fn devices(&self) -> u64 {
        self.0.replicas.saturating_mul(self.0.partitions)
    }
}

fn wrap(stored: &StoredExecutable) -> Vec<u8> {
    let body = stored.encode_to_vec();
    let mut bytes = Vec::with_capacity(MAGIC.len() + DIGEST + body.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&hash::of_bytes(&body));
    bytes.extend_from_slice(&body);
    bytes
}

fn unwrap(bytes: &[u8]) -> Result<StoredExecutable> {
    let corrupt = |what: &str| {
        error::corrupt(format!("{what} ({} bytes); compile the program again", bytes.len()))
    };
    let rest = bytes
        .strip_prefix(MAGIC)
        .ok_or_else(|| corrupt("these bytes are not an executable stored by fulmen"))?;
    let (digest, body) = rest
        .split_at_checked(DIGEST)
        .ok_or_else(|| corrupt("the stored executable is cut off before its checksum"))?;
    if hash::of_bytes(body) != digest {
        return Err(corrupt("the stored executable is damaged: its checksum does not match"));
    }
    StoredExecutable::decode(body)
        .map_err(|_| corrupt("the stored executable has an unknown format"))
}

/// Verifies that the bytes are an intact stored executable of any plugin.
pub(crate) fn verify(bytes: &[u8]) -> Result<()> {
    unwrap(bytes).map(drop)
}

/// A hash of the features that the kernel lists for the first processor; empty if it lists none.
pub(crate) fn cpu_features() -> String {
    let features = cpu_line("flags").or_else(|| cpu_line("Features")).unwrap_or_default();
    let mut words = features.split_whitespace().collect::<Vec<_>>();
    words.sort_unstable();
    if words.is_empty() {
        String::new()
    } else {
        hash::hex(&hash::of_bytes(words.join(" ").as_bytes()))
    }
}

/// The first processor's name, because the compiler may choose instructions by it; empty if the
/// kernel does not report one.
pub(crate) fn cpu_model() -> String {
    cpu_line("model name").unwrap_or_default()
}

/// A line of the kernel's information about the first processor.
fn cpu_line(name: &str) -> Option<String> {
    static INFO: LazyLock<Option<String>> =
        LazyLock::new(|| std::fs::read_to_string("/proc/cpuinfo").ok());
    let info = INFO.as_ref()?;
    let line = info.lines().find(|line| line.starts_with(name))?;
    line.split_once(':').map(|(_, value)| value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored() -> StoredExecutable {
        StoredExecutable {
            plugin: "ab".into(),
            platform: "cpu".into(),
            payload: vec![1, 2, 3],
            ..StoredExecutable::default()
        }
    }

    #[test]
    fn whole_bytes_open() {
        assert_eq!(unwrap(&wrap(&stored())).unwrap(), stored());
    }

    #[test]
    fn any_flipped_bit_and_any_cut_is_refused() {
        let bytes = wrap(&stored());
        for i in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[i / 8] ^= 1 << (i % 8);
            assert!(unwrap(&damaged).unwrap_err().is_corrupt(), "bit {i}");
        }
        for len in 0..bytes.len() {
            assert!(unwrap(&bytes[..len]).unwrap_err().is_corrupt(), "cut to {len}");
        }
    }
}
