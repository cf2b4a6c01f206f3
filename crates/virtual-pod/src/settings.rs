//! The settings of a virtual pod, from environment variables.

use std::ffi::OsString;
use std::path::PathBuf;

use fulmen_tpu::PodShape;

use crate::error::PodError;
use crate::fault::Fault;

/// The number of processes and of each one's devices, such as `4x2`. Before it can stand a number of
/// slices, each with these processes: `2*2x2`.
pub(crate) const SHAPE: &str = "FULMEN_VIRTUAL_POD";
const PLATFORM: &str = "FULMEN_VIRTUAL_POD_PLATFORM";
const DEVICE_KIND: &str = "FULMEN_VIRTUAL_POD_DEVICE_KIND";
const MISMATCH: &str = "FULMEN_VIRTUAL_POD_MISMATCH";
const FAULT: &str = "FULMEN_VIRTUAL_POD_FAULT";
const HOST: &str = "FULMEN_VIRTUAL_POD_HOST";
const CPU_PLUGIN: &str = "FULMEN_VIRTUAL_POD_CPU_PLUGIN";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// The number of slices, which share the processes.
    pub(crate) slices: usize,
    /// The number of processes of all slices.
    pub(crate) processes: usize,
    /// The number of devices of each process.
    pub(crate) devices: usize,
    pub(crate) platform: String,
    pub(crate) device_kind: String,
    /// Whether a mistake makes the launch wait forever, as devices do, instead of failing.
    pub(crate) hangs: bool,
    /// What is wrong with the devices.
    pub(crate) fault: Option<Fault>,
    /// The address at which the other processes reach this one.
    pub(crate) host: Option<String>,
}

impl Settings {
    pub(crate) fn from_env(env: impl Fn(&str) -> Option<OsString>) -> Result<Settings, PodError> {
        let text = |name: &str| -> Result<Option<String>, PodError> {
            let Some(value) = env(name).filter(|value| !value.is_empty()) else { return Ok(None) };
            let value = value.into_string();
            Ok(Some(value.map_err(|_| PodError::invalid(format!("{name} is not valid UTF-8")))?))
        };
        let shape = text(SHAPE)?.ok_or_else(|| {
            PodError::invalid(format!(
                "a virtual pod needs {SHAPE}: the number of processes and the devices of each, such as 4x2"
            ))
        })?;
        let PodShape { slices, processes, devices } = shape
            .parse()
            .map_err(|expected| PodError::invalid(format!("{SHAPE} is `{shape}`, {expected}")))?;
        let hangs = match text(MISMATCH)?.as_deref() {
            None | Some("error") => false,
            Some("hang") => true,
            Some(other) => {
                return Err(PodError::invalid(format!(
                    "{MISMATCH} is `{other}`, expected `error` or `hang`"
                )));
            }
        };
        let fault = match text(FAULT)? {
            Some(fault) => {
                let invalid =
                    |expected| PodError::invalid(format!("{FAULT} is `{fault}`, {expected}"));
                Some(fault.parse().map_err(invalid)?)
            }
            None => None,
        };
        Ok(Settings {
            slices,
            processes,
            devices,
            platform: text(PLATFORM)?.unwrap_or_else(|| "cpu".to_owned()),
            device_kind: text(DEVICE_KIND)?.unwrap_or_else(|| "cpu".to_owned()),
            hangs,
            fault,
            host: text(HOST)?,
        })
    }
}

/// The CPU plugin that computes: the one that `FULMEN_VIRTUAL_POD_CPU_PLUGIN` names, or else the one
/// that `fulmen_pjrt` finds or downloads.
///
/// # Errors
/// There is none, and it cannot be downloaded.
pub fn cpu_plugin() -> fulmen_pjrt::Result<PathBuf> {
    match std::env::var_os(CPU_PLUGIN).filter(|path| !path.is_empty()) {
        Some(path) => Ok(path.into()),
        None => fulmen_pjrt::locate::cpu_plugin_behind_another(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(variables: &[(&str, &str)]) -> Result<Settings, String> {
        let find = |name: &str| variables.iter().find(|v| v.0 == name).map(|v| v.1.into());
        Settings::from_env(find).map_err(|error| error.message)
    }

    #[test]
    fn a_shape_is_enough() {
        let pod = settings(&[(SHAPE, "4x2")]).unwrap();
        assert_eq!((pod.slices, pod.processes, pod.devices, pod.hangs), (1, 4, 2, false));
        assert_eq!((pod.platform.as_str(), pod.device_kind.as_str()), ("cpu", "cpu"));
        let pod = settings(&[
            (SHAPE, "3x2"),
            (PLATFORM, "abacus"),
            (DEVICE_KIND, "bead"),
            (MISMATCH, "hang"),
        ])
        .unwrap();
        assert_eq!((pod.processes, pod.devices, pod.hangs), (3, 2, true));
        assert_eq!((pod.platform.as_str(), pod.device_kind.as_str()), ("abacus", "bead"));
        let pod = settings(&[(SHAPE, "2*3x4")]).unwrap();
        assert_eq!((pod.slices, pod.processes, pod.devices), (2, 6, 4));
    }

    #[test]
    fn invalid_settings_name_the_variable() {
        assert!(settings(&[]).unwrap_err().contains("a virtual pod needs FULMEN_VIRTUAL_POD:"));
        for shape in [
            "4",
            "0x2",
            "2x0",
            "axb",
            "4x2x1",
            "-1x2",
            "1024x2",
            "99999999999999999999x1",
            "0*2x2",
            "2*",
            "*2x2",
            "2*2*2x1",
            "512*2x2",
        ] {
            let error = settings(&[(SHAPE, shape)]).unwrap_err();
            assert!(error.starts_with(&format!("FULMEN_VIRTUAL_POD is `{shape}`")), "{error}");
        }
        let error = settings(&[(SHAPE, "2x2"), (MISMATCH, "ignore")]).unwrap_err();
        assert!(error.contains("MISMATCH is `ignore`, expected `error` or `hang`"), "{error}");
        let error = settings(&[(SHAPE, "2x2"), (FAULT, "rust:exp")]).unwrap_err();
        assert!(error.contains("FAULT is `rust:exp`, expected one of flip-bit"), "{error}");
    }
}
