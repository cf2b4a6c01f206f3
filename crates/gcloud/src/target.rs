//! One TPU by name: whether it exists, waiting for it, deleting it, and what is left over.
//!
//! Only a list that gcloud printed without an error counts as evidence. A machine may appear some
//! time after the command that created it has failed, so its absence is checked several times.

use std::fmt;

use fulmen_durable::messages::quote;
use serde::Serialize;

use crate::arguments::{Machine, ZoneArgs};
use crate::command_runner::{Stop, Tool, shell_line};
use crate::cost::{Rates, dollars};
use crate::gcloud_commands;
use crate::resource::{Node, QueuedResource, base_name, parse};
use crate::{Error, Result};

/// A TPU by name.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) name: String,
    pub(crate) zone_args: ZoneArgs,
    /// Whether a queued resource of that name may exist.
    pub(crate) queued: bool,
    /// The run that must have created the TPU.
    pub(crate) owner: Option<String>,
    /// Its cost per day.
    pub(crate) usd_per_day: Option<f64>,
}

/// What exists under that name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Resources {
    pub(crate) queued: Option<QueuedResource>,
    pub(crate) node: Option<Node>,
}

/// A machine that exists, or may exist, when a command ends.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Leftover {
    pub(crate) name: String,
    pub(crate) zone: String,
    /// `None` if gcloud could not be queried.
    pub(crate) state: Option<String>,
    pub(crate) why: String,
    pub(crate) usd_per_day: Option<f64>,
    /// The command that deletes it.
    pub(crate) command: String,
}

impl fmt::Display for Leftover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Leftover { name, zone, state, why, usd_per_day, command } = self;
        let costs = dollars(*usd_per_day);
        match state {
            Some(state) => write!(f, "{name} in {zone} is {state} and costs {costs} a day.")?,
            None => write!(f, "{name} in {zone} may exist, and would cost {costs} a day.")?,
        }
        let space = if why.is_empty() { "" } else { " " };
        write!(f, "{space}{why}\n  Delete it: {command}")
    }
}

impl Resources {
    pub(crate) fn is_empty(&self) -> bool {
        self.queued.is_none() && self.node.is_none()
    }

    fn state(&self) -> String {
        let node = self.node.as_ref().map(|node| node.state.clone());
        let queued =
            || self.queued.as_ref().map(|queued| format!("a queued resource, {}", queued.state()));
        node.or_else(queued).unwrap_or_default()
    }
}

impl Target {
    pub(crate) fn new(machine: &Machine, owner: &str, rates: &Rates) -> Target {
        Target {
            name: machine.name.clone(),
            zone_args: machine.zone_args.clone(),
            queued: machine.is_queued(),
            owner: Some(owner.to_owned()),
            usd_per_day: rates.of_slice(&machine.slice).map(|hour| hour * 24.0),
        }
    }

    /// The queries that find it. The queued resource comes first: once it is gone, it cannot create
    /// a TPU any more.
    pub(crate) fn queries(&self) -> Vec<Vec<String>> {
        let ZoneArgs { zone, project } = &self.zone_args;
        let mut queries = Vec::new();
        if self.queued {
            queries.push(gcloud_commands::list_queued(zone, project.as_deref()));
        }
        queries.push(gcloud_commands::list_nodes(zone, project.as_deref()));
        queries
    }

    /// Queries gcloud. The queued resource comes first: once it is gone, it cannot create a TPU any
    /// more.
    ///
    /// # Errors
    /// gcloud fails, or its answer cannot be parsed.
    pub(crate) fn find(&self, tool: &mut Tool<'_>) -> Result<Resources> {
        let project = self.zone_args.project.as_deref();
        let mut found = Resources::default();
        let invalid = || Error::new("cannot parse gcloud's answer: an item has no name");
        if self.queued {
            let resources: Vec<QueuedResource> =
                parse(&tool.ask(&gcloud_commands::list_queued(&self.zone_args.zone, project))?)?;
            if resources.iter().any(|queued| queued.name.is_empty()) {
                return Err(invalid());
            }
            found.queued =
                resources.into_iter().find(|queued| base_name(&queued.name) == self.name);
        }
        let nodes: Vec<Node> =
            parse(&tool.ask(&gcloud_commands::list_nodes(&self.zone_args.zone, project))?)?;
        if nodes.iter().any(|node| node.name.is_empty()) {
            return Err(invalid());
        }
        found.node = nodes.into_iter().find(|node| base_name(&node.name) == self.name);
        Ok(found)
    }

    /// Waits until the TPU is ready.
    ///
    /// # Errors
    /// The TPU will never be ready, it is not ready after this many queries, or a signal arrives.
    pub(crate) fn wait(&self, tool: &mut Tool<'_>, queries: u64) -> Result<Node, Stop> {
        let mut absent = 0;
        let mut last = String::new();
        let mut noted = String::new();
        for _ in 0..queries {
            match self.find(tool) {
                Err(error) => last = format!("gcloud cannot be queried: {error}"),
                Ok(found) => {
                    last = format!("it is {}", found.state());
                    absent = if found.is_empty() { absent + 1 } else { 0 };
                    if absent >= tool.poll_policy.required_absences {
                        return Err(Error::new(format!(
                            "there is no {} in {}",
                            self.name, self.zone_args.zone
                        ))
                        .into());
                    }
                    let dead = match (&found.node, &found.queued) {
                        (Some(node), _) if node.state == "READY" => return Ok(node.clone()),
                        (Some(node), _) => !node.is_billed() || node.state == "DELETING",
                        (None, Some(queued)) => {
                            ["FAILED", "SUSPENDED", "SUSPENDING"].contains(&queued.state())
                        }
                        (None, None) => false,
                    };
                    if dead {
                        return Err(
                            Error::new(format!("{} will not be ready: {last}", self.name)).into()
                        );
                    }
                }
            }
            if noted != last {
                tool.progress(&format!("[tpu] {}: {last}; waiting", self.name));
                noted.clone_from(&last);
            }
            if let Some(signal) = tool.pause() {
                return Err(Stop::Signal(signal));
            }
        }
        Err(Error::new(format!("{} is not ready: {last}", self.name)).into())
    }

    fn leftover(&self, found: Option<&Resources>, why: String) -> Leftover {
        let Target { name, zone_args, .. } = self;
        let command = match found {
            // The command deletes both the TPU and its queued resource.
            None => {
                let project = zone_args
                    .project
                    .as_ref()
                    .map(|project| format!(" --project {}", quote(project)));
                format!(
                    "fulmen tpu delete {name} --zone {}{}",
                    zone_args.zone,
                    project.unwrap_or_default()
                )
            }
            Some(Resources { queued: Some(_), .. }) => {
                shell_line(&gcloud_commands::delete_queued(name, zone_args))
            }
            Some(_) => shell_line(&gcloud_commands::delete_node(name, zone_args)),
        };
        let node = found.and_then(|found| found.node.as_ref());
        let listed = || Some(Rates::read(None).ok()?.of_slice(&node?.slice()?)? * 24.0);
        Leftover {
            name: name.clone(),
            zone: zone_args.zone.clone(),
            state: found.map(Resources::state),
            why,
            usd_per_day: if node.is_some_and(|node| !node.is_billed()) {
                Some(0.0)
            } else {
                self.usd_per_day.or_else(listed)
            },
            command,
        }
    }

    /// Finds what exists. Repeats the query until it succeeds.
    pub(crate) fn find_leftover(&self, tool: &mut Tool<'_>) -> Option<Leftover> {
        let mut absent = 0;
        let mut why = String::new();
        for _ in 0..tool.poll_policy.attempts {
            match self.find(tool) {
                Ok(found) if found.is_empty() => absent += 1,
                Ok(found) => return Some(self.leftover(Some(&found), String::new())),
                Err(error) => why = format!("gcloud cannot be queried: {error}"),
            }
            if absent >= tool.poll_policy.required_absences {
                return None;
            }
            if let Some(signal) = tool.pause() {
                why = format!("{signal} interrupted the check");
                break;
            }
        }
        Some(self.leftover(None, why))
    }

    /// Deletes what exists until it is gone. Returns what existed, and what is left. `is_created`
    /// is whether the command that created the TPU succeeded.
    pub(crate) fn remove(
        &self,
        tool: &mut Tool<'_>,
        is_created: bool,
    ) -> (Option<Resources>, Option<Leftover>) {
        // Earlier signals requested this deletion.
        while tool.signals.try_recv().is_ok() {}
        tool.only_interrupt = true;
        let mut first_found = None;
        let mut current = None;
        let mut absent = 0;
        let mut why = "the reason is unknown".to_owned();
        for _ in 0..tool.poll_policy.attempts {
            let mut check_again = false;
            match self.find(tool) {
                Err(error) => (why, current) = (format!("gcloud cannot be queried: {error}"), None),
                Ok(found) if found.is_empty() => {
                    (absent, current) = (absent + 1, None);
                    // Only a newly created machine may still appear.
                    let enough = if first_found.is_some() || self.owner.is_none() {
                        1
                    } else {
                        tool.poll_policy.required_absences
                    };
                    if absent >= enough {
                        return (first_found, None);
                    }
                }
                Ok(found) => {
                    absent = 0;
                    if !self.owns(&found, is_created) {
                        let why = "Another command may have created it, so it was not deleted."
                            .to_owned();
                        return (None, Some(self.leftover(Some(&found), why)));
                    }
                    let deleting = found.node.as_ref().is_some_and(|node| node.state == "DELETING");
                    let command = match &found.queued {
                        Some(_) => gcloud_commands::delete_queued(&self.name, &self.zone_args),
                        None => gcloud_commands::delete_node(&self.name, &self.zone_args),
                    };
                    first_found.get_or_insert_with(|| found.clone());
                    current = Some(found);
                    match tool.change_until_signal(&command) {
                        Ok(_) => check_again = !deleting,
                        Err(Stop::Failed(error)) => why = format!("gcloud says: {error}"),
                        Err(Stop::Signal(signal)) => {
                            why = format!("{signal} ended the deletion.");
                            break;
                        }
                    }
                }
            }
            if check_again && self.find(tool).is_ok_and(|found| found.is_empty()) {
                return (first_found, None);
            }
            if let Some(signal) = tool.pause() {
                why = format!("{signal} ended the deletion.");
                break;
            }
        }
        let leftover = self.leftover(current.as_ref(), why);
        (first_found, Some(leftover))
    }

    fn owns(&self, found: &Resources, is_created: bool) -> bool {
        let Some(owner) = &self.owner else { return true };
        let labels = [
            found.node.as_ref().map(Node::owner),
            found.queued.as_ref().map(QueuedResource::owner),
        ];
        labels.into_iter().flatten().all(|label| label.map_or(is_created, |label| label == owner))
    }
}
