//! [`AttentionKernel`]: whether attention with the method `auto` takes the kernel on some devices.
//!
//! Out of scope: where the kernel fits, see `fulmen_nn::attention`; who approves it, see
//! `fulmen-selftest`.

use std::path::Path;

use fulmen_nn::attention::{AttentionMethod, AutoAttention, attention_kernel};
use fulmen_pjrt::Plugin;
use fulmen_pjrt::compile_cache::{Approval, CompileCache, Standing};
use fulmen_pjrt::locate::Platform;

use crate::process_group::Shareable;

/// Whether `auto` takes the attention kernel where it fits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum AttentionKernel {
    /// The devices are no TPUs, or the program has no kernels.
    #[default]
    None,
    /// A selftest passed the kernel's cases on devices of this kind, with this plugin.
    Approved,
    /// Why it is not approved.
    NotApproved(String),
}

impl AttentionKernel {
    /// For devices of this kind, by the compile cache that the environment selects.
    pub(crate) fn of(
        platform: &str,
        plugin: &Plugin,
        kind: impl FnOnce() -> Result<String, String>,
    ) -> AttentionKernel {
        if platform != Platform::Tpu.name() {
            return AttentionKernel::None;
        }
        let identity = || plugin.identity().map(str::to_owned).map_err(|error| error.to_string());
        match CompileCache::from_env() {
            Ok(cache) => {
                AttentionKernel::find(cache.as_ref().map(CompileCache::folder), kind, identity)
            }
            Err(error) => AttentionKernel::NotApproved(error.to_string()),
        }
    }

    /// By the approvals in this folder. What identifies the devices and the plugin is asked for only
    /// if there are any: a plugin's file has hundreds of megabytes.
    fn find(
        folder: Option<&Path>,
        kind: impl FnOnce() -> Result<String, String>,
        plugin: impl FnOnce() -> Result<String, String>,
    ) -> AttentionKernel {
        let Some(kernel) = attention_kernel() else { return AttentionKernel::None };
        let Some(folder) = folder else {
            let why = "there is no compile cache, in whose folder an approval is kept";
            return AttentionKernel::NotApproved(why.to_owned());
        };
        let missing = "no selftest has passed its cases on such TPUs with this libtpu";
        if !Approval::exist(folder, kernel.name) {
            return AttentionKernel::NotApproved(missing.to_owned());
        }
        let standing = kind().and_then(|kind| {
            let approval = Approval::new(kernel.name, &(kernel.text)(), &kind, &plugin()?);
            Ok(approval.standing(folder))
        });
        let why = match standing {
            Ok(Standing::Approved) => return AttentionKernel::Approved,
            Ok(Standing::Missing) => missing.to_owned(),
            Ok(Standing::Outdated) => "it has changed since a selftest passed its cases".to_owned(),
            Ok(Standing::Damaged(why)) | Err(why) => why,
        };
        AttentionKernel::NotApproved(why)
    }

    /// The line about what `auto` took in the steps of a run; `None` if nothing asked for it.
    pub(crate) fn describe(&self, auto: &AutoAttention) -> Option<String> {
        if auto.methods.is_empty() {
            return None;
        }
        let names: Vec<String> = auto.methods.iter().map(ToString::to_string).collect();
        let taken = format!("attention: auto takes {}", names.join(" and "));
        Some(match self {
            AttentionKernel::Approved if auto.methods.contains(&AttentionMethod::Kernel) => {
                format!("{taken}; `fulmen selftest` approved the kernel for these TPUs")
            }
            AttentionKernel::NotApproved(why) if auto.kernel_fits => format!(
                "{taken}; the kernel is not approved ({why}). `fulmen selftest --part kernels` tests and approves it"
            ),
            AttentionKernel::Approved if auto.kernel_fits => {
                format!(
                    "{taken}; the kernel is approved, but the devices do not only share the batch"
                )
            }
            AttentionKernel::None | AttentionKernel::Approved | AttentionKernel::NotApproved(_) => {
                taken
            }
        })
    }

    /// The line of a preflight; `None` if the kernel is approved or does not fit.
    pub(crate) fn advice(&self, auto: &AutoAttention) -> Option<String> {
        let AttentionKernel::NotApproved(_) = self else { return None };
        let other = auto.methods.iter().find(|_| auto.kernel_fits)?;
        Some(format!(
            "attention: auto takes {other}, because no selftest has approved the kernel here: `attention = \"kernel\"` \
             takes it at once, and auto after `fulmen selftest` on the TPU"
        ))
    }
}

impl Shareable for AttentionKernel {
    fn to_text(&self) -> Option<String> {
        Some(match self {
            AttentionKernel::None => "none".to_owned(),
            AttentionKernel::Approved => "approved".to_owned(),
            AttentionKernel::NotApproved(why) => format!("not approved: {why}"),
        })
    }

    fn from_text(text: &str) -> Option<AttentionKernel> {
        match text {
            "none" => Some(AttentionKernel::None),
            "approved" => Some(AttentionKernel::Approved),
            _ => {
                let why = text.strip_prefix("not approved: ")?;
                Some(AttentionKernel::NotApproved(why.to_owned()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const KIND: &str = "TPU v5 lite";

    fn find(folder: &Path, kind: &str, plugin: &str) -> AttentionKernel {
        AttentionKernel::find(Some(folder), || Ok(kind.into()), || Ok(plugin.into()))
    }

    fn why(found: &AttentionKernel) -> &str {
        let AttentionKernel::NotApproved(why) = found else { panic!("{found:?}") };
        why
    }

    #[test]
    fn only_an_intact_approval_of_this_kernel_kind_and_plugin_counts() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let asked = || -> Result<String, String> { panic!("nothing is to be hashed") };
        let none = AttentionKernel::find(Some(folder), asked, asked);
        assert!(why(&none).contains("no selftest has passed"), "{none:?}");
        let off = AttentionKernel::find(None, asked, asked);
        assert!(why(&off).contains("no compile cache"), "{off:?}");

        let kernel = attention_kernel().unwrap();
        let approval = Approval::new(kernel.name, &(kernel.text)(), KIND, "ab");
        approval.write(folder).unwrap();
        assert_eq!(find(folder, KIND, "ab"), AttentionKernel::Approved);
        assert!(why(&find(folder, "TPU v4", "ab")).contains("no selftest has passed"));
        assert!(why(&find(folder, KIND, "another")).contains("no selftest has passed"));
        Approval::new(kernel.name, "an earlier text", KIND, "ab").write(folder).unwrap();
        assert!(why(&find(folder, KIND, "ab")).contains("has changed"));

        let file = fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
        fs::write(&file, "approved").unwrap();
        let damaged = find(folder, KIND, "ab");
        assert!(why(&damaged).contains("is damaged: its checksum does not match"), "{damaged:?}");
        approval.withdraw(folder).unwrap();
        assert_eq!(find(folder, KIND, "ab"), none);
        let failed = AttentionKernel::find(Some(folder), || Err("no device".into()), asked);
        assert_eq!(failed, none, "without a file nothing is asked");
    }

    #[test]
    fn a_shared_decision_is_the_same() {
        let why = AttentionKernel::NotApproved("two\nlines".into());
        for kernel in [AttentionKernel::None, AttentionKernel::Approved, why] {
            assert_eq!(AttentionKernel::from_text(&kernel.to_text().unwrap()), Some(kernel));
        }
        assert_eq!(AttentionKernel::from_text("yes"), None);
    }
}
