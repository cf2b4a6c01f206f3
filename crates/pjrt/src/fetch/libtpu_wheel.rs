//! [`LibtpuWheel`]: what the tested libtpu is published as, for programs that install it on other
//! machines. Out of scope: the download.

use super::package::LIBTPU_PACKAGE;

/// The published file with libtpu, and where the library is in it.
///
/// A wheel is a zip file. Its library is one stretch of compressed bytes, which is a gzip file once
/// a header precedes it and a checksum and a size follow it. So a shell with `gzip` can unpack it.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct LibtpuWheel {
    /// The version of the package.
    pub version: String,
    /// The size of the download in MB.
    pub megabytes: u32,
    /// Where the compressed library begins in the wheel.
    pub offset: u64,
    /// The size of the compressed library.
    pub compressed_bytes: u64,
    /// The checksum of the library in the formats zip and gzip.
    pub crc32: u32,
    /// The size of the library.
    pub bytes: u64,
    /// SHA-256 of the library, in hexadecimal.
    pub sha256: String,
    /// The arguments of `pip download` that select the wheel.
    pub pip_arguments: Vec<String>,
    /// The first version whose PJRT API this library can use.
    pub oldest_version: String,
}

impl LibtpuWheel {
    /// The wheel of the version that [`libtpu`](super::libtpu()) downloads.
    pub fn tested() -> LibtpuWheel {
        let package = LIBTPU_PACKAGE;
        let flags = ["--only-binary=:all:", "--ignore-requires-python"];
        let requirement = format!("{}=={}", package.name, package.version);
        LibtpuWheel {
            version: package.version.to_owned(),
            megabytes: package.megabytes,
            offset: 174_352,
            compressed_bytes: 196_546_043,
            crc32: 0xc043_50c8,
            bytes: 574_812_664,
            sha256: package.member_sha256.to_owned(),
            pip_arguments: flags
                .iter()
                .chain(package.wheel)
                .map(|&flag| flag.to_owned())
                .chain([requirement])
                .collect(),
            oldest_version: "0.0.29".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_pinned_version() {
        let wheel = LibtpuWheel::tested();
        let requirement = format!("libtpu=={}", wheel.version);
        assert_eq!(wheel.pip_arguments.last(), Some(&requirement));
        assert_eq!(wheel.compressed_bytes / 10_000_000, u64::from(wheel.megabytes) / 10 - 1);
    }
}
