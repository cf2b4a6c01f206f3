//! `tpu list`, `describe` and `quota`: what exists, what it costs, and what the project may use.

use chrono::{DateTime, Utc};
use fulmen_durable::messages::{duration, money};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::arguments::{List, Quota, TpuArgs};
use crate::command_runner::Tool;
use crate::cost::{Rates, dollars};
use crate::resource::{Disk, Node, QueuedResource, base_name, parse, parse_time, zone_of};
use crate::target::Target;
use crate::{Error, Result, gcloud_commands};

/// Something that costs money, or may cost money soon.
#[derive(Clone, Debug, Serialize)]
struct Row {
    kind: &'static str,
    name: String,
    /// Empty if gcloud does not report it.
    zone: String,
    r#type: String,
    state: String,
    /// Further facts, such as what the disk is attached to.
    note: String,
    created: Option<DateTime<Utc>>,
    age_hours: Option<f64>,
    usd_per_day: Option<f64>,
    usd_so_far: Option<f64>,
    /// When it deletes itself.
    ends: Option<DateTime<Utc>>,
}

impl Row {
    /// Adds age and price.
    fn with_price(mut self, created: &str, day: Option<f64>, now: DateTime<Utc>) -> Row {
        self.created = parse_time(created);
        self.age_hours =
            self.created.map(|created| (now - created).num_seconds().max(0) as f64 / 3600.0);
        self.usd_per_day = day;
        self.usd_so_far = self.age_hours.zip(day).map(|(hours, day)| day / 24.0 * hours);
        self
    }

    fn from_node(node: &Node, zone: &str, rates: &Rates, now: DateTime<Utc>) -> Row {
        let hour = node.accelerator_type.parse().ok().and_then(|slice| rates.of_slice(&slice));
        let billed = node.is_billed();
        let unpriced = Row {
            kind: "TPU VM",
            name: base_name(&node.name).to_owned(),
            zone: zone_of(&node.name).unwrap_or(zone).to_owned(),
            r#type: node.accelerator_type.clone(),
            state: node.state.clone(),
            note: match (billed, node.is_spot()) {
                (false, _) => "costs nothing now, but its disks do".into(),
                (true, true) => "spot: it costs less than this list price".into(),
                (true, false) => String::new(),
            },
            created: None,
            age_hours: None,
            usd_per_day: None,
            usd_so_far: None,
            ends: node.deadline(),
        };
        let mut row = unpriced.with_price(
            &node.create_time,
            if billed { hour.map(|hour| hour * 24.0) } else { Some(0.0) },
            now,
        );
        if !billed {
            // It is not known how long the TPU ran, so the amount so far is not known either.
            row.usd_so_far = None;
        }
        row
    }

    fn from_queued(queued: &QueuedResource, zone: &str, now: DateTime<Utc>) -> Row {
        let row = Row {
            kind: "queued resource",
            name: base_name(&queued.name).to_owned(),
            zone: zone_of(&queued.name).unwrap_or(zone).to_owned(),
            r#type: queued.accelerator_type().to_owned(),
            state: queued.state().to_owned(),
            note: "costs nothing itself; its TPU VM does".into(),
            created: None,
            age_hours: None,
            usd_per_day: None,
            usd_so_far: None,
            ends: None,
        };
        row.with_price(&queued.create_time, Some(0.0), now)
    }

    fn from_disk(disk: &Disk, now: DateTime<Utc>) -> Row {
        let (kind, size) = (base_name(&disk.r#type), disk.size_gb.parse::<f64>().ok());
        let row = Row {
            kind: "disk",
            name: disk.name.clone(),
            zone: base_name(&disk.zone).to_owned(),
            r#type: format!("{kind}, {} GiB", disk.size_gb),
            state: disk.status.clone(),
            note: match disk.users.first() {
                None => "attached to nothing".into(),
                Some(user) => format!("attached to {}", base_name(user)),
            },
            created: None,
            age_hours: None,
            usd_per_day: None,
            usd_so_far: None,
            ends: None,
        };
        row.with_price(
            &disk.creation_timestamp,
            size.and_then(|size| Rates::disk_day(kind, size)),
            now,
        )
    }

    fn text(&self) -> String {
        let Row { kind, name, zone, r#type, state, note, .. } = self;
        let mut line = format!("{kind} {name} ({zone}): {type}, {state}");
        if let Some(hours) = self.age_hours {
            line += &format!(", {} old", duration(3600.0 * hours));
        }
        if self.usd_per_day != Some(0.0) {
            line += &format!(
                ", {} a day, {} so far",
                dollars(self.usd_per_day),
                dollars(self.usd_so_far)
            );
        }
        if let Some(ends) = self.ends {
            line += &format!(", deletes itself at {}", ends.format("%Y-%m-%d %H:%M UTC"));
        }
        if note.is_empty() { line } else { format!("{line} ({note})") }
    }
}

pub(crate) fn list(arguments: &List, tool: &mut Tool<'_>, now: DateTime<Utc>) -> Result<u8> {
    let rates = Rates::read(arguments.price.as_deref())?;
    let project = arguments.project.as_deref();
    let zone = arguments.zone.as_deref().filter(|_| !arguments.all_zones);
    let zone_argument = zone.unwrap_or("-");
    let known_zone = zone.unwrap_or_default();
    let (mut rows, mut failures) = (Vec::new(), Vec::new());
    let mut add = |kind: &str, result: Result<Vec<Row>>| match result {
        Ok(new_rows) => rows.extend(new_rows),
        Err(error) => failures.push(format!("cannot list {kind}: {error}")),
    };
    let nodes = tool
        .ask(&gcloud_commands::list_nodes(zone_argument, project))
        .and_then(|text| parse::<Vec<Node>>(&text));
    add(
        "TPU VMs",
        nodes.map(|all| {
            all.iter().map(|node| Row::from_node(node, known_zone, &rates, now)).collect()
        }),
    );
    let queued = tool
        .ask(&gcloud_commands::list_queued(zone_argument, project))
        .and_then(|text| parse::<Vec<QueuedResource>>(&text));
    add(
        "queued resources",
        queued.map(|all| {
            all.iter().map(|queued| Row::from_queued(queued, known_zone, now)).collect()
        }),
    );
    let disks = tool
        .ask(&gcloud_commands::list_disks(zone, project))
        .and_then(|text| parse::<Vec<Disk>>(&text));
    add("disks", disks.map(|all| all.iter().map(|disk| Row::from_disk(disk, now)).collect()));
    let unknown = rows.iter().filter(|row| row.usd_per_day.is_none()).count();
    let day: f64 = rows.iter().filter_map(|row| row.usd_per_day).sum();
    if arguments.json {
        let text = json!({"rows": rows, "usd_per_day": day, "unknown_prices": unknown, "failures": failures});
        tool.print(&text.to_string());
    } else {
        rows.iter().for_each(|row| tool.print(&row.text()));
        let more =
            if unknown == 0 { String::new() } else { format!(", and {unknown} of unknown price") };
        tool.print(&format!("{} a day{more}: {}", money(day), rates.source()));
    }
    if !failures.is_empty() {
        return Err(Error::new(failures.join("\n")));
    }
    Ok(0)
}

pub(crate) fn describe(arguments: &TpuArgs, tool: &mut Tool<'_>, now: DateTime<Utc>) -> Result<u8> {
    let TpuArgs { name, zone_args, json } = arguments;
    let target = Target {
        name: name.clone(),
        zone_args: zone_args.clone(),
        queued: true,
        owner: None,
        usd_per_day: None,
    };
    let rates = Rates::read(None)?;
    let found = target.find(tool)?;
    let row = match (&found.node, &found.queued) {
        (Some(node), _) => Row::from_node(node, &zone_args.zone, &rates, now),
        (None, Some(queued)) => Row::from_queued(queued, &zone_args.zone, now),
        (None, None) => return Err(not_found(name, &zone_args.zone)),
    };
    let (hosts, health) =
        found.node.map(|node| (node.hosts().unwrap_or_default(), node.health)).unwrap_or_default();
    if *json {
        let mut value = json!(row);
        value["hosts"] = json!(hosts);
        value["health"] = json!(health);
        tool.print(&value.to_string());
    } else {
        tool.print(&row.text());
        if !hosts.is_empty() {
            tool.print(&format!("hosts: {}", hosts.join(", ")));
        }
        if !health.is_empty() {
            tool.print(&format!("health: {health}"));
        }
    }
    Ok(0)
}

pub(crate) fn not_found(name: &str, zone: &str) -> Error {
    Error::new(format!(
        "there is no TPU VM and no queued resource {name} in {zone}; `fulmen tpu list --all-zones`"
    ))
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct QuotaInfo {
    quota_id: String,
    quota_display_name: String,
    dimensions_infos: Vec<Dimensions>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Dimensions {
    applicable_locations: Vec<String>,
    details: Details,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Details {
    /// `-1` means no limit; Google omits 0.
    value: String,
}

pub(crate) fn quota(arguments: &Quota, tool: &mut Tool<'_>) -> Result<u8> {
    let infos: Vec<QuotaInfo> = parse(&tool.ask(&gcloud_commands::quota(&arguments.project))?)?;
    let mut rows = Vec::new();
    for info in &infos {
        for part in &info.dimensions_infos {
            // A region's quota applies to its zones.
            let applies = |location: &&String| match &arguments.zone {
                Some(zone) => zone.starts_with(location.as_str()) || *location == "global",
                None => true,
            };
            let locations: Vec<&String> =
                part.applicable_locations.iter().filter(applies).collect();
            if !["", "0"].contains(&part.details.value.as_str()) && !locations.is_empty() {
                rows.push((info, &part.details.value, locations));
            }
        }
    }
    if arguments.json {
        let row = |(info, value, locations): &(&QuotaInfo, &String, Vec<&String>)| {
            let (id, name) = (&info.quota_id, &info.quota_display_name);
            json!({"quota": id, "name": name, "value": value, "locations": locations})
        };
        tool.print(&rows.iter().map(row).collect::<serde_json::Value>().to_string());
        return Ok(0);
    }
    for (info, value, locations) in rows {
        let value = if value == "-1" { "no limit" } else { value };
        let locations: Vec<&str> = locations.iter().map(|location| location.as_str()).collect();
        tool.print(&format!(
            "{} ({}): {value} in {}",
            info.quota_display_name,
            info.quota_id,
            locations.join(", ")
        ));
    }
    Ok(0)
}
