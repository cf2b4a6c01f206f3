//! [`ApprovedKernels`]: whether methods named `auto` take their kernels on some devices.
//!
//! Out of scope: where the kernels fit, see `fulmen_nn::attention` and `fulmen_nn::loss`; who approves
//! them, see `fulmen-selftest`.

use std::collections::BTreeMap;
use std::path::Path;

use fulmen_nn::auto_kernels::{AllTaken, AutoKernel, AutoTaken};
use fulmen_pjrt::Plugin;
use fulmen_pjrt::compile_cache::{Approval, CompileCache, Standing};
use fulmen_pjrt::locate::Platform;

use crate::process_group::Shareable;

/// Whether `auto` takes each kernel. One that is not listed does not count for the devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ApprovedKernels(BTreeMap<AutoKernel, KernelApproval>);

/// Whether `auto` takes a kernel where it fits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum KernelApproval {
    /// The devices are no TPUs, or the program has no kernels.
    #[default]
    None,
    /// A selftest passed the kernel's cases on devices of this kind, with this plugin.
    Approved,
    /// Why it is not approved.
    NotApproved(String),
}

impl ApprovedKernels {
    /// For devices of this kind, by the compile cache that the environment selects.
    pub(crate) fn of(
        platform: &str,
        plugin: &Plugin,
        kind: impl Fn() -> Result<String, String>,
    ) -> ApprovedKernels {
        if platform != Platform::Tpu.name() {
            return ApprovedKernels::default();
        }
        let identity = || plugin.identity().map(str::to_owned).map_err(|error| error.to_string());
        let cache = CompileCache::from_env();
        ApprovedKernels::each(|kernel| match &cache {
            Ok(cache) => {
                let folder = cache.as_ref().map(CompileCache::folder);
                KernelApproval::find(kernel, folder, &kind, identity)
            }
            Err(error) => KernelApproval::NotApproved(error.to_string()),
        })
    }

    /// What is known of each kernel.
    pub(crate) fn each(mut known: impl FnMut(AutoKernel) -> KernelApproval) -> ApprovedKernels {
        ApprovedKernels(AutoKernel::ALL.into_iter().map(|kernel| (kernel, known(kernel))).collect())
    }

    /// What is known of a kernel.
    pub(crate) fn get(&self, kernel: AutoKernel) -> KernelApproval {
        self.0.get(&kernel).cloned().unwrap_or_default()
    }

    /// The kernels that `auto` takes.
    pub(crate) fn approved(&self) -> Vec<AutoKernel> {
        let all = self.0.iter().filter(|(_, known)| **known == KernelApproval::Approved);
        all.map(|(kernel, _)| *kernel).collect()
    }

    /// A line for each method `auto` about what it took in the steps of a run.
    pub(crate) fn describe(&self, taken: &AllTaken) -> Vec<String> {
        taken.iter().map(|(kernel, taken)| self.get(*kernel).describe(*kernel, taken)).collect()
    }

    /// The lines of a preflight about kernels that fit and are not approved.
    pub(crate) fn advice(&self, taken: &AllTaken) -> Vec<String> {
        taken
            .iter()
            .filter_map(|(kernel, taken)| self.get(*kernel).advice(*kernel, taken))
            .collect()
    }
}

impl KernelApproval {
    /// By the approvals in this folder. What identifies the devices and the plugin is asked for only
    /// if there are any: a plugin's file has hundreds of megabytes.
    fn find(
        kernel: AutoKernel,
        folder: Option<&Path>,
        kind: impl FnOnce() -> Result<String, String>,
        plugin: impl FnOnce() -> Result<String, String>,
    ) -> KernelApproval {
        let Some((name, text)) = kernel.approved_as() else { return KernelApproval::None };
        let Some(folder) = folder else {
            let why = "there is no compile cache, in whose folder an approval is kept";
            return KernelApproval::NotApproved(why.to_owned());
        };
        let missing = "no selftest has passed its cases on such TPUs with this libtpu";
        if !Approval::exist(folder, name) {
            return KernelApproval::NotApproved(missing.to_owned());
        }
        let standing = kind().and_then(|kind| {
            let approval = Approval::new(name, &text(), &kind, &plugin()?);
            Ok(approval.standing(folder))
        });
        let why = match standing {
            Ok(Standing::Approved) => return KernelApproval::Approved,
            Ok(Standing::Missing) => missing.to_owned(),
            Ok(Standing::Outdated) => "it has changed since a selftest passed its cases".to_owned(),
            Ok(Standing::Damaged(why)) | Err(why) => why,
        };
        KernelApproval::NotApproved(why)
    }

    fn describe(&self, kernel: AutoKernel, auto: &AutoTaken) -> String {
        let names: Vec<&str> = auto.methods.iter().map(String::as_str).collect();
        let taken = format!("{kernel}: auto takes {}", names.join(" and "));
        match self {
            KernelApproval::Approved if auto.methods.contains("kernel") => {
                format!("{taken}; `fulmen selftest` approved the kernel for these TPUs")
            }
            KernelApproval::NotApproved(why) if auto.kernel_fits => format!(
                "{taken}; the kernel is not approved ({why}). `fulmen selftest --part kernels` tests and approves it"
            ),
            KernelApproval::Approved if auto.kernel_fits => {
                format!(
                    "{taken}; the kernel is approved, but the devices do not only share the batch"
                )
            }
            KernelApproval::None | KernelApproval::Approved | KernelApproval::NotApproved(_) => {
                taken
            }
        }
    }

    /// The line of a preflight; `None` if the kernel is approved or does not fit.
    fn advice(&self, kernel: AutoKernel, auto: &AutoTaken) -> Option<String> {
        let KernelApproval::NotApproved(_) = self else { return None };
        let other = auto.methods.iter().find(|_| auto.kernel_fits)?;
        let option = match kernel {
            AutoKernel::Attention => "`attention = \"kernel\"`",
            _ => "`loss_method = \"kernel\"`",
        };
        Some(format!(
            "{kernel}: auto takes {other}, because no selftest has approved the kernel here: {option} takes it at once, \
             and auto after `fulmen selftest` on the TPU"
        ))
    }
}

impl Shareable for ApprovedKernels {
    fn to_text(&self) -> Option<String> {
        let texts: BTreeMap<String, String> =
            self.0.iter().map(|(kernel, known)| (kernel.to_string(), known.to_text())).collect();
        serde_json::to_string(&texts).ok()
    }

    fn from_text(text: &str) -> Option<ApprovedKernels> {
        let texts: BTreeMap<String, String> = serde_json::from_str(text).ok()?;
        let known = |(name, text): (&String, &String)| {
            let kernel = AutoKernel::ALL.into_iter().find(|kernel| kernel.to_string() == *name)?;
            Some((kernel, KernelApproval::from_text(text)?))
        };
        Some(ApprovedKernels(texts.iter().map(known).collect::<Option<_>>()?))
    }
}

impl KernelApproval {
    fn to_text(&self) -> String {
        match self {
            KernelApproval::None => "none".to_owned(),
            KernelApproval::Approved => "approved".to_owned(),
            KernelApproval::NotApproved(why) => format!("not approved: {why}"),
        }
    }

    fn from_text(text: &str) -> Option<KernelApproval> {
        match text {
            "none" => Some(KernelApproval::None),
            "approved" => Some(KernelApproval::Approved),
            _ => {
                let why = text.strip_prefix("not approved: ")?;
                Some(KernelApproval::NotApproved(why.to_owned()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const KIND: &str = "TPU v5 lite";

    fn find(folder: &Path, kind: &str, plugin: &str) -> KernelApproval {
        let kernel = AutoKernel::Attention;
        KernelApproval::find(kernel, Some(folder), || Ok(kind.into()), || Ok(plugin.into()))
    }

    fn why(found: &KernelApproval) -> &str {
        let KernelApproval::NotApproved(why) = found else { panic!("{found:?}") };
        why
    }

    #[test]
    fn only_an_intact_approval_of_this_kernel_kind_and_plugin_counts() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let asked = || -> Result<String, String> { panic!("nothing is to be hashed") };
        let find_in = |folder| KernelApproval::find(AutoKernel::Attention, folder, asked, asked);
        let none = find_in(Some(folder));
        assert!(why(&none).contains("no selftest has passed"), "{none:?}");
        let off = find_in(None);
        assert!(why(&off).contains("no compile cache"), "{off:?}");

        let (name, text) = AutoKernel::Attention.approved_as().unwrap();
        let approval = Approval::new(name, &text(), KIND, "ab");
        approval.write(folder).unwrap();
        assert_eq!(find(folder, KIND, "ab"), KernelApproval::Approved);
        assert!(why(&find(folder, "TPU v4", "ab")).contains("no selftest has passed"));
        assert!(why(&find(folder, KIND, "another")).contains("no selftest has passed"));
        Approval::new(name, "an earlier text", KIND, "ab").write(folder).unwrap();
        assert!(why(&find(folder, KIND, "ab")).contains("has changed"));

        let file = fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
        fs::write(&file, "approved").unwrap();
        let damaged = find(folder, KIND, "ab");
        assert!(why(&damaged).contains("is damaged: its checksum does not match"), "{damaged:?}");
        approval.withdraw(folder).unwrap();
        assert_eq!(find(folder, KIND, "ab"), none);
        let loss = AutoKernel::Loss;
        let failed = KernelApproval::find(loss, Some(folder), || Err("no device".into()), asked);
        assert_eq!(failed, none, "without a file nothing is asked");
    }

    #[test]
    fn a_shared_decision_is_the_same() {
        let why = KernelApproval::NotApproved("two\nlines".into());
        for known in [KernelApproval::None, KernelApproval::Approved, why] {
            let kernels = ApprovedKernels::each(|kernel| match kernel {
                AutoKernel::Loss => known.clone(),
                _ => KernelApproval::Approved,
            });
            let text = kernels.to_text().unwrap();
            assert_eq!(ApprovedKernels::from_text(&text), Some(kernels));
        }
        assert_eq!(ApprovedKernels::from_text("yes"), None);
        assert_eq!(ApprovedKernels::from_text("{\"loss\": \"yes\"}"), None);
    }
}
