//! [`LibtpuWheel`]: what the tested libtpu is published as, for hosts that install it. Out of scope:
//! the download on this machine (`fulmen-pjrt`).

/// The published file with libtpu, and where the library is in it.
///
/// A wheel is a zip file. Its library is one stretch of compressed bytes, which is a gzip file once
/// a header precedes it and a checksum and a size follow it. So a shell with `gzip` can unpack it.
#[derive(Clone, Debug)]
pub(crate) struct LibtpuWheel {
    /// The version of the package.
    pub(crate) version: String,
    /// The size of the download in MB.
    pub(crate) megabytes: u32,
    /// Where the compressed library begins in the wheel.
    pub(crate) offset: u64,
    /// The size of the compressed library.
    pub(crate) compressed_bytes: u64,
    /// The checksum of the library in the formats zip and gzip.
    pub(crate) crc32: u32,
    /// The size of the library.
    pub(crate) bytes: u64,
    /// SHA-256 of the library, in hexadecimal.
    pub(crate) sha256: String,
    /// The arguments of `pip download` that select the wheel.
    pub(crate) pip_arguments: Vec<String>,
    /// The first version whose PJRT API this library can use.
    pub(crate) oldest_version: String,
}

impl LibtpuWheel {
    /// The wheel of the version that this version of Fulmen was tested with.
    pub(crate) fn tested() -> LibtpuWheel {
        let version = "0.0.51";
        // A version has a wheel for each Python version, with the same library. The host's own Python
        // does not matter.
        let flags = "--only-binary=:all: --ignore-requires-python --python-version 3.13 --implementation cp \
                     --abi cp313 --platform manylinux_2_31_x86_64";
        let requirement = format!("libtpu=={version}");
        LibtpuWheel {
            version: version.to_owned(),
            megabytes: 205,
            offset: 174_352,
            compressed_bytes: 196_546_043,
            crc32: 0xc043_50c8,
            bytes: 574_812_664,
            sha256: "ad0b2a3bc5d4de96f653b3701aaed8769a691776ca0e14c791dcdca785d43e42".to_owned(),
            pip_arguments: flags.split(' ').map(str::to_owned).chain([requirement]).collect(),
            oldest_version: "0.0.29".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use fulmen_pjrt::fetch::LIBTPU_PACKAGE;

    use super::*;

    #[test]
    fn the_wheel_is_the_one_that_this_machine_downloads() {
        let wheel = LibtpuWheel::tested();
        assert_eq!(
            (wheel.version.as_str(), wheel.megabytes, wheel.sha256.as_str()),
            (LIBTPU_PACKAGE.version, LIBTPU_PACKAGE.megabytes, LIBTPU_PACKAGE.member_sha256)
        );
        let flags = ["--only-binary=:all:", "--ignore-requires-python"];
        let requirement = format!("{}=={}", LIBTPU_PACKAGE.name, LIBTPU_PACKAGE.version);
        let arguments = flags.iter().chain(LIBTPU_PACKAGE.wheel).copied();
        assert_eq!(
            wheel.pip_arguments,
            arguments.chain([requirement.as_str()]).collect::<Vec<_>>()
        );
        assert_eq!(wheel.compressed_bytes / 10_000_000, u64::from(wheel.megabytes) / 10 - 1);
    }
}
