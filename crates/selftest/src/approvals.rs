//! Approves the kernels that passed their cases on a TPU, and withdraws the approvals of others. The
//! Trainer's attention takes an approved kernel.

use std::path::Path;

use fulmen_error::Result;
use fulmen_kernels::BuiltIn;
use fulmen_pjrt::compile_cache::{Approval, CompileCache};

use crate::parts::{DEVICE_KIND, KERNELS, PLUGIN};
use crate::report::{Ending, KERNEL_FACT, PartReport};

/// Approves and withdraws by what a part found, in the compile cache that the environment selects.
pub(crate) fn settle(report: &mut PartReport) {
    match CompileCache::from_env() {
        Ok(cache) => settle_in(report, cache.as_ref().map(CompileCache::folder)),
        Err(error) => report.skipped.push(format!("keeping approvals of kernels: {error}")),
    }
}

fn settle_in(report: &mut PartReport, folder: Option<&Path>) {
    let (Some(kind), Some(plugin)) = (report.facts.get(DEVICE_KIND), report.facts.get(PLUGIN))
    else {
        return;
    };
    if report.name != KERNELS {
        return;
    }
    let Some(folder) = folder else {
        report.skipped.push("keeping approvals of kernels: FULMEN_COMPILE_CACHE is off".to_owned());
        return;
    };
    let approvals = BuiltIn::ALL
        .map(|kernel| (kernel, Approval::new(kernel.name(), &kernel.text(), kind, plugin)));
    for (kernel, approval) in approvals {
        let passed = passes(report, kernel);
        let fact = match change(&approval, passed, folder) {
            Ok(what) => what.to_owned(),
            // The report is not to have the names of folders.
            Err(_) if passed => "not kept: the compile cache's folder cannot be written".to_owned(),
            Err(_) => "not withdrawn: the file in the compile cache cannot be removed".to_owned(),
        };
        report.facts.insert(format!("{KERNEL_FACT}{}", kernel.name()), fact);
    }
}

fn change(approval: &Approval, passed: bool, folder: &Path) -> Result<&'static str> {
    if passed {
        approval.write(folder)?;
        return Ok("approved");
    }
    let withdrawn = approval.withdraw(folder)?;
    Ok(if withdrawn { "no longer approved" } else { "not approved" })
}

/// Whether all cases of a kernel ran and passed. What fails without the name of a kernel may be of
/// any.
fn passes(report: &PartReport, kernel: BuiltIn) -> bool {
    let start = |kernel: BuiltIn| format!("{}: ", kernel.name());
    let is_of_others = |name: &str| {
        BuiltIn::ALL.into_iter().any(|other| other != kernel && name.starts_with(&start(other)))
    };
    report.ending == Ending::Finished
        && report.comparisons > 0
        && report.failures.iter().all(|failure| is_of_others(&failure.name))
}

#[cfg(test)]
mod tests {
    use fulmen_pjrt::compile_cache::Standing;

    use super::*;
    use crate::event::Failure;

    const NORM: &str = "rms_norm_residual: norm of a sum, sum";

    /// A report on a TPU with a failure of this name, if any.
    fn report(failure: Option<&str>) -> PartReport {
        let mut report = PartReport::of_nothing(KERNELS);
        report.comparisons = 18;
        report.facts = [(DEVICE_KIND, "TPU v5 lite"), (PLUGIN, "ab")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
        let failure = failure.map(|name| Failure { name: name.to_owned(), ..Failure::default() });
        report.failures.extend(failure);
        report
    }

    /// Whether attention, the loss and the norm are approved.
    fn approved(folder: &Path) -> [bool; 3] {
        BuiltIn::ALL.map(|kernel| {
            let approval = Approval::new(kernel.name(), &kernel.text(), "TPU v5 lite", "ab");
            approval.standing(folder) == Standing::Approved
        })
    }

    #[test]
    fn kernels_that_pass_are_approved_and_those_that_fail_later_no_longer() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let settled = |mut report: PartReport| {
            settle_in(&mut report, Some(folder));
            (report, approved(folder))
        };
        let (passed, after) = settled(report(None));
        assert_eq!(
            (passed.facts["kernel flash_attention"].as_str(), after),
            ("approved", [true; 3])
        );
        let (failed, after) = settled(report(Some(NORM)));
        assert_eq!(after, [true, true, false]);
        assert_eq!(failed.facts["kernel rms_norm_residual"], "no longer approved");
        assert_eq!(settled(report(Some("kernels"))).1, [false; 3]);
        assert_eq!(settled(report(None)).1, [true; 3]);
        let crashed = PartReport { ending: Ending::Exit { code: 1 }, ..report(None) };
        assert_eq!(settled(crashed).1, [false; 3]);
        let nothing = PartReport { comparisons: 0, ..report(None) };
        assert_eq!(settled(nothing).1, [false; 3]);
    }

    #[test]
    fn on_other_devices_and_without_a_cache_nothing_is_approved() {
        let folder = tempfile::tempdir().unwrap();
        let mut on_cpu = report(None);
        on_cpu.facts.clear();
        settle_in(&mut on_cpu, Some(folder.path()));
        assert!(on_cpu.facts.is_empty() && approved(folder.path()) == [false; 3]);
        let mut off = report(None);
        settle_in(&mut off, None);
        assert!(off.skipped[0].contains("FULMEN_COMPILE_CACHE is off"), "{off:?}");
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let mut unwritable = report(None);
        settle_in(&mut unwritable, Some(&file));
        assert!(
            unwritable.facts["kernel flash_attention"].starts_with("not kept"),
            "{unwritable:?}"
        );
    }
}
