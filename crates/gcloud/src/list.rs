//! `tpu list`, `describe` and `quota`: what exists, what it costs, and what the project may use.

use chrono::{DateTime, Utc};
use fulmen_durable::messages::{duration, money};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::arguments::{List, Quota, TpuArgs};
use crate::command_runner::Tool;
use crate::cost::{Rates, dollars};
use crate::manage::dry_run;
use crate::resource::{
    Address, Bucket, Disk, Instance, Node, QueuedResource, Snapshot, base_name, parse, parse_time,
    zone_of,
};
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
    fn new(kind: &'static str, name: &str, zone: &str) -> Row {
        Row {
            kind,
            name: base_name(name).to_owned(),
            zone: zone.to_owned(),
            r#type: String::new(),
            state: String::new(),
            note: String::new(),
            created: None,
            age_hours: None,
            usd_per_day: None,
            usd_so_far: None,
            ends: None,
        }
    }

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
        let hour = node.slice().and_then(|slice| rates.of_slice(&slice));
        let billed = node.is_billed();
        let unpriced = Row {
            r#type: node.slice_name(),
            state: node.state.clone(),
            note: match (billed, node.is_spot()) {
                (false, _) => "costs nothing now, but its disks do".into(),
                (true, true) => "spot: it costs less than this list price".into(),
                (true, false) => String::new(),
            },
            ends: node.deadline(),
            ..Row::new("TPU VM", &node.name, zone_of(&node.name).unwrap_or(zone))
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
            r#type: queued.slice_name(),
            state: queued.state().to_owned(),
            note: "costs nothing itself; its TPU VM does".into(),
            ..Row::new("queued resource", &queued.name, zone_of(&queued.name).unwrap_or(zone))
        };
        row.with_price(&queued.create_time, Some(0.0), now)
    }

    fn from_disk(disk: &Disk, now: DateTime<Utc>) -> Row {
        let kind = base_name(&disk.r#type);
        let operations = disk.provisioned_iops.parse().unwrap_or(0.0);
        let throughput = disk.provisioned_throughput.parse().unwrap_or(0.0);
        let size: Option<f64> = disk.size_gb.parse().ok();
        let day = size.and_then(|size| Rates::disk_day(kind, size, operations, throughput));
        let row = Row {
            r#type: format!("{kind}, {} GiB", disk.size_gb),
            state: disk.status.clone(),
            note: match disk.users.first() {
                None => "attached to nothing".into(),
                Some(user) => format!("attached to {}", base_name(user)),
            },
            ..Row::new("disk", &disk.name, base_name(&disk.zone))
        };
        row.with_price(&disk.creation_timestamp, day, now)
    }

    fn from_instance(instance: &Instance, now: DateTime<Utc>) -> Row {
        let kind = base_name(&instance.machine_type);
        let is_billed = !["TERMINATED", "STOPPED", "SUSPENDED"].contains(&instance.status.as_str());
        let is_spot = instance.scheduling.provisioning_model == "SPOT";
        let day = if is_billed { Rates::machine_day(kind) } else { Some(0.0) };
        let seconds: Option<i64> = instance.scheduling.max_run_duration.seconds.parse().ok();
        let limit = seconds.and_then(chrono::TimeDelta::try_seconds);
        let created = parse_time(&instance.creation_timestamp);
        let row = Row {
            r#type: kind.to_owned(),
            state: instance.status.clone(),
            note: match (is_billed, is_spot) {
                (false, _) => "costs nothing now, but its disks do".into(),
                (true, true) => "spot: it costs less than this list price".into(),
                (true, false) => String::new(),
            },
            ends: created.zip(limit).map(|(created, limit)| created + limit),
            ..Row::new("machine", &instance.name, base_name(&instance.zone))
        };
        let mut row = row.with_price(&instance.creation_timestamp, day, now);
        if !is_billed {
            // It is not known how long it ran.
            row.usd_so_far = None;
        }
        row
    }

    /// The price of an address in use is part of its machine's cost, and is not shown.
    fn from_address(address: &Address, now: DateTime<Utc>) -> Row {
        let is_idle = address.status == "RESERVED" && address.address_type != "INTERNAL";
        let row = Row {
            r#type: address.address.clone(),
            state: address.status.clone(),
            note: if is_idle { "used by nothing".into() } else { String::new() },
            ..Row::new("address", &address.name, base_name(&address.region))
        };
        let day = if is_idle { Rates::idle_address_day() } else { 0.0 };
        row.with_price(&address.creation_timestamp, Some(day), now)
    }

    fn from_snapshot(snapshot: &Snapshot, now: DateTime<Utc>) -> Row {
        let bytes: Option<f64> = snapshot.storage_bytes.parse().ok();
        let row = Row {
            r#type: bytes
                .map(|bytes| format!("{:.1} GiB", bytes / 1_073_741_824.0))
                .unwrap_or_default(),
            state: snapshot.status.clone(),
            note: format!("of the disk {}", base_name(&snapshot.source_disk)),
            ..Row::new("snapshot", &snapshot.name, "")
        };
        row.with_price(&snapshot.creation_timestamp, bytes.map(Rates::snapshot_day), now)
    }

    fn from_bucket(bucket: &Bucket, now: DateTime<Utc>) -> Row {
        let row = Row {
            r#type: bucket.default_storage_class.clone(),
            note: format!(
                "its price depends on its size: gcloud storage du --summarize gs://{}",
                bucket.name
            ),
            ..Row::new("bucket", &bucket.name, &bucket.location.to_lowercase())
        };
        row.with_price(&bucket.creation_time, None, now)
    }

    fn text(&self) -> String {
        let Row { kind, name, zone, r#type, state, note, .. } = self;
        let place = if zone.is_empty() { String::new() } else { format!(" ({zone})") };
        let mut line = format!("{kind} {name}{place}: {type}");
        if !state.is_empty() {
            line += &format!(", {state}");
        }
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

/// A kind of thing that costs money, with the query that lists it.
struct Inventory {
    /// For messages, in plural.
    kind: &'static str,
    command: Vec<String>,
    rows: fn(&str, &Context<'_>) -> Result<Vec<Row>>,
}

/// What rows depend on, in addition to gcloud's answer.
struct Context<'a> {
    /// The zone that was asked for; empty for all zones.
    zone: &'a str,
    rates: &'a Rates,
    now: DateTime<Utc>,
}

/// The disks of a zone or of all.
fn disks(zone: Option<&str>, project: Option<&str>) -> Inventory {
    Inventory {
        kind: "disks",
        command: gcloud_commands::list_compute("disks", zone, project),
        rows: |text, context| {
            let disks: Vec<Disk> = parse(text)?;
            Ok(disks.iter().map(|disk| Row::from_disk(disk, context.now)).collect())
        },
    }
}

fn inventories(zone: Option<&str>, project: Option<&str>) -> Vec<Inventory> {
    let zone_argument = zone.unwrap_or("-");
    let mut all = vec![
        Inventory {
            kind: "TPU VMs",
            command: gcloud_commands::list_nodes(zone_argument, project),
            rows: |text, context| {
                let nodes: Vec<Node> = parse(text)?;
                let row = |node| Row::from_node(node, context.zone, context.rates, context.now);
                Ok(nodes.iter().map(row).collect())
            },
        },
        Inventory {
            kind: "queued resources",
            command: gcloud_commands::list_queued(zone_argument, project),
            rows: |text, context| {
                let queued: Vec<QueuedResource> = parse(text)?;
                let row = |queued| Row::from_queued(queued, context.zone, context.now);
                Ok(queued.iter().map(row).collect())
            },
        },
        disks(zone, project),
        Inventory {
            kind: "machines",
            command: gcloud_commands::list_compute("instances", zone, project),
            rows: |text, context| {
                let instances: Vec<Instance> = parse(text)?;
                Ok(instances.iter().map(|one| Row::from_instance(one, context.now)).collect())
            },
        },
    ];
    // These belong to no zone.
    if zone.is_none() {
        all.extend([
            Inventory {
                kind: "addresses",
                command: gcloud_commands::list_compute("addresses", None, project),
                rows: |text, context| {
                    let addresses: Vec<Address> = parse(text)?;
                    Ok(addresses.iter().map(|one| Row::from_address(one, context.now)).collect())
                },
            },
            Inventory {
                kind: "snapshots",
                command: gcloud_commands::list_compute("snapshots", None, project),
                rows: |text, context| {
                    let snapshots: Vec<Snapshot> = parse(text)?;
                    Ok(snapshots.iter().map(|one| Row::from_snapshot(one, context.now)).collect())
                },
            },
            Inventory {
                kind: "buckets",
                command: gcloud_commands::list_buckets(project),
                rows: |text, context| {
                    let buckets: Vec<Bucket> = parse(text)?;
                    Ok(buckets.iter().map(|one| Row::from_bucket(one, context.now)).collect())
                },
            },
        ]);
    }
    all
}

pub(crate) fn list(arguments: &List, tool: &mut Tool<'_>, now: DateTime<Utc>) -> Result<u8> {
    let zone = arguments.zone.as_deref().filter(|_| !arguments.all_zones);
    list_inventories(arguments, &inventories(zone, arguments.project.as_deref()), tool, now)
}

/// Lists only disks.
pub(crate) fn list_disks(arguments: &List, tool: &mut Tool<'_>, now: DateTime<Utc>) -> Result<u8> {
    let zone = arguments.zone.as_deref().filter(|_| !arguments.all_zones);
    list_inventories(arguments, &[disks(zone, arguments.project.as_deref())], tool, now)
}

fn list_inventories(
    arguments: &List,
    inventories: &[Inventory],
    tool: &mut Tool<'_>,
    now: DateTime<Utc>,
) -> Result<u8> {
    let rates = Rates::read(arguments.price.as_deref())?;
    if arguments.output.dry_run {
        let commands: Vec<Vec<String>> =
            inventories.iter().map(|inventory| inventory.command.clone()).collect();
        return dry_run(&commands, arguments.output.json, tool);
    }
    let zone = arguments.zone.as_deref().filter(|_| !arguments.all_zones).unwrap_or_default();
    let context = Context { zone, rates: &rates, now };
    let mut rows = Vec::new();
    let mut failures = Vec::new();
    for inventory in inventories {
        let found = tool.ask(&inventory.command).and_then(|text| (inventory.rows)(&text, &context));
        match found {
            Ok(found) => rows.extend(found),
            Err(error) => failures.push(format!("cannot list {}: {error}", inventory.kind)),
        }
    }
    let unknown = rows.iter().filter(|row| row.usd_per_day.is_none()).count();
    let day: f64 = rows.iter().filter_map(|row| row.usd_per_day).sum();
    if arguments.output.json {
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
    let TpuArgs { name, zone_args, output } = arguments;
    let target = Target {
        name: name.clone(),
        zone_args: zone_args.clone(),
        queued: true,
        owner: None,
        usd_per_day: None,
    };
    if output.dry_run {
        return dry_run(&target.queries(), output.json, tool);
    }
    let rates = Rates::read(None)?;
    let found = target.find(tool)?;
    let row = match (&found.node, &found.queued) {
        (Some(node), _) => Row::from_node(node, &zone_args.zone, &rates, now),
        (None, Some(queued)) => Row::from_queued(queued, &zone_args.zone, now),
        (None, None) => return Err(not_found(name, &zone_args.zone)),
    };
    let (hosts, health) =
        found.node.map(|node| (node.hosts().unwrap_or_default(), node.health)).unwrap_or_default();
    if output.json {
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
    let command = gcloud_commands::quota("", &arguments.project);
    if arguments.output.dry_run {
        return dry_run(&[command], arguments.output.json, tool);
    }
    let answer = match tool.ask(&command) {
        // Older versions of gcloud have the command only in `beta`.
        Err(error) if error.to_string().contains("Invalid choice: 'quotas'") => {
            tool.ask(&gcloud_commands::quota("beta ", &arguments.project))?
        }
        answer => answer?,
    };
    let infos: Vec<QuotaInfo> = parse(&answer)?;
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
    if arguments.output.json {
        let row = |(info, value, locations): &(&QuotaInfo, &String, Vec<&String>)| {
            let id = &info.quota_id;
            let name = &info.quota_display_name;
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
