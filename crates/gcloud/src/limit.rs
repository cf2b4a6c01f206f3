//! A limit on hours or cost that needs no supervision: the hosts delete their TPU.
//!
//! A start-up script installs a systemd timer. Every minute it compares the clock with a deadline
//! in a file; after the deadline it asks the TPU service to delete the TPU, repeatedly until it is
//! gone. It does not shut the hosts down instead, because that may not end the costs.

use std::path::Path;

use crate::arguments::Machine;
use crate::cost::Rates;
use crate::{Error, Result};

/// The program on a host.
pub(crate) const PROGRAM: &str = "/usr/local/sbin/fulmen-limit";
/// The part of its `status` output that shows that waiting does not help.
pub(crate) const MISSING_PERMISSION: &str = "lacks the permission";
/// Google's limit for flex-start, in hours.
const MAX_FLEX_START_HOURS: f64 = 7.0 * 24.0;
/// The end marker of files embedded in the start-up script.
const END_MARKER: &str = "END_OF_FULMEN_FILE";

/// The time at which a TPU is deleted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Limit {
    /// The deadline, in seconds after the first start of the machine.
    pub(crate) seconds: u64,
}

impl Limit {
    /// The limit of a machine: the smaller of hours and cost.
    ///
    /// # Errors
    /// A limit on cost without a known price; flex-start without a limit, or with one beyond
    /// Google's.
    pub(crate) fn new(machine: &Machine, rates: &Rates) -> Result<Option<Limit>> {
        let by_cost = match machine.max_cost {
            None => None,
            Some(dollars) => Some(match rates.of_slice(&machine.slice) {
                Some(hour) if hour > 0.0 => dollars / hour,
                _ => {
                    let text = format!(
                        "--max-cost: the price of {} is unknown; pass --price FILE",
                        machine.slice
                    );
                    return Err(Error::usage(text + " or --max-hours"));
                }
            }),
        };
        let hours = match (machine.max_hours, by_cost) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        if machine.flex_start && !hours.is_some_and(|hours| hours <= MAX_FLEX_START_HOURS) {
            return Err(Error::usage(
                "--flex-start needs a limit of at most 168 hours; pass --max-hours",
            ));
        }
        Ok(hours.map(|hours| Limit { seconds: (hours * 3600.0).ceil() as u64 }))
    }

    /// The start-up script of a host: this limit and the user's own script.
    ///
    /// # Errors
    /// The user's script cannot be read or embedded.
    pub(crate) fn startup_script(
        limit: Option<Limit>,
        machine: &Machine,
    ) -> Result<Option<String>> {
        let read = |path: &Path| {
            fulmen_durable::read_text(path)
                .map_err(|e| Error::usage(format!("--startup-script {}: {e}", path.display())))
        };
        let user_script = machine.startup_script.as_deref().map(read).transpose()?;
        let Some(limit) = limit else { return Ok(user_script) };
        if user_script.as_ref().is_some_and(|text| text.lines().any(|line| line == END_MARKER)) {
            return Err(Error::usage(format!(
                "--startup-script has the line {END_MARKER}, which ends it; remove the line"
            )));
        }
        let resource = if machine.is_queued() {
            format!(
                "locations/{}/queuedResources/{}?force=true",
                machine.zone_args.zone, machine.name
            )
        } else {
            format!("locations/{}/nodes/{}", machine.zone_args.zone, machine.name)
        };
        let project = machine.zone_args.project.as_deref().unwrap_or_default();
        let mut script = format!(
            "#!/bin/bash\ncat >{PROGRAM} <<'{END_MARKER}'\n#!/bin/bash\nPROJECT='{project}'\nRESOURCE='{resource}'\n\
             SECONDS_LEFT={}\n{}{END_MARKER}\nchmod 755 {PROGRAM}\n{PROGRAM} begin\n",
            limit.seconds,
            include_str!("limit.sh")
        );
        let units = "/etc/systemd/system/fulmen-limit";
        script += &format!(
            "printf '[Service]\\nType=oneshot\\nExecStart={PROGRAM} check\\n' >{units}.service\n\
             printf '[Timer]\\nOnActiveSec=60\\nOnUnitInactiveSec=60\\n[Install]\\nWantedBy=timers.target\\n' >{units}.timer\n\
             systemctl daemon-reload\nsystemctl enable --now fulmen-limit.timer\n"
        );
        if let Some(user_script) = user_script {
            let end = if user_script.ends_with('\n') { "" } else { "\n" };
            script += &format!(
                "cat >/var/lib/fulmen/startup <<'{END_MARKER}'\n{user_script}{end}{END_MARKER}\n"
            );
            script += "chmod 755 /var/lib/fulmen/startup\nexec /var/lib/fulmen/startup\n";
        }
        Ok(Some(script))
    }
}
